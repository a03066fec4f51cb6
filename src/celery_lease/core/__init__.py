"""What a lease is, and who decides what. Everything else in this package carries it out.

A *message* is one broker delivery of one task. A *lease* is one worker's right to run it, bounded
in time: it expires at the last *beat* plus ``lease_extension``. Beats come from the task; the
worker's *keeper* turns them into extensions at the broker, in batches. A task that hangs stops
beating, its lease runs out, and the message is run elsewhere: that is the feature.

The way of a message::

    received ─ claim ─► RESERVED ─ start ─► RUNNING ─┬─► COMPLETED   acknowledged, or dropped
                           │                   │      ├─► RELEASED    back in its queue
                           └───────────────────┴──────┴─► LOST        expired, or somebody else's

Who is authoritative:

* The broker decides who holds a message, by its own clock. A worker's *deadline* is only a bound on
  its trust: counted from before the call that moved the expiry, so never later than the broker's.
* The task decides whether it makes progress, by beating. Nothing beats for it unless its
  ``lease_mode`` says so.
* The worker decides nothing while it knows nothing: an extension that was not answered is neither a
  renewal nor a loss, and is asked again until the deadline.

What happens when:

==============================  ================================================================
the task hangs or is stopped    no beat, no extension: it expires, a reaper returns the message
the worker is killed            the same; its task processes cannot complete what they lost
a lease expires                 any reaper returns the message, counted as a loss
a plain message is overdue      the same sweep returns it, by kombu's rule, not counted
the broker does not answer      asked ever less often; the task runs on until its deadline
a loser beats                   ``LeaseLost``, at that beat and at every further one
a loser returns                 its outcome is thrown away unless the broker confirms the lease
a loser acknowledges            nothing: its delivery's name is unknown to the broker by then
the connection breaks           leases that run are kept, what waits goes back to its queue
==============================  ================================================================

This package is the standard library only, does no I/O, and asks the time from :mod:`.clock`.
"""
