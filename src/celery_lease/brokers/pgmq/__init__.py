"""Leases on PostgreSQL with pgmq, kombu's ``pgmq://``: a message's ``vt`` is its lease.

A message is a row of its queue's table, invisible until the time in its column ``vt``, and then
visible to all: pgmq is its own reaper. All times are the server's.

**One statement** extends all leases of a worker, in any queues; one acknowledges, one returns. Each
names rows by :class:`~.fence.Delivery` and changes only the rows of these deliveries: ``msg_id``,
``read_ct`` and ``last_read_at`` must all be the same. ``read_ct`` grows with each delivery; the
time is compared because a fail-over may forget the last deliveries, and the next holder would get
the same count again.

**No worker waits for another.** Pgmq reads with ``FOR UPDATE SKIP LOCKED``, so two workers that
read at the same time get different messages and neither blocks. The driver's statements skip locked
rows, too: a locked row counts as unanswered and is asked for again, and the worker's other leases
are extended meanwhile.

**The first lease.** Kombu reads with the transport's ``visibility_timeout``. One more statement for
all messages of a read sets their leases, before any of them is delivered. If it is not answered,
the leases count from the read until the keeper's next pass. Only a worker killed between those two
statements leaves its messages hidden for the ``visibility_timeout``.

**A return** sets ``vt`` to the epoch, which marks that the message has no holder: an extension that
arrives late, even one that was given up long ago, changes nothing. Messages are read in the order
in which they were sent, so a returned message is at the front.

**Deliveries** are ``read_ct``. Orderly returns are counted under one key in the column ``headers``
of the row itself, which survives redelivery and which kombu never reads; all other earlier
deliveries were losses, also those that plain kombu returned. The database needs no function of
celery-lease, and tables only for checkpoints and for exclusive keys (:mod:`.key_statements`). Only
a message that was lost too often is moved to another queue of pgmq, its dead-letter queue, which is
created then: see :mod:`.dead`.

**The fencing token** is ``last_read_at`` in microseconds: it grows over the deliveries of a message
and over the new message of a retry, provided that the clock of the server, or of its successor
after a fail-over, does not go back by more than the time between two deliveries.

**Connections** are the driver's own, at most a few, and bounded in time: kombu's pool may be
exhausted, and belongs to a transport that is closed while leases live on. An error (a restart, a
killed backend, a ``statement_timeout``, a standby, a server without free connections) counts as no
answer: neither a renewal nor a loss.
"""
