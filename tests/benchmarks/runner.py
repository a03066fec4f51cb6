"""Runs the measurements, one after the other, and writes down what they found."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from benchmarks import (
    backlog,
    beats,
    endings,
    extending,
    idle,
    keyed,
    memory,
    rates,
    reaping,
    throughput,
)
from benchmarks.bench import Bench
from benchmarks.chart import svg
from benchmarks.figures import as_json, markdown, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.figures import Figure

#: The page with the figures, and what is around its table.
PAGE, BEGIN, END = "benchmarks.md", "<!-- figures -->", "<!-- end of figures -->"

MEASUREMENTS: dict[str, Callable[[Bench], Figure | list[Figure]]] = {
    "beat": beats.cost,
    "progress": beats.with_progress,
    "beside": beats.beside_weakincentives,
    "attached": beats.attached_beside_weakincentives,
    "throughput": throughput.ratio,
    "multipliers": throughput.other_multipliers,
    "plain": throughput.plain_beside_leases,
    "backlog": backlog.held,
    "brokers": rates.ratios,
    "keyed": keyed.ratio,
    "wake": keyed.wake,
    "extend": extending.round_trip,
    "takeover": endings.takeover,
    "broker-ends": rates.ends,
    "dead": reaping.dead_leases,
    "hand-back": endings.requeue,
    "memory": memory.added,
    "idle": idle.one,
    "idle-8": idle.eight,
    "busy": idle.busy,
    "shares": idle.four,
}

#: This argument has ratios measured in a minute, and compared with the published ones.
SHORT = "--short"
RATIOS: tuple[Callable[..., Figure | list[Figure]], ...] = (
    throughput.ratio,
    throughput.plain_beside_leases,
    keyed.ratio,
)
#: Rounds of each; as many more, and of another worker, if one seems to be worse.
PAIRS, MORE_PAIRS = 5, 15
#: How much more of its target a figure may use than the published one, or than is allowed.
TOLERANCE = 1.2


def main(names: Sequence[str], directory: Path) -> int:
    """Measure what is named, or all; only a full run is written to ``directory``."""
    if list(names) == [SHORT]:
        return compare(directory)
    if unknown := set(names) - set(MEASUREMENTS):
        _say(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(MEASUREMENTS)}")
        return 2
    with Bench.open() as bench:
        figures = [each for name in names or MEASUREMENTS for each in _measure(name, bench)]
        server = server_version(bench)
    _say(table(figures))
    if not names:
        write(figures, server, directory)
    return int(any(figure.verdict == "MISSED" for figure in figures))


def compare(directory: Path) -> int:
    """Return 1 if a ratio is a fifth worse than its target and than the published figure."""
    kept = json.loads((directory / "benchmark.json").read_text())["figures"]
    published = {each["name"]: each["load"] for each in kept}
    worse: list[str] = []
    with Bench.open() as bench:
        for measure in RATIOS:
            for pairs in (PAIRS, MORE_PAIRS):
                found = measure(bench, pairs=pairs)
                figures = found if isinstance(found, list) else [found]
                _say(table(figures))
                names = [each.name for each in figures if is_worse(each, published.get(each.name))]
                if not names:
                    break
            worse += names
    _say(f"worse than published: {'; '.join(worse) or 'nothing'}")
    return int(bool(worse))


def is_worse(figure: Figure, published: float | None) -> bool:
    """Whether a figure uses clearly more of its target than the published one, and than allowed."""
    return figure.load is not None and figure.load > TOLERANCE * max(1.0, published or 1.0)


def write(figures: Sequence[Figure], server: str, directory: Path) -> None:
    """Write the figures as data, as a picture, and into the page about them."""
    (directory / "benchmark.json").write_text(as_json(figures, server))
    (directory / "benchmark.svg").write_text(svg(figures))
    page = directory / PAGE
    page.write_text(with_table(page.read_text(), figures))


def with_table(page: str, figures: Sequence[Figure]) -> str:
    """Return a page with the figures in place of its table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown(figures)}\n{END}{after}"


def server_version(bench: Bench) -> str:
    """Return the name and version of the broker."""
    with bench.server.client() as client:
        info: dict[str, str] = client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _measure(name: str, bench: Bench) -> list[Figure]:
    started = time.perf_counter()
    figures = MEASUREMENTS[name](bench)
    _say(f"... {name}: {time.perf_counter() - started:.0f} s")
    return figures if isinstance(figures, list) else [figures]
