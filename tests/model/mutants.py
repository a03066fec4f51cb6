"""The scripts, each broken on purpose in every way that its header says it is not.

One line a mutant: its name, the script, the words that are replaced, and by what. A script's text
comes with what it shares with others, so restore.lua is broken through those that use it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One fault in one script."""

    name: str
    script: str
    old: str
    new: str = ""

    def change(self, script: str, text: str) -> str:
        """Return the text of *script*, broken if it is this mutant's."""
        if script != self.script:
            return text
        assert text.count(self.old) == 1, (
            f"{self.name}: the words are not, or not once, in {script}"
        )
        return text.replace(self.old, self.new)


#: Faults of both scripts that acknowledge, by the words that take a message away.
ACKS = [
    ("acknowledge", "answers[i] = redis.call('ZREM', KEYS[1], tag)"),
    ("complete", "local answer = redis.call('ZREM', KEYS[1], tag)"),
]


def _acks(script: str, asks: str) -> list[Mutant]:
    asked, _, call = asks.partition(" = ")
    return [
        Mutant("an ack is not asked about", script, asks, f"{call} {asked} = 1"),
        Mutant("an ack leaves the text", script, "    redis.call('HDEL', KEYS[2], tag)"),
        Mutant(
            "an ack leaves the index", script, call, "redis.call('ZSCORE', KEYS[1], tag) and 1 or 0"
        ),
        Mutant("an ack leaves the lease", script, "redis.pcall('ZREM', KEYS[3], tag)"),
        Mutant(
            "an ack takes the next holder's",
            script,
            "for i, tag in ipairs(ARGV) do",
            (
                "for i, tag in ipairs(ARGV) do\n"
                "  for _, each in ipairs(redis.call('HKEYS', KEYS[2])) do\n"
                "    tag = string.sub(each, 1, -13) == string.sub(tag, 1, -13) and each or tag\n"
                "  end"
            ),
        ),
    ]


MUTANTS = [
    # ---------------------------------------------------------- watching, arrive.lua, record.lua
    Mutant("it also stays in its list", "arrive", "'RPOP', KEYS[i]", "'LINDEX', KEYS[i], -1"),
    Mutant("the youngest arrives first", "arrive", "'RPOP', KEYS[i]", "'LPOP', KEYS[i]"),
    Mutant(
        "no reaper hears of it",
        "arrive",
        "    or error_in(redis.pcall('ZADD', KEYS[3], expiry, tag))",
    ),
    Mutant(
        "plain sweeps do not see it",
        "arrive",
        "error_in(redis.pcall('ZADD', KEYS[1], expiry, tag))\n    or ",
    ),
    Mutant("it never goes back", "arrive", "seconds or ARGV[2]", "seconds or 100 * ARGV[2]"),
    Mutant(
        "the first list gets it back", "arrive", "cjson.encode(KEYS[i])", "cjson.encode(KEYS[6])"
    ),
    Mutant("its queue is the first", "arrive", "name_of(queue_of(i))", "name_of(1)"),
    Mutant("it arrives as a lease", "arrive", '"arriving": true, ', ""),
    Mutant("its lease is the wait for a claim", "arrive", "seconds or ARGV[2]", "ARGV[2]"),
    Mutant("another task's lease", "arrive", "(with, '\\n' .. task", "(with, '\\n' .. 'other'"),
    Mutant(
        "a later delivery is claimed",
        "arrive",
        "string.sub(text, 1, #COUNTED) ~= COUNTED",
        "true",
    ),
    Mutant("whoever holds its key", "arrive", "count >= limit", "false"),
    Mutant("it needs no key", "arrive", "    .. exclusive\n", ""),
    Mutant("any priority", "arrive", "\"00' .. priority .. '.1\"", '"000.1"'),
    Mutant("its delivery does not count", "arrive", "(kept or text)", "text"),
    Mutant("it began as it arrived", "arrive", '"waits": true, ', ""),
    Mutant(
        "whatever is plain",
        "arrive",
        "string.find(without, '\\n' .. task .. '\\n', 1, true)",
        "true",
    ),
    Mutant(
        "a plain one comes at the beginning of time",
        "arrive",
        "redis.call('ZADD', KEYS[1], now, tag)",
        "redis.call('ZADD', KEYS[1], 0, tag)",
    ),
    Mutant(
        "it is also returned",
        "adopt",
        "settle(ARGV[1])",
        "",
    ),
    Mutant("a record of it stays", "adopt", "  redis.pcall('HDEL', KEYS[4], tag)\n"),
    Mutant(
        "adopted at the beginning of time",
        "adopt",
        "redis.call('ZADD', KEYS[1], now, tag)",
        "redis.call('ZADD', KEYS[1], 0, tag)",
    ),
    # ---------------------------------------------------------------------------------- claim.lua
    Mutant("a refused claim is made", "claim", "redis.call('ZSCORE', KEYS[6], ARGV[1])", "false"),
    Mutant(
        "what went back is claimed",
        "claim",
        "not is_kept(ARGV[5])",
        "not (is_kept(ARGV[5]) or true)",
    ),
    Mutant("an arrival outlives its claim", "claim", "  settle(ARGV[5])"),
    Mutant("a token comes twice", "claim", "'%.0f', last + 1", "'%.0f', last"),
    Mutant("tokens do not follow the clock", "claim", "tonumber(time[1]) * 1000000 +", "0 +"),
    Mutant("a lease is the time of delivery", "claim", "now + tonumber(ARGV[3])", "now"),
    Mutant(
        "no reaper hears of it",
        "claim",
        "    or error_in(redis.pcall('ZADD', KEYS[3], expiry, tag))",
    ),
    Mutant(
        "plain sweeps do not see it",
        "claim",
        "error_in(redis.pcall('ZADD', KEYS[1], expiry, tag))\n    or ",
    ),
    # --------------------------------------------------------------------------------- begin.lua
    Mutant(
        "a beginning is not noted",
        "begin",
        "string.sub(record, 1, first - 1) .. string.sub(record, last + 1)",
        "record",
    ),
    Mutant(
        "what is over may begin", "begin", "record and redis.call('ZSCORE', KEYS[1], tag)", "true"
    ),
    # --------------------------------------------------------------------------------- extend.lua
    Mutant("expired leases live on", "extend", "(late or tonumber(score) > now)", "true"),
    Mutant(
        "a lease holds at its expiry", "extend", "tonumber(score) > now", "tonumber(score) >= now"
    ),
    Mutant(
        "late ones are turned away",
        "extend",
        "(late or tonumber(score) > now)",
        "tonumber(score) > now",
    ),
    Mutant(
        "whoever is gone may be late",
        "extend",
        "score and (late or tonumber(score) > now)",
        "late or (score and tonumber(score) > now)",
    ),
    Mutant(
        "an expiry moves from the old one",
        "extend",
        "now + seconds[i]",
        "tonumber(score) + seconds[i]",
    ),
    Mutant(
        "the reaper keeps the old expiry",
        "extend",
        "redis.call('ZADD', KEYS[3], 'XX', unpack(moves))",
    ),
    Mutant("all get the first one's seconds", "extend", "now + seconds[i]", "now + seconds[1]"),
    # --------------------------------------------------------------- acknowledge.lua, complete.lua
    *(mutant for each in ACKS for mutant in _acks(*each)),
    # ------------------------------------------------------------------------------ requeue.lua
    Mutant(
        "what is handed back stays held",
        "requeue",
        "redis.call('HDEL', KEYS[2], tag)\n  redis.pcall('ZREM', KEYS[1], tag)",
    ),
    Mutant("an orderly return is a loss", "requeue", "if not loss and", "if false and"),
    Mutant("a loss is an orderly return", "requeue", "if not loss and", "if true and"),
    Mutant(
        "everything goes to the front",
        "requeue",
        "and 'given up', push)",
        "and 'given up', 'RPUSH')",
    ),
    Mutant(
        "nothing rests",
        "requeue",
        "RESTS_FROM, LONGEST_REST = 2",
        "RESTS_FROM, LONGEST_REST = 99",
    ),
    Mutant("a giver-up may still ack", "requeue", "keep(tag .. '~', ends", "keep(tag, ends"),
    Mutant(
        "the first loss rests",
        "requeue",
        "RESTS_FROM, LONGEST_REST = 2",
        "RESTS_FROM, LONGEST_REST = 1",
    ),
    Mutant("a rest is no loss to tell of", "requeue", "remember(tag, record, 'given up')"),
    # ----------------------------------------------------------------------- due.lua and reap.lua
    Mutant(
        "what is not due is listed",
        "due",
        "tonumber(page[i + 1]) > latest",
        "tonumber(page[i + 1]) > latest + 15",
    ),
    Mutant("one page is all", "due", "return {seen, due,", "return {0, {},"),
    Mutant("plain messages are never due", "due", "and 1 or 0,", "and 0 or 0,"),
    Mutant(
        "nobody knows the order",
        "due",
        "string.match(records[i] or '', '\"token\": (%d+)')",
        "false",
    ),
    Mutant(
        "what waited has lost",
        "reap",
        "if loss == 'expired' and claim.waits and not claim.resting then",
        "if false then",
    ),
    Mutant(
        "the reaper pushes twice",
        "reap",
        "redis.pcall(push, claim.key, payload)",
        "redis.pcall(push, claim.key, payload, payload)",
    ),
    Mutant(
        "the reaper takes live leases",
        "reap",
        "tonumber(expiry) <= now",
        "tonumber(expiry) <= now + 15",
    ),
    Mutant("the reaper leaves it held", "reap", "  settle(tag)\n  if loss and", "  if loss and"),
    Mutant("the reaper drops it", "reap", "redis.pcall(push, claim.key, payload)", "0"),
    Mutant("an expiry is no loss", "reap", "if not loss and", "if true and"),
    Mutant("a rest counts twice", "reap", "if loss and not claim.resting and", "if loss and"),
    Mutant(
        "an arrival counts as a loss",
        "reap",
        "and not claim.arriving then\n    remember",
        "then\n    remember",
    ),
    Mutant("reaped ones may be returned again", "reap", "redis.pcall('ZADD', KEYS[5], now, tag)"),
    Mutant(
        "half a record stays",
        "reap",
        "    forget(tag)\n    return nil",
        "    redis.call('ZREM', KEYS[3], tag)\n    return nil",
    ),
    # -------------------------------------------------------------------------------- unclaim.lua
    Mutant("no refusal is left", "unclaim", "redis.pcall('ZADD', KEYS[5], now, ARGV[1])"),
    Mutant(
        "a second return pushes again", "unclaim", "redis.call('ZSCORE', KEYS[5], ARGV[1])", "false"
    ),
    Mutant(
        "a claim that was made is overlooked",
        "unclaim",
        "redis.call('HEXISTS', KEYS[4], ARGV[1]) == 1",
        "false",
    ),
    Mutant(
        "what went back is pushed again",
        "unclaim",
        "is_kept(ARGV[4])",
        "true",
    ),
    Mutant(
        "an unheard delivery is a loss",
        "unclaim",
        "restore(ARGV[1], false, 'RPUSH')",
        "restore(ARGV[1], 'given up', 'RPUSH')",
    ),
    Mutant(
        "it goes to the back of the line",
        "unclaim",
        "redis.call('RPUSH', ARGV[2], ARGV[3])\n  settle",
        "redis.call('LPUSH', ARGV[2], ARGV[3])\n  settle",
    ),
    Mutant("an unheard plain one waits", "unclaim", "now - tonumber(ARGV[5])", "now"),
    # ---------------------------------------------------------------------------- dead_letter.lua
    Mutant("a dead letter stays held", "dead_letter", "end\nsettle(tag)", "end"),
    Mutant(
        "an earlier answer is forgotten", "dead_letter", "redis.pcall('ZADD', KEYS[5], now, note)"
    ),
    Mutant(
        "a dead letter keeps its counters",
        "dead_letter",
        '{"lease": "000000:000000"',
        '{"lease": "000001:000001"',
    ),
    Mutant(
        "a dead letter's past goes on", "dead_letter", "redis.pcall('DEL', history(tag, record))"
    ),
    Mutant("nobody finds the queue", "dead_letter", "redis.call('SADD', KEYS[6], ARGV[3])", "1"),
    # ----------------------------------------------------------------------- move_dead_letter.lua
    Mutant(
        "a letter is sent twice",
        "move_dead_letter",
        "removed ~= 1",
        "removed == 2",
    ),
    Mutant(
        "a letter stays", "move_dead_letter", "redis.pcall('LREM', KEYS[4], ARGV[4], ARGV[2])", "1"
    ),
    Mutant("it is put there all the same", "move_dead_letter", "redis.pcall('LPOP', KEYS[5])"),
    Mutant(
        "a letter is only thrown away", "move_dead_letter", "redis.call('LPUSH', KEYS[5], ARGV[3])"
    ),
    Mutant(
        "an empty queue keeps its name", "move_dead_letter", "redis.pcall('SREM', KEYS[3], ARGV[1])"
    ),
    # ---------------------------------------------------------------------- take.lua, exclusive.lua
    Mutant("a busy key is taken", "take", "is_free(key, limit, true)", "true"),
    Mutant("who was ousted may extend late", "take", "(not clear or oust(key, tag))", "true"),
    Mutant("nobody is ousted", "take", "(not clear or oust(key, tag))", "not clear"),
    Mutant(
        "an ousted one is forgotten", "take", "if keep(tag .. '~', expiry", "if keep(tag, expiry"
    ),
    Mutant(
        "what is over may start", "take", " or not expiry or tonumber(expiry) <= now then", " then"
    ),
    Mutant(
        "a parked one is claimed, too",
        "take",
        "  if verdict == 'parked' then\n    settle(tag)\n  end",
    ),
    Mutant("what is over stays", "take", "complete(ARGV[i])", "1"),
    Mutant("a start is not noted", "take", "(record, WAITS, 1, true)", "(record, '?', 1, true)"),
    Mutant(
        "the younger gives way",
        "take",
        "string.sub(place, 5) < string.sub(last, 5, PLACE_LENGTH)",
        "string.sub(place, 5) > string.sub(last, 5, PLACE_LENGTH)",
    ),
    Mutant("both wait", "claim", "  if last then\n    unpark(", "  if false then\n    unpark("),
    Mutant(
        "a delivery that was none counts",
        "take",
        "deliveries - 1, losses - 1,",
        "deliveries, losses,",
    ),
    Mutant(
        "a busy key is overlooked",
        "claim",
        "not is_free(claim.exclusive.key, claim.exclusive.limit)",
        "false",
    ),
    Mutant(
        "who is parked may be claimed once more",
        "claim",
        "redis.pcall('ZADD', KEYS[6], now, ARGV[1])",
    ),
    Mutant("a place is lost", "claim", "facts.place", "''"),
    Mutant("nobody is woken", "complete", "    wake(key)\n"),
    Mutant(
        "a key is never free",
        "complete",
        "    redis.pcall('ZREM', named('holders', key), tag)\n    wake",
        "    wake",
    ),
    Mutant(
        "the last in the line is woken",
        "complete",
        "named('parked', key), 0, 0)[1]",
        "named('parked', key), -1, -1)[1]",
    ),
    Mutant(
        "who is woken stays in the line",
        "complete",
        "redis.pcall('ZREM', key, claim.parked .. ' ' .. tag) == 1",
        "false",
    ),
    Mutant("the parked go back to their queues", "reap", " and not tend(ARGV[i])"),
    Mutant("a forgotten one waits for ever", "reap", "(over or free) and", "over and"),
    # ---------------------------------------------------------------------------------- sweep.lua
    Mutant("the plain sweep does not wait", "sweep", "tonumber(score) <= now - timeout", "true"),
    Mutant(
        "the plain sweep drops",
        "sweep",
        "redis.pcall('RPUSH', key_of(queue, properties), text)",
        "0",
    ),
    Mutant(
        "the plain sweep takes leases", "sweep", "redis.call('HEXISTS', KEYS[4], tag) == 1", "false"
    ),
    Mutant("the plain sweep forgets the prefix", "sweep", "facts.prefix .. queue", "queue"),
    Mutant("the plain sweep forgets the priority", "sweep", "step ~= 0 and", "false and"),
    Mutant("the plain sweep leaves it held", "sweep", "redis.call('HDEL', KEYS[2], tag)"),
]
