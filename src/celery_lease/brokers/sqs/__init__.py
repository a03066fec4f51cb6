"""Leases on Amazon SQS: a message's visibility timeout is its lease.

A message that was received is invisible until its visibility timeout ends, and then anybody's
again: SQS is its own reaper. A renewal is an entry of ``ChangeMessageVisibilityBatch``, ten to a
call; an acknowledgement deletes; handing back sets the timeout to nothing.

**The fence is the receipt handle**, new with each delivery, but SQS does not enforce it: a deletion
or a change by an old handle is answered with success, and what it does to the next holder's
delivery is not documented. So nothing is ever sent under a handle that is not known to be good:
the driver keeps, for each, until when it is good at least, counted from before the call that made
it so, and answers "lost" by itself from then on. An error of SQS only confirms a loss. Therefore
an expired lease cannot be confirmed: a run that ends after its deadline is thrown away.

**The beginning.** Kombu receives with the queue's own visibility timeout. The lease counts from
the arrival, and never longer than the queue's timeout after the poll was sent; the keeper's next
pass, within a second, makes the message's timeout the lease's, in batches and not at all for
tasks that are done by then. A worker that is killed within that second leaves its messages
invisible for the queue's timeout. A poll waits no longer than a third of that timeout.

**Twelve hours** after it was received a message is anybody's again, whatever was extended. The
lease ends a little before, and the task is told so.

**Deliveries** are ``ApproximateReceiveCount``. Why one ended is written nowhere, so the losses are
those that this process has seen: see :mod:`..losses`, and :mod:`.dead` for what is lost too often.
Where a queue has a redrive policy, SQS's own count and dead-letter queue decide, and
``lease_max_deliveries`` does nothing.

**Fencing tokens** are made in :mod:`.fencing`. **FIFO queues** are polled for one message at a
time, because a group is blocked by what was received before a poll, not by what comes with it.

**A shutdown** hands back what does not run. A poll that is under way then may still bring
messages; they are released as they come, and the event loop closes only when polls were answered.
"""
