"""Leases on Redis and Valkey, on top of kombu's own records.

Kombu records a delivered message twice: its text in the hash ``unacked`` and, in the sorted set
``unacked_index``, its delivery tag with the time of delivery. Every process that reads from the
database sweeps that set and restores messages older than *its own* visibility timeout. A lease
lives in the same two places, so that plain kombu can still restore it, but

* under a tag of this one delivery instead of the publisher's, which survives redelivery: a former
  holder does not have the tag of the new holder's entry, so none of its commands can acknowledge,
  requeue or extend it;
* with its expiry as the score, by the server's clock: no sweep takes it before it expires, with any
  timeout.

Beside them, with ``unacked`` for the configured key and after any ``global_keyprefix``:

``unacked.leases``
    sorted set, tag to expiry: the reaper reads it.
``unacked.claims``
    hash, tag to a JSON record: the message's list and queue, its holder, its counts.
``unacked.token``
    the last fencing token.
``unacked.refusals``
    sorted set of deliveries that were given up before the server answered, or reaped: a late claim
    of one is refused. Trimmed to an hour.
``unacked.history.<tag>``
    list of the last 20 claims under which a message was lost, as JSON, by its publisher's tag; from
    its first loss on, for a week.
``unacked.dead``
    set of the names of non-empty dead-letter queues, which are ordinary lists.
``unacked.holders.<key>``
    sorted set of the deliveries that hold an exclusive key, by the time since when.
``unacked.parked.<key>``, ``unacked.parked``
    sorted set of the messages that wait for a key, by their places in the line, and a hash of how
    many there are of each queue. A parked message is in the first four places, under a tag with a
    ``~`` behind and with a score that a reaper moves on; see ``exclusive.lua``.
``<queue>.malformed``
    list of texts from that queue that are no messages. No code reads it; for operators.

``unacked.watcher.<queue>``
    name of the channel that the server notifies of the queue's messages, "" while the role is
    passed on. Expires after 30 seconds.
``unacked.bell.<queue>``
    list of one empty text: wakes the channel that has waited for the queue longest. Expires after
    10 seconds. See :mod:`.waiting`.
``unacked.bell``
    the same for polling channels; see :mod:`.polling`.
``unacked.probe.<id>``
    a test, for a second, of whether the server notifies of changes.

Any message that a channel with leases takes out of a list, even a plain one, is first recorded in
kombu's two places and the first two of these, under a tag that begins with ``arrival#``, for a few
seconds; see :mod:`.receive`. Where a message was expected, first deliveries are claimed under that
tag, and those of tasks without leases are recorded under it in kombu's two places, and no others,
with the time of delivery; see :mod:`.arrivals`.

From its second loss other than by expiry on, a message has a backoff before it goes back: it stays
in all four places, under its tag with a ``~`` appended, with the end of the backoff as its expiry.

Plain messages are swept, too, by kombu's rule, so a channel with leases takes no part in kombu's
own sweep; see :mod:`.plain`.

Needs a server with ``ZMSCORE`` (Redis 6.2, any Valkey) and a user with the rights that
:mod:`.rights` lists. A full server does not refuse the scripts: a held message must be able to
go back.
"""
