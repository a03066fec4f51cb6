"""The machine: actors take turns at one queue, and after each turn server and model must agree.

At every step another worker may act, under a tag that is its own, a former one, or one of which it
never heard that it was granted. Whatever a call of a former holder changes shows as a difference,
for in the model it changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_lease.core.delivery import Answer, Renewal, Terms
from model.lease_model import ARRIVAL, START, LeaseModel, Text
from model.stage import VISIBILITY_TIMEOUT, WORKERS

if TYPE_CHECKING:
    from celery_lease.brokers.redis.attempt import Attempt
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
passing = st.sampled_from([0.25, 1, 5, 10, 20, 40])  # seconds


class Disagreement(AssertionError):
    """The server is not where the model is."""


@dataclass
class Asking:
    """A claim that its asker hears nothing of."""

    attempt: Attempt
    text: Text
    plain: str  # what kombu would record of it
    seconds: float
    arrived: bool = False

    @property
    def may_be_adopted(self) -> bool:
        return bool(self.plain) and not self.arrived


def agree(what: str, real: object, expected: object) -> None:
    """Raise Disagreement unless both are the same."""
    if real != expected:
        raise Disagreement(f"{what}: {real!r}, expected {expected!r}")


def answers(held: list[bool]) -> list[Answer]:
    """Return what a driver must make of the model's answers."""
    return [Answer.HELD if each else Answer.LOST for each in held]


class LeaseMachine(RuleBasedStateMachine):
    """Workers 0 to 2 lease, a plain worker does not; anybody may sweep."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.model = LeaseModel(visibility_timeout=VISIBILITY_TIMEOUT)
        self.stage.clear(START)
        self.published: list[str] = []
        self.nonce = 0
        self.tags: list[str] = []  # of all deliveries that somebody was told of
        self.plain: list[str] = []
        self.asking: list[Asking] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.server = self.stage.view()

    def driver(self, worker: int) -> RedisDriver:
        return self.stage.drivers[worker]

    def may_be_due(self) -> bool:
        """Whether a sweep has something to do; a sweep for nothing comes less often."""
        due = any(score <= self.model.now for score in self.model.index.values())
        return due or (bool(self.model.held) and self.nonce % 2 == 0)

    def may_hold(self) -> bool:
        """Whether there is a tag to use; former holders are not to use up the steps."""
        held = any(tag in self.model.held for tag in self.tags)
        return held or (bool(self.tags) and self.nonce % 3 == 0)

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
    @rule(failed=st.booleans())
    def publish(self, *, failed: bool) -> None:
        """Publish a message, perhaps one that somebody has failed at before: a next loss rests."""
        message = f"m{len(self.published)}"
        self.published.append(message)
        self.stage.publish(message)
        self.model.publish(message)
        if failed and len(self.model.queue) == 1:
            self.deliver(worker=0, seconds=10)
            self.hand_back(worker=0, which=[0], orderly=False, front=False)

    @precondition(lambda self: self.model.queue)
    @rule(worker=workers, seconds=leases)
    def deliver(self, worker: int, seconds: float) -> None:
        asking = self.pop(seconds)
        self.tags.append(asking.attempt.tag)
        self.arrive(asking, worker)

    @precondition(lambda self: self.model.queue)
    @rule(worker=workers, seconds=leases, arrives=st.booleans(), fetched=st.booleans())
    def deliver_without_an_answer(
        self, worker: int, seconds: float, *, arrives: bool, fetched: bool = False
    ) -> None:
        asking = self.fetch(seconds) if fetched else self.pop(seconds)
        self.asking.append(asking)
        if arrives:
            self.arrive(asking, worker)

    @precondition(lambda self: self.model.queue)
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

    @precondition(lambda self: any(not each.arrived for each in self.asking))
    @rule(worker=workers, which=recent)
    def a_claim_arrives_late(self, worker: int, which: int) -> None:
        waiting = [each for each in self.asking if not each.arrived]
        self.arrive(waiting[-1 - which % len(waiting)], worker)

    @precondition(lambda self: self.asking)
    @rule(worker=workers, which=recent)
    def return_unclaimed(self, worker: int, which: int) -> None:
        asking = self.asking[-1 - which % len(self.asking)]
        attempt = asking.attempt
        agree("return", self.driver(worker).return_unclaimed([attempt]), [Answer.HELD])
        self.model.return_unclaimed(attempt.tag, attempt.arrival, asking.text)

    @precondition(lambda self: not self.plain_holds())
    @precondition(lambda self: any(each.may_be_adopted for each in self.asking))
    @rule(worker=workers, which=recent)
    def a_message_without_a_lease_is_adopted(self, worker: int, which: int) -> None:
        waiting = [each for each in self.asking if each.may_be_adopted]
        asking = waiting[-1 - which % len(waiting)]
        arrival, message = asking.attempt.arrival, asking.text.message
        adopted = self.model.adopt(arrival, asking.text)
        answer = self.driver(worker).adopt(arrival, message, asking.plain)
        agree("adopt", [answer], answers([adopted]))
        self.asking.remove(asking)
        self.plain += [message] if adopted else []

    def pop(self, seconds: float) -> Asking:
        self.nonce += 1
        arrived = self.stage.arrive(self.nonce)
        if arrived is None:
            raise Disagreement("nothing arrives, though there is a message")
        attempt, plain = arrived
        return self.asked(attempt, self.model.arrive(attempt.arrival), plain, seconds)

    def fetch(self, seconds: float) -> Asking:
        self.nonce += 1
        attempt = self.stage.fetch(self.nonce)
        return self.asked(attempt, self.model.fetch(attempt.tag), "", seconds)

    def asked(self, attempt: Attempt, text: Text, plain: str, seconds: float) -> Asking:
        popped = (attempt.tag.split("#")[0], attempt.deliveries, attempt.losses)
        agree("popped", popped, (text.message, text.deliveries + 1, text.losses))
        return Asking(attempt, text, plain, seconds)

    def arrive(self, asking: Asking, worker: int) -> None:
        asking.arrived = True
        terms = Terms(seconds=asking.seconds)
        claim = self.driver(worker).claim(asking.attempt, terms, 0.0)
        attempt = asking.attempt
        token = self.model.claim(attempt.tag, attempt.arrival, asking.text, asking.seconds)
        agree("token", claim and claim.token, token)
        if claim is not None:
            self.tokens[asking.text.message].append(claim.token)

    # ----------------------------------------------------------------------------------- holders

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, wanted=renewals)
    def extend(self, worker: int, wanted: list[tuple[int, float, bool]]) -> None:
        each_once = {self.pick([which])[0]: (seconds, late) for which, seconds, late in wanted}
        batch = [Renewal(tag, seconds, late) for tag, (seconds, late) in each_once.items()]
        expected = [self.model.extend(each.tag, each.seconds, late=each.late) for each in batch]
        agree("extend", self.driver(worker).extend(batch), answers(expected))

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=recent, seconds=leases)
    def extend_in_time(self, worker: int, which: int, seconds: float) -> None:
        self.extend(worker=worker, wanted=[(which, seconds, False)])

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=batches)
    def complete(self, worker: int, which: list[int]) -> None:
        tags = self.pick(which)
        expected = [self.model.complete(tag) for tag in tags]
        agree("complete", self.driver(worker).complete(tags), answers(expected))

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=batches, orderly=st.booleans(), front=st.booleans())
    def hand_back(self, worker: int, which: list[int], *, orderly: bool, front: bool) -> None:
        tags = self.pick(which)
        expected = [self.model.hand_back(tag, orderly=orderly, front=front) for tag in tags]
        real = self.driver(worker).hand_back(tags, orderly=orderly, front=front)
        agree("hand back", real, answers(expected))

    @precondition(lambda self: self.may_hold())
    @rule(worker=workers, which=recent)
    def bury(self, worker: int, which: int) -> None:
        (tag,) = self.pick([which])
        expected = self.model.bury(tag)
        agree("bury", [self.driver(worker).bury(tag, "q.dead")], answers([expected]))

    # ------------------------------------------------------------------------ sweepers and people

    @precondition(lambda self: self.may_be_due())
    @rule(worker=workers, limit=st.sampled_from([1, 2, 100]))
    def reap(self, worker: int, limit: int) -> None:
        reaped = [each.tag for each in self.driver(worker).reap(limit=limit)]
        agree("reaped", reaped, self.model.reap(limit))

    @precondition(lambda self: self.may_be_due())
    @rule(worker=workers)
    def a_reaper_was_stopped_halfway(self, worker: int) -> None:
        """Only the second of its two scripts runs, long after the first: leases are not its."""
        swept = [each.tag for each in self.driver(worker)._sweep(100)]
        agree("swept", swept, self.model.sweep(100))

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
        graveyard: Any = self.driver(worker).dead_letters()
        agree("dead-letter queues", graveyard.queues(), ["q.dead"])
        letter, message = next(graveyard.letters("q.dead")), self.model.dead[-1]
        move = graveyard.retry if retry else graveyard.purge
        for _ in range(1 + again):
            agree("moved", move(letter), self.model.exhume(message, retry=retry))

    # ------------------------------------------------------------------------------ plain workers

    @precondition(lambda self: self.model.queue and not self.plain_holds())
    @rule()
    def a_plain_worker_takes(self) -> None:
        tag = self.stage.take_plainly()
        agree("taken", tag, self.model.take_plainly())
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
    def i5_every_message_is_in_one_place(self) -> None:
        places = Counter(each.message for each in self.server["queue"])
        places.update(each.message for each in self.server["held"].values())
        places.update(each.message for each in self.server["dead"])
        places.update(each.message for each in self.model.in_hand.values())
        places.update(self.model.completed)
        agree("I5: places", places, Counter(self.published))
