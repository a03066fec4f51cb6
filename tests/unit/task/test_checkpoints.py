"""What a checkpoint may hold, what is stored, who is refused, and what a run is told."""

from __future__ import annotations

import inspect
import json
import math
import pickle
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from hypothesis import given, strategies as st

from celery_lease import (
    LeasedTask,
    LeaseError,
    LeaseLost,
    ShutdownRequested,
    ToolContext,
    current_context,
)
from celery_lease.board import BEAT, Board
from celery_lease.core.loss import FLAG_CANCELLED, FLAG_LOST, FLAG_SHUTDOWN
from celery_lease.core.ticket import Ticket
from celery_lease.task.checkpoints import Checkpoints, Superseded, ending, envelope, errors, looking
from celery_lease.task.checkpoints.envelope import LIMIT, pack, unpack
from celery_lease.task.checkpoints.errors import (
    CheckpointError,
    CheckpointTooLarge,
    CheckpointUnavailable,
    CheckpointUnreadable,
)
from celery_lease.task.checkpoints.memory import MemoryStore
from celery_lease.task.checkpoints.stores import FileStore, KeyValueStore, find
from celery_lease.task.current import private_context
from unit import leased_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from unit.leased_runs import Delivery

SAVED = datetime(2026, 1, 2, tzinfo=UTC)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


def packed(value: Any, **about: Any) -> str:
    """Return the stored text of a value."""
    return pack(value, **{"task_id": "id", "task": "t", "token": 7, "saved": SAVED, **about})


class DictBackend:
    """A key-value backend as Celery's are, with one key type and no more than the five methods."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}

    def get_key_for_task(self, task_id: str, key: str = "") -> str:
        return f"prefix-{task_id}{key}"

    def get(self, key: str) -> Any:
        return self.keys.get(key)

    def set(self, key: str, value: Any) -> None:
        self.keys[key] = value

    def delete(self, key: str) -> None:
        del self.keys[key]


@pytest.fixture
def backend() -> DictBackend:
    """A store that outlives the runs of a test."""
    return DictBackend()


@pytest.fixture
def run(backend: DictBackend) -> Callable[..., Checkpoints]:
    """Make the checkpoints of one run of one task."""

    def make(token: int, task: str = "t") -> Checkpoints:
        store = KeyValueStore(backend)
        return Checkpoints("id", task=task, token=token, find=lambda: store)

    return make


def leased(checkpoints: Checkpoints | None, **ticket: Any) -> tuple[ToolContext, Board]:
    """Return a context as in a worker, with its board."""
    board = Board.private()
    slot = board.lend()
    board.allow(slot, math.inf)
    context = ToolContext(
        board, slot, task_id="id", ticket=Ticket.from_dict({"token": 1, **ticket})
    )
    context._start()
    if checkpoints is not None:
        context._checkpoints = checkpoints
    return context, board


class BrokenStore(MemoryStore):
    """A store that does not answer."""

    name = "broken"

    def save(self, *_: object) -> bool:
        raise OSError("no route to host")

    load = save  # type: ignore[assignment]
    forget = save  # type: ignore[assignment]
    retire = save  # type: ignore[assignment]


class SwitchingStore(MemoryStore):
    """Passes each reading on to the next of some stores."""

    def __init__(self, stores: Iterator[MemoryStore]) -> None:
        super().__init__()
        self._stores = stores

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        return next(self._stores).load(task_id, token)


# The envelope.


@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    """What JSON can hold survives packing and unpacking, in ASCII."""
    text = packed(value)
    assert text.isascii()
    assert unpack(text, task_id="id") == ("t", 7, value, {}, SAVED.isoformat())


def test_a_tuple_comes_back_as_a_list() -> None:
    """JSON has no tuples."""
    assert unpack(packed({"range": (1, 2)}), task_id="id").value == {"range": [1, 2]}


def test_the_stored_text_says_version_task_token_and_time() -> None:
    """People can read what lies in their store."""
    assert json.loads(packed({"a": 1})) == {
        "v": 1,
        "status": "CHECKPOINT",
        "task": "t",
        "token": 7,
        "saved": "2026-01-02T00:00:00+00:00",
        "value": {"a": 1},
    }


def test_celerys_reader_of_results_can_look_at_a_checkpoint() -> None:
    """Backends that read before they overwrite find a state there, and no ready one."""
    reader = Celery(set_as_current=False, backend="cache+memory://").backend
    assert reader.decode_result(packed([1]))["status"] == "CHECKPOINT"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (datetime(2026, 1, 2, tzinfo=UTC), "value is of type datetime"),
        ({"at": {"end": SAVED}}, "value['at']['end'] is of type datetime"),
        ([1, (2, {3})], "value[1][1] is of type set"),
        ({"seen": {5: True}}, "value['seen'] has the key 5 of type int"),
        ({None: 1}, "value has the key None of type NoneType"),
        ([math.nan], "value[0] is nan, which is no JSON number"),
        ({"x": -math.inf}, "value['x'] is -inf"),
        (b"bytes", "value is of type bytes"),
    ],
)
def test_what_json_cannot_hold_is_named_with_its_path(value: Any, where: str) -> None:
    """The error tells which part of a large state is wrong, and what to save instead."""
    with pytest.raises(TypeError) as caught:
        packed(value)
    assert where in str(caught.value)
    assert "dict with str keys" in str(caught.value)


def test_a_state_that_contains_itself_is_refused() -> None:
    """A cycle ends in the same clear error, not in a RecursionError."""
    state: list[Any] = []
    state.append(state)
    with pytest.raises(TypeError, match="contains itself"):
        packed(state)


def test_a_state_of_the_largest_size_is_taken() -> None:
    """The limit is of the state's JSON, quotes included."""
    assert unpack(packed("x" * (LIMIT - 2)), task_id="id").value == "x" * (LIMIT - 2)


def test_a_larger_state_is_refused_with_size_and_limit() -> None:
    """The error names both numbers and what to do."""
    with pytest.raises(CheckpointTooLarge) as caught:
        packed("x" * (LIMIT - 1))
    assert (caught.value.size, caught.value.limit) == (LIMIT + 1, LIMIT)
    assert "1,048,577 bytes of JSON, and the limit is 1,048,576" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ('{"v": 1, "value": ', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ("[]", "format is None"),
        ('{"v": 2, "state": {}}', "format is 2 and this version of celery-lease reads format 1"),
        ('{"v": 1, "task": "t", "token": 7}', "incomplete"),
        ('{"v": 1, "task": "t", "token": "x", "value": 1}', "incomplete"),
    ],
)
def test_a_foreign_or_damaged_text_is_one_clear_error(text: str | bytes, reason: str) -> None:
    """It says why, that nothing was changed, and what to do."""
    with pytest.raises(CheckpointUnreadable) as caught:
        unpack(text, task_id="id")
    assert reason in str(caught.value)
    assert "left as it is" in str(caught.value)
    assert "catch CheckpointUnreadable to begin anew" in str(caught.value)


@pytest.mark.parametrize(
    "cls", [each for _, each in inspect.getmembers(errors, inspect.isclass)], ids=str
)
def test_errors_survive_pickling(cls: type[Exception]) -> None:
    """They cross from the task process to the worker and the result backend."""
    arguments = {
        "CheckpointMismatch": ("id", "rows", "reason"),
        "CheckpointTooLarge": ("id", 2, 1),
        "CheckpointUnavailable": ("id", "store", "reason"),
    }
    error = cls(*arguments.get(cls.__name__, ("id", "text")))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (ours)
    assert (type(again), str(again), vars(again)) == (cls, str(error), vars(error))
    assert isinstance(again, LeaseError)


# One run's access, on a key-value store.


def test_the_next_run_restores_what_the_last_one_saved(run: Callable[..., Checkpoints]) -> None:
    """The newest state wins; a run that never saved restores None."""
    assert run(1).restored() is None
    first = run(1)
    first.save({"at": 1})
    first.save({"at": 2})
    assert run(2).restored() == {"at": 2}


def test_restored_is_a_new_object_each_time_and_asks_the_store_once(
    run: Callable[..., Checkpoints], backend: DictBackend
) -> None:
    """A task may change what it got without changing what it gets next."""
    run(1).save({"done": []})
    second = run(2)
    second.restored()["done"].append("a")
    backend.keys.clear()
    assert second.restored() == {"done": []}


def test_own_checkpoints_do_not_change_what_was_restored(run: Callable[..., Checkpoints]) -> None:
    """It stays the state that the run began with."""
    run(1).save("old")
    second = run(2)
    assert second.restored() == "old"
    second.save("new")
    assert second.restored() == "old"


def test_a_former_holder_cannot_save_over_its_successors_state(
    run: Callable[..., Checkpoints],
) -> None:
    """The smaller token is refused, and the state stays."""
    loser = run(1)
    loser.save("old")
    run(2).save("new")
    with pytest.raises(Superseded):
        loser.save("late")
    assert run(3).restored() == "new"


def test_a_former_holder_cannot_read_or_remove_its_successors_state(
    run: Callable[..., Checkpoints],
) -> None:
    """It must not go on from a state that it did not reach, nor end its successor's."""
    run(2).save("new")
    with pytest.raises(Superseded):
        run(1).restored()
    run(1).forget()
    assert run(2).restored() == "new"


def test_a_retry_with_an_equal_or_larger_token_goes_on(run: Callable[..., Checkpoints]) -> None:
    """Tokens need not be consecutive."""
    run(5).save(1)
    run(5).save(2)
    run(90).save(3)
    assert run(90).restored() == 3


def test_success_removes_the_key(run: Callable[..., Checkpoints], backend: DictBackend) -> None:
    """Nothing is left in the store, and removing nothing is no error."""
    holder = run(1)
    holder.save(1)
    assert list(backend.keys) == ["prefix-id.checkpoint"]
    holder.forget()
    holder.forget()
    assert backend.keys == {}


def test_another_task_under_the_same_id_sees_nothing(run: Callable[..., Checkpoints]) -> None:
    """Task.replace keeps the id: a state is for the task that knows how to read it."""
    run(1, "old").save("its own")
    assert run(2, "new").restored() is None


def test_an_unreadable_checkpoint_is_told_at_every_access_and_stays(
    run: Callable[..., Checkpoints], backend: DictBackend
) -> None:
    """Looking at it changes nothing; saving over it is the task's own decision."""
    backend.keys["prefix-id.checkpoint"] = '{"v": 2}'
    holder = run(1)
    for _ in range(2):
        with pytest.raises(CheckpointUnreadable):
            holder.restored()
    assert backend.keys["prefix-id.checkpoint"] == '{"v": 2}'
    holder.save("anew")
    assert run(2).restored() == "anew"


@pytest.mark.parametrize("act", ["restored", "forget", "retire"])
def test_a_silent_store_is_one_kind_of_error(act: str) -> None:
    """Whatever a client library raises, the task sees CheckpointUnavailable with the cause."""
    checkpoints = Checkpoints("id", find=BrokenStore)
    with pytest.raises(CheckpointUnavailable, match="broken did not take the request") as caught:
        getattr(checkpoints, act)()
    assert isinstance(caught.value.__cause__, OSError)


def test_a_store_that_could_not_be_read_is_asked_again() -> None:
    """A failed access is not remembered as an empty one."""
    store = MemoryStore()
    store.save("id", 1, packed("state", task=""))
    stores: Any = iter([BrokenStore(), store])
    checkpoints = Checkpoints("id", find=lambda: SwitchingStore(stores))
    with pytest.raises(CheckpointUnavailable):
        checkpoints.restored()
    assert checkpoints.restored() == "state"


def test_a_time_limit_that_strikes_in_the_store_stays_one() -> None:
    """Authors catch SoftTimeLimitExceeded, wherever the task was when it came."""

    def late() -> Any:
        raise SoftTimeLimitExceeded

    with pytest.raises(SoftTimeLimitExceeded):
        Checkpoints("id", find=late).save(1)


# The context.


def test_without_a_lease_checkpoints_stay_in_the_context() -> None:
    """A direct call can be tested without any store, and leaves nothing behind."""
    context = private_context("id")
    assert context.restored is None
    context = private_context("id")
    context.checkpoint([1])
    assert context.restored == [1]
    assert private_context("id").restored is None


def test_a_checkpoint_is_a_beat_even_if_it_cannot_be_saved() -> None:
    """The task made progress; that the store is down is another matter."""
    context, board = leased(Checkpoints("id", find=BrokenStore))
    board.numbers[context._slot.first + BEAT] = 0.0
    with pytest.raises(CheckpointUnavailable):
        context.checkpoint(1)
    assert 0 <= context.elapsed < 60


@pytest.mark.parametrize("flag", [FLAG_SHUTDOWN, FLAG_CANCELLED])
def test_the_state_is_saved_before_a_wish_to_stop_is_raised(flag: int) -> None:
    """What was handed to checkpoint() is what the next run resumes from."""
    checkpoints = Checkpoints("id")
    context, board = leased(checkpoints)
    board.flag(context._slot, flag)
    with pytest.raises(LeaseError) as caught:
        context.checkpoint({"at": 9})
    assert isinstance(caught.value, ShutdownRequested) == (flag == FLAG_SHUTDOWN)
    assert checkpoints.restored() == {"at": 9}


def test_a_lost_lease_saves_nothing() -> None:
    """Known here already, so the store is not even asked."""
    checkpoints = Checkpoints("id")
    context, board = leased(checkpoints)
    board.flag(context._slot, FLAG_LOST)
    with pytest.raises(LeaseLost):
        context.checkpoint(1)
    assert not checkpoints.used


def test_a_refused_checkpoint_is_a_lost_lease(run: Callable[..., Checkpoints]) -> None:
    """The store knew before the board did; so it is with restored."""
    run(2).save("new")
    context, _ = leased(run(1))
    for act in (lambda: context.checkpoint("late"), lambda: context.restored):
        with pytest.raises(LeaseLost, match="another delivery owns the message"):
            act()


def test_a_task_that_runs_on_without_its_lease_is_not_stopped(
    run: Callable[..., Checkpoints], caplog: pytest.LogCaptureFixture
) -> None:
    """With lease_on_lost="continue" the refusal is one log line, and the new state stays."""
    run(2).save("new")
    context, _ = leased(run(1), on_lost="continue")
    context.checkpoint("late")
    context.checkpoint("later")
    assert context.restored is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert run(3).restored() == "new"


# Which store.


def app_with(backend: str | None, broker: str = "memory://", **conf: Any) -> Any:
    """Return a task of a new app."""
    app = Celery("checkpoints", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(conf)

    def nothing() -> None: ...

    return app.task(base=LeasedTask, name="t")(nothing)


def test_no_place_for_checkpoints_is_one_clear_error() -> None:
    """It names the backend, the broker and what to set."""
    for backend in (None, "rpc://", "cache+memory://"):
        with pytest.raises(CheckpointError) as caught:
            find(app_with(backend), "id")
        assert "checkpoint of task id: no place to keep it: result backend" in str(caught.value)
        assert "broker 'memory' is neither Redis nor pgmq; set result_backend" in str(caught.value)


def test_an_operator_looks_and_changes_nothing(
    backend: DictBackend, run: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who saved it, when, its size and its loops; None where there is none or no store."""
    monkeypatch.setattr(looking, "store_of", lambda *_: KeyValueStore(backend))
    app: Any = SimpleNamespace(backend=None)
    assert looking.look(app, "id") is None
    run(5).save({"done": 3})
    before = dict(backend.keys)
    found = looking.look(app, "id")
    assert found is not None
    assert (found.task, found.token, found.value, found.loops) == ("t", 5, {"done": 3}, ())
    assert found.size == len(next(iter(before.values())))
    assert datetime.fromisoformat(found.saved).tzinfo is not None
    assert backend.keys == before
    backend.keys = dict.fromkeys(before, "no JSON")
    with pytest.raises(CheckpointUnreadable):
        looking.look(app, "id")
    monkeypatch.setattr(looking, "store_of", lambda *_: None)
    assert looking.look(app, "id") is None


def test_a_file_system_backend_keeps_the_old_checkpoint_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery empties the file before it writes: a crash in between must not cost the state."""
    task = app_with(f"file://{tmp_path}")
    store = find(task, "id")
    assert isinstance(store, FileStore)
    assert store.save("id", 1, packed("old", token=1))
    with monkeypatch.context() as broken:
        broken.setattr(task.backend, "set", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            store.save("id", 1, packed("new", token=1))
    held, text = store.load("id", 1)
    assert held
    assert unpack(text or "", task_id="id").value == "old"
    assert store.forget("id", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_else_removed_is_forgotten_too(tmp_path: Path) -> None:
    """The clean-up of expired results may come first."""
    store = find(app_with(f"file://{tmp_path}"), "id")
    assert store.forget("id", 1)


# The end of a task.


def ended(checkpoints: Checkpoints) -> Any:
    """Return what Celery's signals send for a run with these checkpoints."""
    return SimpleNamespace(request=SimpleNamespace(**{ending.ATTRIBUTE: checkpoints}))


def test_a_removal_that_fails_is_a_warning_for_runs_that_used_checkpoints(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The outcome is stored already; a run that never asked for a place is not told of none."""

    def nowhere() -> Any:
        raise CheckpointError("id", "no place to keep it")

    unused = Checkpoints("id", find=nowhere)
    ending._succeeded(ended(unused))
    assert caplog.records == []
    used = Checkpoints("id", find=BrokenStore)
    with pytest.raises(CheckpointUnavailable):
        used.save(1)
    ending._succeeded(ended(used))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(("deliveries", "retries", "stays"), [(1, 0, 1), (2, 0, 0), (1, 1, 0)])
def test_what_an_earlier_run_left_is_removed_by_a_success_that_never_asked(
    backend: DictBackend,
    monkeypatch: pytest.MonkeyPatch,
    deliveries: int,
    retries: int,
    stays: int,
) -> None:
    """Only where there was an earlier run: other tasks' ends cost no I/O."""
    store = KeyValueStore(backend)
    monkeypatch.setattr(ending, "find", lambda *_: store)
    store.save("id", 1, packed("left behind", token=1))
    context, _ = leased(None, token=2, deliveries=deliveries)
    request = SimpleNamespace(retries=retries)
    task: Any = SimpleNamespace(name="t", request=request)
    ending.attach(task, request, context)
    ending._succeeded(task)
    assert len(backend.keys) == stays


def test_what_a_signal_saved_in_memory_does_not_keep_the_body_from_its_store(
    backend: DictBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint before the body has no store yet; the body's is the task's."""
    monkeypatch.setattr(ending, "find", lambda *_: KeyValueStore(backend))
    context, _ = leased(None, token=2)
    context.checkpoint("of a signal")
    request = SimpleNamespace(retries=0)
    task: Any = SimpleNamespace(name="t", request=request)
    ending.attach(task, request, context)
    assert not backend.keys
    assert context.restored is None
    context.checkpoint("of the body")
    assert len(backend.keys) == 1


def test_a_checkpoint_before_the_start_is_stored(
    app: Celery, delivery: Delivery, backend: DictBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hook and body have the same ones, and what the run before it left; success removes them."""
    monkeypatch.setattr(ending, "find", lambda *_: KeyValueStore(backend))
    former = packed("of the run before", token=1, task_id=delivery.task_id)
    KeyValueStore(backend).save(delivery.task_id, 1, former)
    seen: list[Any] = []

    class Hooked(LeasedTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            context = current_context()
            seen.append(context.restored)
            context.checkpoint("of the hook")
            seen.append(KeyValueStore(backend).peek(delivery.task_id))

    @leased_runs.leased(app, base=Hooked, name="t")
    def task(*, context: ToolContext) -> None:
        seen.append(context.restored)

    delivery.trace(task)
    before, stored, body = seen
    assert before == body == "of the run before"
    assert "of the hook" in str(stored)
    assert not backend.keys


def test_threads_that_use_checkpoints_first_at_the_same_time_get_the_same_ones() -> None:
    """Breaks when each has its own: the later save would undo the other's."""
    context, _ = leased(None)
    others = []

    def make(task_id: str) -> Checkpoints:
        context._make_checkpoints = Checkpoints
        others.append(context._checkpoints)  # as by another thread, just now
        return Checkpoints(task_id)

    context._make_checkpoints = make
    assert context._checkpoints is others[0]


def test_a_plain_tasks_end_is_passed_over() -> None:
    """The signals come for every task of the process."""
    ending._succeeded(SimpleNamespace(request=SimpleNamespace()))
    ending._failed(None)


def test_the_limit_is_what_the_docs_say() -> None:
    """The number is in the docstring of checkpoint()."""
    assert envelope.LIMIT == 1024 * 1024
    assert "At most 1 MiB" in (ToolContext.checkpoint.__doc__ or "")
