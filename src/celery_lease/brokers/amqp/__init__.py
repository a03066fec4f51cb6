"""Leases on RabbitMQ: the broker waits as long as the channel lives, so the worker ends the lease.

RabbitMQ knows no visibility timeout. A message belongs to the channel that got it until that
acknowledges or rejects it, or is closed; then it goes to somebody else at once. So a lease is a
promise of its worker: **the driver keeps the expiry**, and is the reaper of its own messages. A
task that goes silent is ended by the watchdog, which returns its message; the message of one that
cannot be ended, or runs on by its ``lease_on_lost``, is returned by the reaper soon after, to be
run elsewhere, and what that task returns is thrown away. To extend a lease costs no call, as long
as channel and connection are open.

**The fence is the channel.** A delivery's number counts on its channel only, so what a former
holder does is never sent: this driver's tags name channel and number, and a closed channel's
deliveries are lost. A channel that closes says so to its holder at once, because RabbitMQ has given
its messages to others by then: tasks that run are told at their next beat.

**Threads.** RabbitMQ answers neither acknowledgements nor rejections: each is one frame, written
to the connection's socket. Frames are written one at a time, under a lock, by whichever thread
settles a message; only the consuming thread reads. That is why a worker whose main loop stands
still, in a shutdown or in a solo pool's task, can return its messages all the same. An
acknowledgement that is written into a connection which breaks at that moment may be lost: its
task runs once more.

**A connection that nobody reads** is kept by heartbeats, which go out with the extensions: for as
long as some task under a lease makes progress, and no longer.

**The consumer timeout.** RabbitMQ closes a channel on which a message stays unacknowledged for
longer (30 minutes unless configured), and all other messages of that channel are run elsewhere. A
lease ends before; see :mod:`.limits`.

**Deliveries** are counted by quorum queues. Classic ones only say that there was an earlier one;
see :mod:`.counts`. Why one ended is written nowhere, so the losses are those that this process has
seen: see :mod:`..losses`. A delivery that ended with its channel is none.

**Dead letters** are the queue's own if it is declared with a dead-letter exchange: that gets what
is rejected for good or lost too often, and, of a quorum queue, what was delivered more often than
its ``x-delivery-limit``. Else what is lost too often is copied to a queue of ours: see
:mod:`.dead`.
"""
