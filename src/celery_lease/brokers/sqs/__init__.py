"""Leases on Amazon SQS: a message's visibility timeout is its lease.

A message that was received is invisible until its visibility timeout ends, and then visible to all
again: SQS is its own reaper. A renewal is an entry of ``ChangeMessageVisibilityBatch``, ten to a
call; an acknowledgement deletes; a return sets the timeout to 0.

**The fence is the receipt handle**, new with each delivery, but SQS does not enforce it: it answers
a deletion or a change by an old handle with success, and its effect on the next holder's delivery
is not documented. So nothing is ever sent under a handle that may be stale: the driver keeps, for
each handle, the time until which it is good at least, counted from before the call that set it, and
answers "lost" by itself after that. An error of SQS only confirms a loss. Therefore an expired
lease cannot be confirmed: the outcome of a run that ends after its deadline is discarded.

**The first lease.** Kombu receives with the queue's own visibility timeout. The lease counts from
the receipt, and never longer than the queue's timeout after the poll was sent; the keeper's next
pass, within a second, sets the message's timeout to the lease's, in batches, and not for tasks that
are done by then. A worker that is killed within that second leaves its messages invisible for the
queue's timeout. A poll waits no longer than a third of that timeout.

**Twelve hours** after its receipt a message is visible again, regardless of extensions. The lease
ends a little before, with a loss.

**Deliveries** are ``ApproximateReceiveCount``. SQS does not record why a delivery ended, so the
losses are those that this process has seen: see :mod:`..losses`, and :mod:`.dead` for messages that
were lost too often. Where a queue has a redrive policy, SQS's own count and dead-letter queue
decide, and ``lease_max_deliveries`` has no effect.

**Fencing tokens** are created in :mod:`.fencing`. **FIFO queues** are polled for one message at a
time, because a group is blocked by the messages received before a poll, not by those of the poll.

**A shutdown** requeues reserved messages. A poll that is under way then may still bring messages;
they are released on receipt, and the event loop closes only when its polls were answered.
"""
