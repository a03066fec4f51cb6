"""Leases on Redis and Valkey, on top of what kombu keeps there.

Kombu records a delivered message twice: its text in the hash ``unacked`` and, in the sorted set
``unacked_index``, its delivery tag with the time of delivery. Every process that reads from the
database sweeps that set and restores what is older than *its own* visibility timeout. A lease
lives in the same two places, so that plain kombu can still restore it, but

* under a tag of this one delivery instead of the publisher's, which survives redelivery: a former
  holder has no name for the new holder's entry, and so cannot acknowledge, requeue or extend it,
  whichever way its command comes;
* with its expiry as the score, by the server's clock: no sweep takes it before it expires,
  whatever its timeout.

Beside them, with ``unacked`` standing for the configured key and behind any ``global_keyprefix``:

``unacked.leases``
    sorted set, tag to expiry: what the reaper reads.
``unacked.claims``
    hash, tag to a JSON record: where the message came from, who holds it.
``unacked.token``
    the last fencing token.
``unacked.refusals``
    sorted set of deliveries that were given up before the server answered, or reaped: a claim of
    theirs that arrives later is not made. Trimmed to an hour.
``unacked.history.<tag>``
    list of the last 20 claims that a message was lost under, as JSON, by its publisher's tag; from
    its first loss on, for a week.
``unacked.dead``
    set of the names of dead-letter queues that hold something. The queues are lists as any other.
``<queue>.malformed``
    list of texts from that queue that are no messages. Nothing reads it; for people.

``unacked.bell``
    list with one empty text, or none: wakes one of the consumers that wait for messages.

Any message that a channel with leases takes out of a list, plain ones too, is first recorded in
kombu's two places and the first two of these, under a tag that begins with ``arrival#``, for a few
seconds; see :mod:`.arrivals`.

A message that was lost for the second time other than by expiry rests before it goes back: it stays
in all four places, under its tag with a ``~`` behind, with the end of its rest as its expiry.

Plain messages are swept too, by kombu's rule, so that a channel with leases does not take part in
kombu's own sweep; see :mod:`.plain`.

Needs a server that knows ``ZMSCORE`` (Redis 6.2, any Valkey) and a user that may run scripts,
``TIME`` and the commands that kombu itself uses. A server that is full does not refuse the scripts:
a held message must not become homeless.
"""
