"""Redis: what the user of a worker must be allowed, neither less nor more."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from celery_lease import settings
from celery_lease.brokers.redis import permissions, rights as needed
from celery_lease.brokers.redis.doctor import check
from celery_lease.brokers.use import Use
from celery_lease.cli.doctor.case import Case
from harness.brokers import RedisServer
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

pytestmark = pytest.mark.compat

PAGE_LINE = re.compile(r"^ACL SETUSER proj ~.*", re.MULTILINE)
#: Asked by the client library at each connection, and passed over where it is refused.
UNNEEDED = {"client|setname", "client|setinfo", "client|maint_notifications", "client"}


@pytest.fixture(params=["valkey_path", "redis_path"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of each kind, whose users a test may change."""
    binary = request.getfixturevalue(request.param)
    with RedisServer(binary, tmp_path / "server").start() as server:
        yield server


def user_of(server: RedisServer, name: str, *rules: str) -> str:
    """Make a user, and return the URL by which it reaches a database that is not the first."""
    server.client().execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rules)
    return f"redis://{name}:secret@127.0.0.1:{server.port}/2"


def run_line(server: RedisServer, log: str) -> None:
    """Do what a refusal says."""
    for line in re.findall(r"ACL SETUSER .*", log):
        server.client().execute_command(*shlex.split(line.strip().rstrip(".")))


def refusals(server: RedisServer) -> set[str]:
    """Return what a server refused since it was last asked."""
    client = server.client()
    entries: Any = client.execute_command("ACL", "LOG")
    client.execute_command("ACL", "LOG", "RESET")
    flat = [list(sum(each.items(), ())) if isinstance(each, dict) else each for each in entries]
    said = [list(map(_text, each)) for each in flat]
    return {each[each.index("object") + 1] for each in said} - UNNEEDED


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_a_worker_says_what_it_lacks_and_works_with_exactly_that(
    server: RedisServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Refused with the whole list in one go; with it, nothing is refused to worker and client."""
    url = user_of(server, "worker", "+ping", "+select")
    setup = Setup(url, url, {"task_ignore_result": False})
    options = WorkerOptions(module="harness.app_leased", concurrency=2, extra=("-E",))
    refused = fleet.launch(setup, options)
    refused.wait(30)
    assert refused.log.count("worker not started") == 2, refused.log
    assert "Traceback" not in refused.log
    assert "secret" not in refused.log
    run_line(server, refused.log)
    refusals(server)
    workers = fleet.start_many(2, setup, options)
    app = setup.app()
    ids = [app.send_task("any.work", (0.5,)).id, app.send_task("stock.early").id]
    for each in ids:
        eventually(lambda each=each: ledger.count("end", each) == 1)
        eventually(lambda each=each: app.AsyncResult(each).state == "SUCCESS")
    assert len(app.control.inspect(timeout=2.0).ping() or ()) == 2
    for worker in workers:
        worker.term()
        worker.wait(30)
    assert refusals(server) == set()
    app.close()


USE = Use(
    queues=("work", "a*b"),
    others=("work.dead", "grave"),
    patterns=("*.pidbox*", "celeryev.*"),
    published=(("celery.pidbox", ""), ("celeryev", "*")),
    followed=(("celery.pidbox", ""), ("celeryev", "worker.*")),
    by_hand=True,
)


def test_the_doctor_says_what_a_worker_would_and_what_commands_lack(server: RedisServer) -> None:
    """First an error, then a notice, then nothing."""
    url = user_of(server, "worker", "+ping", "+select")
    app = Setup(url).app()
    connection = app.connection_for_read()
    loaded = settings.load(app.conf)
    case = Case(app=app, loaded=loaded, policies={}, driver_type="redis")
    case = replace(case, channel=connection.channel())
    for severity in ("error", "notice", "ok"):
        (found,) = (each for each in check(case) if each.check == "redis.permissions")
        assert found.severity.name.lower() == severity
        run_line(server, found.remedy)
    assert "redis.version" in {each.check for each in check(case)}
    connection.release()
    app.close()


@pytest.fixture
def probed(server: RedisServer) -> Iterator[Any]:
    """A kombu channel of a user who may connect, and no more."""
    url = user_of(server, "worker", "+ping", "+select")
    with Connection(url) as connection:
        yield connection.channel()


def test_each_right_that_is_taken_away_is_named_alone(server: RedisServer, probed: Any) -> None:
    """Commands, keys and channels; looking leaves nothing behind at the server.

    Those that only have idle workers told of messages are named by another question.
    """
    notifying = {
        "+client|caching",
        "+client|id",
        "+client|tracking",
        "+client|unblock",
        "+subscribe",
    }
    notifying.add("&__redis__:invalidate")
    found = permissions.lacking(probed, USE)
    assert found is not None
    run_line(server, found[1])
    assert permissions.lacking(probed, USE) is None
    admin = server.client().execute_command
    rules = [word for word in shlex.split(found[1]) if word[:1] in "+~&"]
    for rule in (each for each in rules if each[0] == "+" and each not in ("+hello", "+ping")):
        admin("ACL", "SETUSER", "worker", f"-{rule[1:]}")
        assert (permissions.lacking(probed, USE) is None) is (rule in notifying), rule
        said = (
            permissions.lacking_for_notifications
            if rule in notifying
            else partial(permissions.lacking, use=USE)
        )(probed)
        assert said is not None, rule
        assert said[1] == found[1] or rule in notifying
        name = rule[1:].upper().replace("|", " ")
        assert said[0] == f"the broker's user worker may not run {name}", rule
        admin("ACL", "SETUSER", "worker", rule)
    for kind in "~&":
        names = [each for each in rules if each[0] == kind]
        for rule in names:
            others = [each for each in names if each != rule]
            reset = "resetkeys" if kind == "~" else "resetchannels"
            admin("ACL", "SETUSER", "worker", reset, *others)
            assert (permissions.lacking(probed, USE) is None) is (rule in notifying), rule
            if kind == "&":
                assert (permissions.lacking_for_notifications(probed) is None) is (
                    rule not in notifying
                ), rule
            admin("ACL", "SETUSER", "worker", rule)
    assert permissions.lacking(probed, USE) is permissions.lacking_for_notifications(probed) is None
    assert server.client(2).dbsize() == 0


def test_a_prefix_is_all_that_a_user_with_one_needs(server: RedisServer) -> None:
    """The keys of other applications on the database stay theirs."""
    url = user_of(server, "worker", "+ping", "+select")
    with Connection(url, transport_options={"global_keyprefix": "app:"}) as connection:
        found = permissions.lacking(connection.channel(), USE)
        assert found is not None
        assert re.findall(r" (~\S+)", found[1]) == ["~app:*"]
        run_line(server, found[1])
        assert permissions.lacking(connection.channel(), USE) is None


def test_a_server_without_a_command_is_told_from_a_user_without_it(
    valkey_path: str, tmp_path: Path
) -> None:
    """As on a server that is too old, or where a provider renamed it."""
    options = {"rename-command": 'ZMSCORE ""'}
    server = RedisServer(valkey_path, tmp_path / "old", options)
    with server.start(), Connection(server.url(1)) as connection:
        found = permissions.lacking(connection.channel(), USE)
    assert found is not None
    assert "may not run, as this server does not know it, ZMSCORE" in found[0]


def test_nothing_is_run_for_who_may_not_begin_a_transaction(
    server: RedisServer, probed: Any
) -> None:
    """Whatever is sent outside of one would be carried out."""
    admin = server.client().execute_command
    admin("ACL", "SETUSER", "worker", "+@all", "~*", "&*", "-multi")
    found = permissions.lacking(probed, USE)
    assert found is not None
    assert found[0].endswith("may not run MULTI")
    assert server.client(2).dbsize() == 0
    admin("ACL", "SETUSER", "worker", "+multi", "-exec", "-hget")
    found = permissions.lacking(probed, USE)
    assert found is not None
    assert found[0].endswith("may not run EXEC, HGET")
    assert server.client(2).dbsize() == 0


def test_a_worker_looks_once_however_often_it_connects(
    server: RedisServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """A few dozen commands in two round trips."""
    setup = Setup(server.url(3))
    fleet.start(setup, WorkerOptions(module="harness.app_leased"))
    admin, app = server.client(), setup.app()

    def looked() -> int:
        stats: Any = admin.info("commandstats")
        return int(stats.get("cmdstat_watch", {}).get("calls", 0))

    assert looked() == 1
    for _ in range(2):
        admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        task = app.send_task("any.work", (0.1,)).id
        eventually(lambda task=task: ledger.count("end", task) == 1, within=30)
    app.close()
    assert looked() == 1


def test_all_that_scripts_call_is_asked_for(probed: Any) -> None:
    """What a script will call in future has to be in the list, too."""
    found = 0
    for path in files("celery_lease.brokers.redis").iterdir():
        if path.name.endswith(".lua"):
            use = replace(USE, by_hand=path.name in {"list.lua", "move_dead_letter.lua"})
            asked = {each[0] for each in needed.rights_at_broker(probed, use).commands}
            called = set(re.findall(r"(?:call\(|\{)'([A-Z]{3,})'", path.read_text()))
            assert called <= asked, path
            found += len(called)
    assert found > 40


def test_the_page_lists_what_is_asked_for(probed: Any) -> None:
    """Each right, for the broker, for commands by hand, and for results."""
    page = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text()
    broker, results = (set(re.findall(r"\+\S+", each)) for each in PAGE_LINE.findall(page))
    use = replace(USE, by_hand=False)
    assert broker == _granted(needed.rights_at_broker(probed, use))
    (extra,) = re.findall(r"`(\+hscan[^`]*)`", page)
    assert broker | set(extra.split()) == _granted(needed.rights_at_broker(probed, USE))
    prefixes = ("celery-task-meta-", "celery-taskset-meta-")
    assert results == _granted(needed.rights_at_results(probed.pool, *prefixes))


def _granted(rights: needed.Rights) -> set[str]:
    return {each for each in rights.line.split() if each[0] == "+"}
