"""Leases on RabbitMQ: it has no visibility timeout, so the worker itself ends its leases.

A message belongs to the channel that received it until that acknowledges or rejects it, or is
closed; then RabbitMQ delivers it to another consumer at once. So **the driver keeps the expiry**,
and is the reaper of its own messages. The watchdog ends a silent task and returns its message. If
the task cannot be ended, or goes on by its ``lease_on_lost``, the reaper returns the message soon
after, to be run elsewhere, and the task's outcome is discarded. An extension costs one question for
all leases of a channel: leases that the broker does not confirm are not extended.

**The fence is the channel.** A delivery's number is valid on its channel only, so a former holder
cannot send anything: this driver's tags name channel and number, and the deliveries of a closed
channel are lost. A channel that closes informs its holder at once, because RabbitMQ has delivered
its messages elsewhere by then: running tasks learn of the loss at their next beat.

**Threads.** RabbitMQ answers neither acknowledgements nor rejections: each is one frame, written
to the connection's socket. Frames are written one at a time, under a lock, by the thread that
settles a message. The consuming thread reads frames and handles them; while it stands still, in a
shutdown or in a solo pool's task, the keeper's thread reads for it: see :mod:`.reader`. An
acknowledgement that is written into a connection which breaks at that moment may be lost: its task
runs once more.

**A connection whose loop stands still** is kept open by heartbeats, which are sent with the
extensions: for as long as some task under a lease makes progress, and no longer.

**The consumer timeout.** RabbitMQ closes a channel on which a message stays unacknowledged for
longer (30 minutes unless configured), and all other messages of that channel are run elsewhere. A
lease ends before; see :mod:`.limits`.

**Deliveries** are counted by quorum queues. Classic queues only flag a redelivery; see
:mod:`.counts`. RabbitMQ does not record why a delivery ended, so the losses are those that this
process has seen: see :mod:`..losses`. A delivery that ended with its channel is no loss.

**Dead letters** go to the queue's own dead-letter exchange if it is declared with one: it gets the
messages that are rejected for good or lost too often, and, of a quorum queue, those that were
delivered more often than its ``x-delivery-limit``. Otherwise a message that was lost too often is
copied to a dead-letter queue of celery-lease: see :mod:`.dead`.
"""
