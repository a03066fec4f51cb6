"""Tests of the contract of ``core.delivery``, for every driver.

For a test module of the driver's own package, which provides the broker::

    from celery_lease.testing.conformance import *
    from celery_lease.testing.desk import Bench

    @pytest.fixture
    def driver_under_test():
        bench = Bench("mybroker://", lacks={"orders"})
        yield bench
        bench.close()

``lacks`` names the features that tests ``need`` and the broker does not have:

``reaps``
    the driver returns expired leases, of any holder.
``losses``
    losses are distinguished from orderly returns.
``dead_letters``
    it moves messages to dead-letter queues.
``outlives``
    leases outlive the channel by which their message came.
``confirms``
    an expired lease that no other consumer took can still be confirmed.
``orders``
    messages keep their order.
"""

from celery_lease.testing.conformance.channels import *  # noqa: F403
from celery_lease.testing.conformance.fixtures import *  # noqa: F403
from celery_lease.testing.conformance.leases import *  # noqa: F403
