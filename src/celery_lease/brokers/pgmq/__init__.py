"""Leases on PostgreSQL with pgmq, kombu's ``pgmq://``: a message's ``vt`` is its lease.

A message is a row of its queue's table, invisible until the time in its column ``vt``, and then
anybody's: pgmq is its own reaper. Everything is judged by the server's clock.

**One statement** extends all leases of a worker, whatever their queues, and so does one for
acknowledgements and one for returns. It names rows by :class:`~.fence.Delivery` and changes those
only whose delivery it is still: ``msg_id``, ``read_ct`` and ``last_read_at`` must all be the same.
``read_ct`` grows with each delivery; the time is there because a fail-over may forget the last
deliveries, and the next holder would be given the same count once more.

**No worker waits for another.** Pgmq reads with ``FOR UPDATE SKIP LOCKED``, so two workers that
read at the same time get different messages and neither blocks. The driver's statements skip locked
rows too: a row that somebody else has locked is unanswered, and asked again, and the worker's other
leases are extended meanwhile.

**The beginning.** Kombu reads with the transport's ``visibility_timeout``. One more statement for
all that one read brought sets each lease, before any of it is delivered. If it is not answered, the
leases count from the read until the keeper's next pass. Only a worker killed between those two
statements leaves its messages hidden for the ``visibility_timeout``.

**Handing back** sets ``vt`` to the epoch, which marks that nobody holds the message: an extension
that arrives late, even one that was given up long ago, changes nothing. Messages are read in the
order in which they were sent, so what goes back is at the front.

**Deliveries** are ``read_ct``. Orderly returns are counted under one key in the column ``headers``
of the row itself, which survives redelivery and which kombu never reads; all other earlier
deliveries were losses, also those that plain kombu returned. The database needs no table and no
function of ours. Only a message that was lost too often is moved to another queue of pgmq, its
dead-letter queue, which is made then: see :mod:`.dead`.

**The fencing token** is ``last_read_at`` in microseconds: it grows over the deliveries of a message
and over a retry's new message, as long as the server's clock, or that of the server which takes
over from it, does not go back by more than what lies between two deliveries.

**Connections** are the driver's own, a few at most, and bounded in time: kombu's pool may be
exhausted, and belongs to a transport that is closed while leases live on. An error, be it a
restart, a killed backend, a ``statement_timeout``, a standby, or a server without free
connections, is no answer: neither a renewal nor a loss.
"""
