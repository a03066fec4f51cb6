"""Two real workers, watched from every side while one of them is killed: one play, many views.

Nothing was switched on in the workers but the port: the trace asks them for events.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import urllib.request
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from celery_lease.core.fields import NAMES
from celery_lease.core.stats import label
from celery_lease.observability.metrics import ENDINGS, METRICS, REASONS, Kind
from celery_lease.worker.entries import Ending
from harness import json_log
from harness.monitor import lease_events
from harness.processes import LocalProcess
from harness.setup import Setup
from harness.waiting import eventually, free_port
from harness.workers import QUIET_PEERS, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from harness.brokers import RedisServer

OPTIONS = WorkerOptions(
    module="harness.app_watchdog", concurrency=2, extra=(*QUIET_PEERS, "-I", "harness.json_log")
)
EXTENSION = 3.0
#: All that a query can tell apart.
LABELS = {label for metric in METRICS for label in metric.labels} | {"worker", "le"}
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "celery-lease.json"
SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the play."""

    trace: str  #: its text
    picture: str
    events: list[dict[str, Any]]  #: as a monitor heard them that also keeps Celery's own state
    scrape: str  #: of the worker that lives
    victim: str  #: the task whose worker was killed
    silent: str  #: the task that the watchdog ended
    killed: str  #: a worker's name
    alive: str
    groups: str  #: how the worker that lives answers to another request for events
    lines: list[dict[str, Any]]  #: of both workers' logs, with their fields


@pytest.fixture(scope="module")
def seen(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Play once: a task's worker is killed, another task falls silent in the other."""
    fleet = WorkerFleet(tmp_path_factory.mktemp("observability"))
    url = valkey.fresh_url()
    setup = Setup(url, backend=url).having(lease_extension=EXTENSION)
    try:
        with lease_events(setup.app()) as heard:
            yield play(setup, fleet, heard)
    finally:
        fleet.close()


def play(setup: Setup, fleet: WorkerFleet, heard: Callable[[], list[dict[str, Any]]]) -> Seen:
    ports, log = [free_port(), free_port()], fleet.directory / "log.jsonl"
    options = replace(OPTIONS, env={json_log.ENV: str(log)})
    for worker in [fleet.launch(setup.having(lease_health_port=port), options) for port in ports]:
        worker.wait_ready()
    app, ledger, picture = setup.app(), fleet.ledger, fleet.directory / "trace.svg"
    recorder = record(fleet, "--seconds", "60", "--output", str(picture))
    victim = app.send_task("watchdog.beats", (3.0,)).id
    holder = ledger.wait("start", victim)[0].worker
    (dead,) = [each for each in fleet.workers if each.hostname == holder]
    (alive,) = [each for each in fleet.workers if each.hostname != holder]
    # A worker tells what happened within a second; killed before, it would have told nothing.
    eventually(lambda: [each for each in heard() if each["type"] == "lease-started"], 10)
    dead.kill()
    silent = app.send_task("watchdog.watched", ("blocked", 60.0)).id
    ledger.wait("end", silent)
    ledger.wait("end", victim)
    done = [(victim, "completed"), (silent, "stalled"), (silent, "completed")]
    eventually(lambda: set(done) <= {(e["uuid"], e.get("ending")) for e in heard()}, 10)
    scraped = scrape(ports[fleet.workers.index(alive)])
    recorder.process.send_signal(signal.SIGINT)
    assert recorder.process.wait(20) == 0, recorder.log
    (reply,) = app.control.enable_events(reply=True, destination=[alive.hostname])
    return Seen(
        trace=recorder.log,
        picture=picture.read_text(),
        events=heard(),
        scrape=scraped,
        victim=victim,
        silent=silent,
        killed=dead.hostname,
        alive=alive.hostname,
        groups=reply[alive.hostname]["ok"],
        lines=[json.loads(line) for line in log.read_text().splitlines()],
    )


def record(fleet: WorkerFleet, *options: str) -> LocalProcess:
    """Start ``celery lease trace`` and return it when it has begun."""
    command = [sys.executable, "-m", "celery", "-A", OPTIONS.module, "lease", "trace", *options]
    env = {**fleet.workers[0].env, "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}
    process = LocalProcess(command, fleet.directory / "trace.log", env=env).start()
    return process.wait_log("recording, 2 workers replied")


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def story(seen: Seen, task_id: str) -> list[tuple[str, str]]:
    """Return the events of one task with the node that told, in the order of their times."""
    events = [event for event in seen.events if event["uuid"] == task_id]
    events.sort(key=lambda event: event["timestamp"])
    return [(event["type"], event["hostname"]) for event in events]


def test_events_tell_the_whole_story_of_a_task_whose_worker_was_killed(seen: Seen) -> None:
    """The dead one is silent; who recovers its lease tells for it."""
    events = story(seen, seen.victim)
    events.remove(("lease-recovered", seen.alive))  # the next one may be granted before it is told
    assert events == [
        ("lease-granted", seen.killed),
        ("lease-started", seen.killed),
        ("lease-granted", seen.alive),
        ("lease-started", seen.alive),
        ("lease-ended", seen.alive),
    ]
    (recovered,) = [event for event in seen.events if event["type"] == "lease-recovered"]
    (first, again) = [
        event
        for event in seen.events
        if (event["type"], event["uuid"]) == ("lease-granted", seen.victim)
    ]
    assert recovered["holder"] == first["holder"] != again["holder"]
    assert recovered["token"] == first["token"] < again["token"]


def test_events_tell_of_a_task_that_fell_silent(seen: Seen) -> None:
    """What it did, that it was ended, and that it was run again."""
    kinds = [kind for kind, _ in story(seen, seen.silent)]
    assert kinds[:2] == ["lease-granted", "lease-started"]
    assert kinds.count("lease-stalled") == 1
    assert kinds[-3:] == ["lease-granted", "lease-started", "lease-ended"]


def bars_of(trace: str, task_id: str) -> list[str]:
    """Return the lines below a task's in a trace's text."""
    lines = trace.splitlines()
    at = next(number for number, line in enumerate(lines) if task_id in line)
    rest = lines[at + 1 :]
    return rest[: next((n for n, line in enumerate(rest) if line[:1] != " "), len(rest))]


def test_a_trace_shows_one_bar_a_holder_and_how_each_ended(seen: Seen) -> None:
    """The killed worker's ends as lost, before the other one's begins; no colours in a file."""
    first, second = bars_of(seen.trace, seen.victim)
    assert seen.killed in first
    assert re.search(rf"lost, token \d+: recovered by {seen.alive} \d+\.\d s later$", first)
    assert seen.alive in second
    assert re.search(r"completed, token \d+$", second)
    assert first.rindex("█") < second.index("█")
    stalled, again = bars_of(seen.trace, seen.silent)
    assert re.search(r"stalled, token \d+: silent for [\d.]+ s, blocked in a call", stalled)
    assert "completed" in again
    assert "\x1b" not in seen.trace


def test_its_picture_has_the_same_bars(seen: Seen) -> None:
    """Well-formed, one rectangle for each that ran, in the colour of its end."""
    root = ET.fromstring(seen.picture)  # noqa: S314  (our own)
    runs = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "runs"]
    colours = [rect.get("fill") for rect in runs]
    assert sorted(colours) == sorted(["#c4472d", "#2a78d6", "#9b3a78", "#2a78d6"])
    words = " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    assert all(word in words for word in (seen.victim, seen.silent, seen.killed, seen.alive))


def test_a_trace_leaves_the_workers_as_they_were(seen: Seen) -> None:
    """Without events, as they had been started: asked once more, they begin anew."""
    assert seen.groups == "task events enabled"


def numbers(seen: Seen) -> dict[str, dict[str, float]]:
    """Return the samples of the scrape, by name and by a label's value where one tells them."""
    found: dict[str, dict[str, float]] = {}
    for family in parse(seen.scrape):
        for sample in family.samples:
            assert sample.labels["worker"] == seen.alive
            labels = {**sample.labels, "worker": "", "worker_id": "", "queue": ""}
            labelled = "/".join(filter(None, labels.values()))
            found.setdefault(sample.name, {})[labelled] = sample.value
    return found


def test_the_metrics_of_the_worker_that_lives_agree_with_what_happened(seen: Seen) -> None:
    """It granted the victim once and the silent task twice, and recovered one lease."""
    found = numbers(seen)
    granted = found["celery_lease_granted_total"]
    assert granted == {"watchdog.beats": 1.0, "watchdog.watched": 2.0}
    assert found["celery_lease_started_total"] == granted
    ended = {name: n for name, n in found["celery_lease_ended_total"].items() if n}
    assert {tuple(sorted(name.split("/"))): n for name, n in ended.items()} == {
        ("completed", "watchdog.beats"): 1.0,
        ("completed", "watchdog.watched"): 1.0,
        ("stalled", "watchdog.watched"): 1.0,
    }
    assert found["celery_lease_reaper_recovered_total"] == {"": 1.0}
    assert 0.0 <= found["celery_lease_reaper_stale_duration_seconds_total"][""] < EXTENSION
    assert found["celery_lease_watchdog_stalled_total"] == {"": 1.0}
    assert found["celery_lease_ready"] == {"": 1.0}
    assert found["celery_lease_beats_seen_total"]["watchdog.beats"] >= 3
    assert found["celery_lease_broker_round_trip_seconds_count"][""] >= 1
    assert 0.0 < found["celery_lease_broker_round_trip_seconds_sum"][""] < 5.0


def test_log_lines_of_a_task_tell_under_which_lease_they_were_written(seen: Seen) -> None:
    """A task's own, in its process, and its worker's, by the same fields as the events."""
    granted = [event for event in seen.events if event["type"] == "lease-granted"]
    expected = [
        {"lease": event["lease"], "token": event["token"], "worker": event["holder"]}
        | {"task_id": event["uuid"], "task_name": event["name"]}
        for event in granted
        if event["uuid"] == seen.victim
    ]
    own = [line for line in seen.lines if line["text"] == "work of 3 s begins"]
    assert [{name: line[name] for name in NAMES} for line in own] == expected
    (recovered,) = [line for line in seen.lines if "message returned to queue" in line["text"]]
    assert {name: recovered[name] for name in NAMES} == expected[0]
    (stalled,) = [line for line in seen.lines if "has not beaten for 1" in line["text"]]
    assert stalled["task_id"] == seen.silent
    assert stalled["process"] not in {line["process"] for line in own}
    ready = [line for line in seen.lines if line["text"].endswith(" ready.")]
    assert {line["lease"] for line in ready} == {"-"}


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bcelery_lease_[a-z_]+", expression))


def test_the_dashboard_asks_for_every_metric_and_for_nothing_else(seen: Seen) -> None:
    """By the names that a real worker exports; labels too."""
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [v["definition"] for v in board["templating"]["list"] if "definition" in v]
    exported = set(numbers(seen)) | {"celery_lease_least_remaining_seconds"}  # while a task runs
    exported |= {"celery_lease_keys_parked"}  # while a message is
    named = {name for expression in asked for name in names_in(expression)}
    assert named - exported == set()
    histogram = {m.prometheus_name for m in METRICS if m.kind is Kind.HISTOGRAM}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in named} >= histogram
    current = {m.prometheus_name for m in METRICS if not m.meaning.startswith("Deprecated")}
    assert current - histogram - named == set()
    assert labels_in(asked) - LABELS == set()


def labels_in(expressions: Iterable[str]) -> set[str]:
    every = "\n".join(expressions)
    groups = re.findall(r"by \(([^)]*)\)", every)
    used = {word for group in groups for word in re.split(r",\s*", group)}
    return used | set(re.findall(r"[{,]\s*([a-z]+)\s*[=!]", every))


def test_the_alert_rules_ask_for_what_is_exported(seen: Seen) -> None:
    """By names, labels and values that there are: a rule on none would never fire."""
    page = (DASHBOARD.parents[1] / "observability.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (rules,) = [yaml.safe_load(block)["groups"] for block in blocks if "alert:" in block]
    asked = [rule["expr"] for group in rules for rule in group["rules"]]
    assert len(asked) > 5
    assert {name for each in asked for name in names_in(each)} - set(numbers(seen)) == set()
    assert labels_in(asked) - LABELS == set()
    values = set(re.findall(r'="([^"]*)"', "\n".join(asked)))
    assert values - {*ENDINGS, *REASONS, "unknown"} == set()


def test_a_panel_shows_each_ending_without_an_outcome() -> None:
    """A task process that died among them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    (shown,) = [found[1] for each in expressions if (found := re.search('ending=~"([^"]+)"', each))]
    bad = (Ending.LOST, Ending.PROCESS_DIED, Ending.STALLED, Ending.DEAD_LETTERED)
    assert set(shown.split("|")) == {label(each) for each in bad}


def test_panels_do_not_overlap() -> None:
    """And each says what it shows."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for pos in (panel["gridPos"] for panel in panels)
        for x in range(pos["x"], pos["x"] + pos["w"])
        for y in range(pos["y"], pos["y"] + pos["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert all(panel["title"] and panel["description"] for panel in panels)


def test_a_trace_without_a_worker_or_a_broker_says_so(setup: Setup, tmp_path: Path) -> None:
    """In one line, with the exit code for what is not there."""
    code, text = trace_of(setup, tmp_path)
    assert (code, text.partition(".")[0]) == (69, "no worker with leases replied within 1 s")
    code, text = trace_of(Setup(f"redis://127.0.0.1:{free_port()}/0"), tmp_path)
    assert code == 69
    assert re.fullmatch(r"Error: broker redis://\S+ does not answer: .*", text)


def trace_of(setup: Setup, directory: Path) -> tuple[int, str]:
    options = WorkerOptions(module=OPTIONS.module, extra=QUIET_PEERS)
    fleet = WorkerFleet(directory)
    worker = fleet.launch(setup, options)  # never waited for: only for its environment
    worker.close()
    command = [sys.executable, "-m", "celery", "-A", OPTIONS.module, "lease", "trace", "-s", "1"]
    done = LocalProcess(command, directory / f"{free_port()}.log", env=worker.env).start()
    return done.process.wait(30), done.log.strip()
