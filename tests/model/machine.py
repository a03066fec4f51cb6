"""The machine: actors take turns at some queues, and after each turn server and model must agree.

At every step another worker may act, under a tag that is its own, a former one, or one of which it
never heard that it was granted. Whatever a call of a former holder changes shows as a difference,
for in the model it changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_lease.brokers.redis.arrivals import Arrived
from celery_lease.core.delivery import Answer, Claim, Renewal, Terms
from celery_lease.core.keys import Exclusive, KeyAnswer, OnBusy, Verdict
from model.asking import Asking, Disagreement, agree, answers
from model.lease_model import ARRIVAL, LISTS, PARKED_FOR, START, LeaseModel, Text, Want
from model.stage import TASK, VISIBILITY_TIMEOUT, WORKERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.brokers.redis.delivery import Delivery
    from celery_lease.brokers.redis.driver import RedisDriver
    from model.stage import Stage

#: Few, so that the workers meet at each of them.
MESSAGES = 4
#: Of six choices of a tag so many fall on a held one.
OFTEN = 4

workers = st.integers(0, WORKERS - 1)
recent = st.integers(0, 5)  # counted from the last one
leases = st.sampled_from([20, 0, 10, 40, -5])  # seconds; also such as are over at once
batches = st.lists(recent, min_size=1, max_size=3)
renewals = st.lists(st.tuples(recent, leases, st.booleans()), min_size=1, max_size=4)
homes = st.sampled_from([LISTS[0], *LISTS])  # queue and priority
wants = st.sampled_from(
    [
        None,
        Want("one", 1),
        Want("one", 1),
        Want("one", 1, "drop"),
        Want("one", 1, "replace"),
        Want("two", 2),
    ]
)
passing = st.sampled_from([0.25, 1, 5, 10, 20, 40, 60])  # seconds


class LeaseMachine(RuleBasedStateMachine):
    """Workers 0 to 2 lease, a plain worker does not; anybody may sweep."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.model = LeaseModel(visibility_timeout=VISIBILITY_TIMEOUT)
        self.stage.clear(START)
        self.published: list[str] = []
        self.tags: list[str] = []  # of all deliveries that somebody was told of
        self.plain: list[str] = []
        self.asking: list[Asking] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.started: dict[str, Want | None] = {}  # of all that ever got their key
        self.server = self.stage.view()

    def driver(self, worker: int) -> RedisDriver:
        return self.stage.drivers[worker]

    def may_be_due(self) -> bool:
        """Whether a sweep has something to do; a sweep for nothing comes less often."""
        due = any(score <= self.model.now for score in self.model.index.values())
        return due or (bool(self.model.held) and self.model.nonce % 2 == 0)

    def may_hold(self) -> bool:
        """Whether there is a tag to use; former holders are not to use up the steps."""
        held = any(tag in self.model.held for tag in self.tags)
        return held or (bool(self.tags) and self.model.nonce % 3 == 0)

    def pick(self, which: list[int]) -> list[str]:
        """Return tags, each once: more often of those that are held than of all that ever were.

        Any worker may use them: what counts is the tag, the drivers are all the same.
        """
        held = [tag for tag in self.tags if tag in self.model.held]
        pools = [held if each < OFTEN and held else self.tags for each in which]
        return list(
            dict.fromkeys(
                pool[-1 - each % len(pool)] for each, pool in zip(which, pools, strict=True)
            )
        )

    # -------------------------------------------------------------------------- coming and going

    @precondition(lambda self: len(self.published) - len(self.model.completed) < MESSAGES)
    @rule(failed=st.booleans(), home=homes, want=wants)
    def publish(
        self, *, failed: bool, home: tuple[str, int] = LISTS[0], want: Want | None = None
    ) -> None:
        """Publish a message, perhaps one that somebody has failed at before: a next loss rests."""
        message = f"m{len(self.published)}"
        self.published.append(message)
        self.model.wants[message] = want
        self.stage.publish(message, *home, want and want.key)
        self.model.publish(message, home)
        if failed and self.model.waiting == 1:
            self.deliver(worker=0, seconds=10)
            self.requeue(worker=0, which=[0], orderly=False, front=False)

    @precondition(lambda self: self.model.waiting)
    @rule(
        worker=workers,
        seconds=leases,
        waits=st.booleans(),
        decides=st.booleans(),
        starts=st.booleans(),
    )
    def deliver(
        self,
        worker: int,
        seconds: float,
        *,
        waits: bool = False,
        decides: bool = True,
        starts: bool = False,
    ) -> None:
        asking = self.pop(seconds)
        asking.waits, asking.decides = waits, decides
        self.tags.append(asking.delivery.tag)
        self.arrive(asking, worker)
        if starts and asking.delivery.tag in self.model.records:
            self.take(worker, asking.delivery.tag)

    @precondition(lambda self: self.model.waiting)
    @rule(worker=workers, seconds=leases, arrives=st.booleans(), fetched=st.booleans())
    def deliver_without_an_answer(
        self, worker: int, seconds: float, *, arrives: bool, fetched: bool = False
    ) -> None:
        asking = self.fetch(seconds) if fetched else self.pop(seconds)
        self.asking.append(asking)
        if arrives:
            self.arrive(asking, worker)

    @precondition(lambda self: self.model.waiting)
    @rule(worker=workers, seconds=leases, plainly=st.booleans())
    def an_arrival_is_over_before_its_claim(
        self, worker: int, seconds: float, *, plainly: bool
    ) -> None:
        """A worker stood still with the message in its hand, and somebody swept meanwhile."""
        self.deliver_without_an_answer(worker=worker, seconds=seconds, arrives=False)
        self.time_passes(seconds=ARRIVAL)
        if plainly:
            self.a_plain_process_sweeps(timeout=0)
        else:
            self.reap(worker=worker, limit=100)

    @precondition(lambda self: self.model.waiting)
    @rule(seconds=leases, heard=st.booleans())
    def a_busy_worker_takes_it(self, seconds: float, *, heard: bool) -> None:
        """A first delivery is claimed as it arrives, unless its key is taken, and no other."""
        place = self.model.next_place()
        assert place is not None
        text, nonce = self.model.queues[place][-1], self.model.hand_out()
        want = self.model.wants[text.message]
        is_first = self.stage.is_new(place) and self.model.may_arrive_claimed(want)
        tag = f"{text.message}#{nonce:012d}" if is_first else f"arrival#{nonce}"
        terms = f"{seconds} {want.limit} {want.busy}" if want else f"{seconds} 0 "
        usual = f"\n{TASK}\n{terms}\n\nother\n99 1 drop\n"
        said = self.stage.take(tag, '"w"', "\nno\n", usual)
        assert said is not None
        if not is_first:
            self.model.arrive(tag)
            agree("not claimed", len(said), 2)
            return
        self.model.arrive_claimed(tag, seconds)
        line = [want.key, str(place[1])] if want else []
        read = [str(self.model.token), TASK, *[text.message] * 2, *line]
        agree("claimed", said[2:], ["\n".join(read)])
        if heard:
            self.tags.append(tag)
            self.tokens[text.message].append(self.model.token)
        else:
            self.asking.append(Asking(Arrived(tag), text, "", seconds, arrived=True))

    @precondition(lambda self: self.model.waiting)
    @rule(seconds=leases, then=st.sampled_from(["taken", "unheard", "no room", "leased"]))
    def a_busy_worker_takes_a_plain_one(self, seconds: float, *, then: str) -> None:
        """A first delivery of a task without leases is recorded as kombu does, and no other."""
        place = self.model.next_place()
        assert place is not None
        is_first, nonce = self.stage.is_new(place), self.model.hand_out()
        tag = f"arrival#{nonce}"
        said = self.stage.take(tag, '""', f"\nno\n{TASK}\n")
        assert said is not None
        agree("plain", said[2:], ["plain"] if is_first else [])
        if not is_first:
            self.model.arrive(tag)
            return
        text = self.model.arrive_plain(tag)
        if then == "taken":
            self.plain.append(tag)
        elif then == "leased":  # it is claimed after all
            delivery = self.stage.delivery(said[1], nonce, said[0], tag)
            self.asking.append(self.asked(delivery, text, "", seconds))
        else:
            arrived = Arrived(tag, *said[:2]) if then == "no room" else Arrived(tag)
            self.asking.append(Asking(arrived, text, "", seconds, arrived=True))

    @precondition(lambda self: not self.model.waiting)
    @precondition(lambda self: len(self.published) - len(self.model.completed) < MESSAGES)
    @rule(worker=workers, seconds=leases)
    def a_holder_of_a_key_is_late(self, worker: int, seconds: float) -> None:
        """Its lease expires, another task of its key starts, and then it wants to go on."""
        for _ in range(2):
            self.publish(failed=False, want=Want("one", 1))
            if not self.model.waiting:
                return
            self.deliver(worker=worker, seconds=10, decides=False, starts=True)
            self.time_passes(seconds=10)
        self.extend(worker=worker, wanted=[(which, seconds, True) for which in (0, 1, 5)])

    @precondition(lambda self: not self.model.waiting)
    @precondition(lambda self: len(self.published) - len(self.model.completed) < 2)
    @rule(worker=workers, late=st.booleans())
    def one_that_waits_is_replaced(self, worker: int, *, late: bool) -> None:
        """By a newer one; or, if that was parked first, by the one that was received before."""
        for _ in range(3):
            self.publish(failed=False, want=Want("one", 1, "replace"))
        for number in range(3):
            if self.model.waiting:
                starts = number == 0 or not late
                self.deliver(worker=worker, seconds=40, decides=number == 2, starts=starts)
        self.take_key(worker=worker, which=0)

    @precondition(lambda self: any(not each.arrived for each in self.asking))
    @rule(worker=workers, which=recent)
    def a_claim_arrives_late(self, worker: int, which: int) -> None:
        waiting = [each for each in self.asking if not each.arrived]
        self.arrive(waiting[-1 - which % len(waiting)], worker)

    @precondition(lambda self: self.asking)
    @rule(worker=workers, which=recent)
    def return_unclaimed(self, worker: int, which: int) -> None:
        asking = self.asking[-1 - which % len(self.asking)]
        delivery = asking.delivery
        agree("return", self.driver(worker).return_unclaimed([delivery]), [Answer.HELD])
        facts = (delivery.tag, delivery.arrival, asking.text)
        self.model.return_unclaimed(*facts, heard=bool(delivery.key))

    @precondition(lambda self: not self.plain_holds())
    @precondition(lambda self: any(each.may_be_adopted for each in self.asking))
    @rule(worker=workers, which=recent)
    def a_message_without_a_lease_is_adopted(self, worker: int, which: int) -> None:
        waiting = [each for each in self.asking if each.may_be_adopted]
        asking = waiting[-1 - which % len(waiting)]
        arrival, message = asking.delivery.arrival, asking.text.message
        adopted = self.model.adopt(arrival, asking.text)
        answer = self.driver(worker).adopt(arrival, message, asking.plain)
        agree("adopt", [answer], answers([adopted]))
        self.asking.remove(asking)
        self.plain += [message] if adopted else []

    def pop(self, seconds: float) -> Asking:
        arrived = self.stage.arrive(self.model.hand_out())
        if arrived is None:
            raise Disagreement("nothing arrives, though there is a message")
        delivery, plain = arrived
        return self.asked(delivery, self.model.arrive(delivery.arrival), plain, seconds)

    def fetch(self, seconds: float) -> Asking:
        nonce, place = self.model.hand_out(), self.model.next_place()
        assert place is not None
        delivery = self.stage.fetch(nonce, place)
        return self.asked(delivery, self.model.fetch(nonce), "", seconds)

    def asked(self, delivery: Delivery, text: Text, plain: str, seconds: float) -> Asking:
        tag = f"{text.message}#{self.model.nonce:012d}"
        popped = (delivery.tag, delivery.queue, delivery.deliveries, delivery.losses)
        home, _ = self.model.homes[text.message]
        agree("popped", popped, (tag, home, text.deliveries + 1, text.losses))
        return Asking(delivery, text, plain, seconds)

    def arrive(self, asking: Asking, worker: int) -> None:
        asking.arrived = True
        delivery, message = asking.delivery, asking.text.message
        want = self.model.wants[message]
        exclusive = want and Exclusive(
            key=want.key, limit=want.limit, on_busy=OnBusy(want.busy), decides=asking.decides
        )
        terms = Terms(
            seconds=asking.seconds, waits=asking.waits, about={"id": message}, exclusive=exclusive
        )
        claim = self.driver(worker).claim(delivery, terms, 0.0)
        expected = self.model.claim(
            delivery.tag,
            delivery.arrival,
            asking.text,
            asking.seconds,
            waits=asking.waits,
            decides=asking.decides,
        )
        agree("claim", claim and _said(claim), expected)
        if isinstance(claim, Claim):
            self.tokens[message].append(claim.token)

    # ----------------------------------------------------------------------------------- holders

    def stale(self, tags: list[str]) -> list[bool]:
        """Return of each tag whether its nonce is not in force, before a call with them."""
        return [self.model.is_stale(tag) for tag in tags]

    def agree_on_tags(
        self, what: str, real: list[Answer], expected: list[bool], stale: list[bool]
    ) -> None:
        """Compare the answers; and whatever else the model expects, a stale nonce is refused."""
        agree(what, real, answers(expected))
        for answer, is_stale in zip(real, stale, strict=True):
            if is_stale:
                agree(f"INV-7: {what} under a stale nonce", answer, Answer.LOST)

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, wanted=renewals)
    def extend(self, worker: int, wanted: list[tuple[int, float, bool]]) -> None:
        each_once = {self.pick([which])[0]: (seconds, late) for which, seconds, late in wanted}
        batch = [Renewal(tag, seconds, late) for tag, (seconds, late) in each_once.items()]
        stale = self.stale(list(each_once))
        expected = [self.model.extend(each.tag, each.seconds, late=each.late) for each in batch]
        self.agree_on_tags("extend", self.driver(worker).extend(batch), expected, stale)

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=recent, seconds=leases)
    def extend_in_time(self, worker: int, which: int, seconds: float) -> None:
        self.extend(worker=worker, wanted=[(which, seconds, False)])

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=batches)
    def begin(self, worker: int, which: list[int]) -> None:
        tags = self.pick(which)
        stale = self.stale(tags)
        expected = [self.model.begin(tag) for tag in tags]
        self.agree_on_tags("begin", self.driver(worker).begin(tags), expected, stale)

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=recent, over=batches)
    def take_key(self, worker: int, which: int, over: Sequence[int] = ()) -> None:
        """Also as a worker does that completes what is over in the same call."""
        (tag,) = self.pick([which])
        self.take(worker, tag, [each for each in self.pick([*over]) if each != tag])

    def take(self, worker: int, tag: str, over: Sequence[str] = ()) -> None:
        stale, *stale_over = self.stale([tag, *over])
        answer, gone = self.driver(worker).take_key_and_complete(tag, over)
        agree("take", (str(answer.verdict), answer.by), self.model.take(tag))
        expected = [self.model.complete(each) for each in over]
        self.agree_on_tags("complete with it", gone, expected, stale_over)
        if stale:
            agree("INV-7: take under a stale nonce", answer.verdict, Verdict.LOST)
        if answer.verdict is Verdict.HELD:
            self.started[tag] = self.model.wants[tag.partition("#")[0]]

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=batches)
    def complete(self, worker: int, which: list[int]) -> None:
        tags = self.pick(which)
        stale = self.stale(tags)
        driver = self.driver(worker)
        # Whoever has claimed a message knows whether it has a key; here others acknowledge as well.
        driver.claims_keys = any(self.model.wants[tag.partition("#")[0]] for tag in tags)
        expected = [self.model.complete(tag) for tag in tags]
        self.agree_on_tags("complete", driver.complete(tags), expected, stale)

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=batches, orderly=st.booleans(), front=st.booleans())
    def requeue(self, worker: int, which: list[int], *, orderly: bool, front: bool) -> None:
        tags = self.pick(which)
        stale = self.stale(tags)
        expected = [self.model.requeue(tag, orderly=orderly, front=front) for tag in tags]
        real = self.driver(worker).requeue(tags, orderly=orderly, front=front)
        self.agree_on_tags("hand back", real, expected, stale)

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=recent)
    def dead_letter(self, worker: int, which: int) -> None:
        (tag,) = self.pick([which])
        expected = self.model.dead_letter(tag)
        agree("dead_letter", [self.driver(worker).dead_letter(tag, "q.dead")], answers([expected]))

    # ------------------------------------------------------------------------ sweepers and people

    @precondition(lambda self: self.may_be_due())
    @rule(worker=workers, limit=st.sampled_from([1, 2, 100]))
    def reap(self, worker: int, limit: int) -> None:
        reaped = [each.tag for each in self.driver(worker).reap(limit=limit)]
        agree("reaped", reaped, self.model.reap(limit))

    @precondition(lambda self: any(each.parked for each in self.model.records.values()))
    @rule(worker=workers)
    def a_reaper_looks_at_the_parked(self, worker: int) -> None:
        """All that is held has expired by then."""
        self.time_passes(seconds=PARKED_FOR)
        self.reap(worker=worker, limit=100)

    @precondition(lambda self: self.may_be_due())
    @rule(worker=workers)
    def a_reaper_was_stopped_halfway(self, worker: int) -> None:
        """Only the second of its two scripts runs, long after the first: leases are not its."""
        driver = self.driver(worker)
        driver._sweeps._is_plain_due = True  # as the first one said
        swept = [each.tag for each in driver._sweeps.reap_plain(100, driver._plain)]
        agree("swept", swept, self.model.sweep(100))

    @precondition(lambda self: self.model.held)
    @rule(worker=workers)
    def a_reaper_was_stopped_after_it_listed(self, worker: int) -> None:
        """It listed all that is held, long ago; what it returns of that must be due now."""
        listed = sorted(self.model.index, reverse=True)
        sweeps, tags = self.driver(worker)._sweeps, [tag.encode() for tag in listed]
        reaped = [each.tag for each in sweeps._return_leases(tags)]
        agree("reaped of the listed", reaped, self.model.reap_listed(listed))
        plain = self.driver(worker)._plain.run(tags, sweeps._sweep, sweeps._members)
        agree("swept of the listed", [each.tag for each in plain], self.model.sweep_listed(listed))

    @precondition(lambda self: self.model.held)
    @rule(worker=workers, limit=st.sampled_from([1, 2, 100]))
    def somebody_looks_at_what_is_overdue(self, worker: int, limit: int) -> None:
        """And changes nothing."""
        overdue = [each.tag for each in self.driver(worker).overdue(limit=limit)]
        agree("overdue", overdue, self.model.overdue(limit))

    @precondition(lambda self: self.may_be_due())
    @rule(timeout=st.sampled_from([0, 1, 10, 3600]))
    def a_plain_process_sweeps(self, timeout: float) -> None:
        self.stage.kombu_sweep(timeout)
        self.model.kombu_sweep(timeout)

    @precondition(lambda self: self.model.records or self.model.held)
    @rule(seconds=passing)
    def time_passes(self, seconds: float) -> None:
        self.model.now += seconds
        self.stage.set_clock(self.model.now)

    @precondition(lambda self: self.model.dead)
    @rule(worker=workers, retry=st.booleans(), again=st.booleans())
    def move_a_dead_letter(self, worker: int, *, retry: bool, again: bool) -> None:
        letters: Any = self.driver(worker).dead_letters()
        agree("dead-letter queues", letters.queues(), ["q.dead"])
        letter, message = next(letters.letters("q.dead")), self.model.dead[-1]
        move = letters.retry if retry else letters.purge
        for _ in range(1 + again):
            agree("moved", move(letter), self.model.move_dead_letter(message, retry=retry))

    # ------------------------------------------------------------------------------ plain workers

    @precondition(lambda self: self.model.waiting and not self.plain_holds())
    @rule()
    def a_plain_worker_takes(self) -> None:
        place = self.model.next_place()
        assert place is not None
        tag = self.stage.take_plainly(place[0])
        agree("taken", tag, self.model.take_plainly(place[0]))
        self.plain.append(tag)

    def plain_holds(self) -> bool:
        return any(tag in self.model.held for tag in self.plain)

    @precondition(lambda self: self.plain)
    @rule(which=recent, ack=st.booleans(), requeue=st.booleans())
    def a_plain_worker_settles(self, which: int, *, ack: bool, requeue: bool) -> None:
        tag = self.plain[-1 - which % len(self.plain)]
        self.stage.settle_plainly(tag, ack=ack, requeue=requeue)
        self.model.settle_plainly(tag, requeue=requeue and not ack)

    # --------------------------------------------------------------------------------- invariants

    @invariant()
    def i0_the_server_is_looked_at(self) -> None:
        """Read the server once for all others; they come in the order of their names."""
        self.server = self.stage.view()

    @invariant()
    def i1_no_message_has_two_valid_leases(self) -> None:
        index, records = self.server["index"], self.server["records"]
        leased = [tag for tag in index if tag in records and not tag.startswith("arrival#")]
        valid = [tag for tag in leased if index[tag] > self.model.now]
        most = Counter(tag.split("#")[0] for tag in valid).most_common(1)
        if most and most[0][1] > 1:
            raise Disagreement(f"I1: two valid leases: {valid}")

    @invariant()
    def i2_every_expiry_is_what_was_asked_for(self) -> None:
        expected = self.model.view()
        agree("I2: index", self.server["index"], expected["index"])
        agree("I2: leases", self.server["leases"], expected["leases"])

    @invariant()
    def i4_nothing_else_has_changed(self) -> None:
        expected = self.model.view()
        for part, content in self.server.items():
            agree(f"I4: {part}", content, expected[part])

    @invariant()
    def i4_tokens_grow(self) -> None:
        for message, tokens in self.tokens.items():
            agree(f"I4: tokens of {message}", tokens, sorted(set(tokens)))

    @invariant()
    def i9_a_key_has_no_more_valid_holders_than_its_limit(self) -> None:
        """By what the takers were told, not by the server's own list of holders."""
        index, held = self.server["index"], defaultdict(list)
        for tag, want in self.started.items():
            if want is not None and index.get(tag, 0) > self.model.now:
                held[want.key, want.limit].append(tag)
        for (key, limit), tags in held.items():
            if len(tags) > limit:
                raise Disagreement(f"I9: key {key} is held by {tags}")

    @invariant()
    def i5_every_message_is_in_one_place(self) -> None:
        places = Counter(each.message for texts in self.server["queues"].values() for each in texts)
        places.update(each.message for each in self.server["held"].values())
        places.update(each.message for each in self.server["dead"])
        places.update(each.message for each in self.model.in_hand.values())
        places.update(self.model.completed)
        agree("I5: places", places, Counter(self.published))


def _said(claim: Claim | KeyAnswer) -> tuple[int, str, str]:
    """Return token, verdict and whom that names, as the model does."""
    if isinstance(claim, KeyAnswer):
        return 0, str(claim.verdict), claim.by
    answer = claim.turned_away
    return (claim.token, str(answer.verdict), answer.by) if answer else (claim.token, "", "")
