"""The measurements still measure: each with so few repetitions that no figure means anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks import (
    backlog,
    beats,
    bench as benchmarks_bench,
    brokers,
    endings,
    extending,
    idle,
    keyed,
    rates,
    reaping,
    throughput,
)
from benchmarks.chart import LEFT, UNIT, svg
from benchmarks.figures import Figure, as_json, markdown, table
from benchmarks.runner import (
    BEGIN,
    END,
    MEASUREMENTS,
    PAGE,
    is_worse,
    main,
    server_version,
    with_table,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FIGURES = [
    Figure(name="quick <enough>", unit="ns", target=250, measured=125),
    Figure(name="too slow", unit="s", target=1, measured=2.5, digits=1),
    Figure(name="fast", unit="x", target=0.95, measured=1.9, at_least=True, digits=2),
    Figure(name="absent", unit="x", target=1, measured=None, note="needs another Python"),
]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def bench() -> Iterator[benchmarks_bench.Bench]:
    """Return a server of this module's own."""
    with benchmarks_bench.Bench.open() as opened:
        yield opened


def test_a_figure_says_whether_its_target_was_met() -> None:
    """Breaks when a floor is judged as a ceiling, or a missing figure counts as met."""
    assert [figure.verdict for figure in FIGURES] == ["met", "MISSED", "met", "skipped"]
    assert [figure.load for figure in FIGURES] == [0.5, 2.5, 0.5, None]
    assert FIGURES[2].wanted == ">= 0.95 x"


def test_the_table_shows_target_measurement_and_verdict() -> None:
    """Breaks when a column or the reason for a gap is missing."""
    lines = table(FIGURES).splitlines()
    assert lines[3].split("  ")[0] == "too slow"
    assert lines[3].split()[-1] == "MISSED"
    assert lines[-1] == "absent: needs another Python"


def test_the_picture_has_a_bar_for_every_figure_in_proportion() -> None:
    """Breaks when the picture is no well-formed XML, or a bar does not tell the truth."""
    root = ET.fromstring(svg(FIGURES))  # noqa: S314  (our own)
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("fill")]
    assert [float(bar.get("width", 0)) for bar in bars] == [UNIT / 2, UNIT * 1.25, UNIT / 2]
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert sum(figure.name in texts for figure in FIGURES) == len(FIGURES)
    assert float(next(root.iter(f"{SVG}line")).get("x1", 0)) == LEFT + UNIT


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    """Breaks when the data lacks the versions that its figures belong to."""
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / PAGE
    page.write_text(f"before {BEGIN}\n\nold\n{END} after")
    write(FIGURES, "valkey 9", tmp_path / "docs")
    data = json.loads((tmp_path / "docs" / "benchmark.json").read_text())
    assert data == json.loads(as_json(FIGURES, "valkey 9"))
    assert data["environment"].keys() >= {"python", "cpus", "server", "celery", "kombu"}
    assert [each["verdict"] for each in data["figures"]] == [each.verdict for each in FIGURES]
    assert (tmp_path / "docs" / "benchmark.svg").read_text() == svg(FIGURES)
    assert page.read_text() == f"before {BEGIN}\n\n{markdown(FIGURES)}\n{END} after"


def test_the_page_shows_what_was_measured() -> None:
    """Its table is not of another run than the data and the picture."""
    docs = Path(__file__).parents[2] / "docs"
    kept = json.loads((docs / "benchmark.json").read_text())["figures"]
    figures = [
        Figure(**{name: each[name] for name in Figure.__slots__ if name in each}) for each in kept
    ]
    assert with_table((docs / PAGE).read_text(), figures) == (docs / PAGE).read_text()
    assert svg(figures) == (docs / "benchmark.svg").read_text()


def test_an_unknown_name_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when a typo runs everything, or nothing, without a word."""
    assert main(["beet"], tmp_path) == 2
    said = capsys.readouterr().out
    assert all(name in said for name in MEASUREMENTS)


def test_beats_are_measured_in_a_prefork_task(bench: benchmarks_bench.Bench) -> None:
    """Breaks when the worker of the benchmarks does not start, or its task returns nothing."""
    figure = beats.cost(bench, batches=3, size=100)
    assert figure.measured is not None
    assert 20 < figure.measured < 100_000
    assert figure.details["batches"] == 3


def test_without_weakincentives_the_comparison_is_skipped(
    bench: benchmarks_bench.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a run on a machine without it fails, or claims the target as met."""
    monkeypatch.setenv(beats.OTHER_PYTHON, sys.executable)
    monkeypatch.setattr(beats, "BESIDE", beats.BESIDE.with_name("absent.py"))
    assert beats.beside_weakincentives(bench).verdict == "skipped"


def test_extending_is_measured_as_one_round_trip(bench: benchmarks_bench.Bench) -> None:
    """Breaks when the leases were not all extended, or took more than one call."""
    figure = extending.round_trip(bench, leases=10, rounds=3)
    assert figure.details["calls_each"] == 1
    assert figure.measured is not None
    assert figure.measured > 0


def test_throughput_is_compared_in_pairs(bench: benchmarks_bench.Bench) -> None:
    """Breaks when a queue is not drained by its own worker, or a rate is missing."""
    rate, load, served = throughput.ratio(bench, pairs=2, count=20)
    sides = [rate.details[kind] for kind in ("stock", "ours")]
    assert [len(side["rates"]) for side in sides] == [2, 2]
    assert [len(side["loads"]) for side in sides] == [2, 2]
    assert all(figure.measured is not None for figure in (rate, load, served))


def test_other_rows_of_throughput_are_measured(bench: benchmarks_bench.Bench) -> None:
    """Breaks when the server's or a worker's processor time is not read."""
    rate, served = throughput.plain_beside_leases(bench, pairs=1, count=20)
    assert rate.measured is not None
    assert rate.measured > 0
    assert served.measured is not None
    assert served.measured > 0


def test_beats_with_progress_are_measured(bench: benchmarks_bench.Bench) -> None:
    """Breaks when a task cannot beat with progress, or track a range."""
    for figure in beats.with_progress(bench, batches=3, size=100):
        assert figure.measured is not None
        assert 20 < figure.measured < 100_000


def test_a_worker_holds_a_whole_backlog(
    bench: benchmarks_bench.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a worker without a prefetch limit leaves messages."""
    monkeypatch.setattr(backlog, "SETTLES", 0.1)
    intake, *loads = backlog.held(bench, count=20, still=0.5)
    assert intake.measured is not None
    assert intake.measured > 0
    assert all(figure.measured is not None for figure in loads)


def test_leases_of_dead_workers_are_returned(
    bench: benchmarks_bench.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a copied claim is not one that the reaper returns."""
    monkeypatch.setattr(reaping, "EXTENSION", 9.0)
    monkeypatch.setattr(reaping, "REAPER", 1.0)
    monkeypatch.setattr(reaping, "CLAIMED", 5)
    back, script = reaping.dead_leases(bench, count=20, copying=5.0)
    assert back.measured is not None
    assert back.measured < 60
    assert script.measured is not None


def test_other_brokers_are_measured(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Breaks when a broker refuses the benchmarks' tasks, or a drain has no end."""
    drain = rates.drained(request, "rabbitmq classic", rates.KINDS["leased"], tmp_path, 30)
    assert min(drain.rate, drain.sent) > 0


@pytest.mark.parametrize(
    ("target", "measured", "published", "worse"),
    [(1.2, 1.01, 0.9, False), (1.2, 0.99, 0.9, True), (1.0, 0.70, 1.4, False)],
)
def test_a_ratio_is_worse_if_it_is_beyond_target_and_published_figure(
    target: float, measured: float, published: float, worse: bool
) -> None:
    """Breaks when a machine's usual noise fails, or a regression of a fifth does not."""
    figure = Figure(name="x", unit="x", target=target, measured=measured, at_least=True)
    assert is_worse(figure, published) is worse


def test_keys_are_measured(bench: benchmarks_bench.Bench) -> None:
    """Breaks when a queue of keyed tasks is not drained, or two tasks of a key run at a time."""
    assert keyed.ratio(bench, pairs=1, count=20).measured
    woken = keyed.wake(bench, count=3)
    assert len(woken.details["each"]) == 3
    assert woken.details["each"][0] > 0


def test_idle_workers_are_measured_beside_stock_ones(bench: benchmarks_bench.Bench) -> None:
    """Breaks when a start is not noted, or a leased worker polls."""
    figures = idle.measure(bench, 1, rounds=1, count=5, still=3)
    assert [figure.unit for figure in figures] == ["ms", "ms", "a second", "x stock"]
    assert all(figure.measured is not None for figure in figures)
    assert figures[0].details["stock"] > 0
    (commands,) = figures[2].details["leased"]
    assert commands < 10


def test_reserved_messages_are_waited_for(bench: benchmarks_bench.Bench) -> None:
    """Breaks when the wrong messages are counted as handed back."""
    figure = endings.requeue(bench, reserved=3)
    assert figure.measured is not None
    assert figure.measured < 30


def test_the_server_is_named(bench: benchmarks_bench.Bench) -> None:
    """Breaks when figures cannot be told from those of another server."""
    assert server_version(bench).split()[0] in {"valkey", "redis"}


@pytest.mark.parametrize("kind", [brokers.LEASED, brokers.STOCK])
def test_every_broker_is_measured_in_the_same_way(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: brokers.Kind,
) -> None:
    """A stock worker returns what it reserved when its task has ended, a leased one before."""
    monkeypatch.setattr(brokers, "LEASES", 20)
    monkeypatch.setattr(brokers, "BUSY", 2.0)
    assert brokers.extend(request, "valkey", rounds=1) > 0
    took = brokers.requeue(request, "valkey", kind, tmp_path / "place")
    assert took is not None
    assert took < 30
