"""The semantics of leases: the states of a lease, and who decides about what.

A *message* is one broker delivery of one task. A *lease* is one worker's right to run it, limited
in time: it expires at the last *beat* plus ``lease_extension``. Beats come from the task; the
worker's *keeper* turns them into extensions at the broker, in batches. A task that hangs stops
beating, its lease expires, and the message runs elsewhere: that is the feature.

The way of a message::

    received ─ claim ─► RESERVED ─ start ─► RUNNING ─┬─► COMPLETED   acknowledged, or dropped
                           │                   │      ├─► RELEASED    back in its queue
                           └───────────────────┴──────┴─► LOST        expired, or another holder's

Who decides about what:

* The broker decides who holds a message, by its own clock. A worker's *deadline* only limits its
  trust: it is counted from before the call that moved the expiry, so it is never later than the
  broker's expiry.
* The task decides whether it makes progress, by beating. Nothing beats in its place unless its
  ``lease_mode`` allows that.
* Without an answer the worker decides nothing: an extension that was not answered is neither a
  renewal nor a loss, and is repeated until the deadline.

What happens when:

==============================  ================================================================
the task hangs or is stopped    no beat, no extension: it expires, a reaper returns the message
the worker is killed            the same; its task processes cannot complete what they lost
a lease expires                 any reaper returns the message, counted as a loss
a plain message is overdue      the same sweep returns it, by kombu's rule, not counted
the broker does not answer      asked ever less often; the task runs on until its deadline
a former holder beats           ``LeaseLost``, at that beat and at every further one
a former holder returns         its outcome is discarded unless the broker confirms the lease
a former holder acknowledges    nothing: its delivery's tag is unknown to the broker by then
the connection breaks           leases of running tasks are kept, reserved messages go back
==============================  ================================================================

This package uses the standard library only, does no I/O, and reads the time from :mod:`.clock`. The
memory that processes share is in :mod:`celery_lease.board`.
"""
