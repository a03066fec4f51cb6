"""The tables of ``docs/capacity.md``, made of what was measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from growth.measure import costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from growth.measure import Point
    from growth.traffic import Idle, Messages

PAGE = "capacity.md"
NAMES = {
    "valkey": "Redis",
    "pgmq": "pgmq",
    "rabbitmq classic": "RabbitMQ, classic",
    "rabbitmq quorum": "RabbitMQ, quorum",
}
#: The brokers of the arithmetic: with what its leases and idle workers were measured, and messages.
PLANS = {"valkey": "valkey", "pgmq": "pgmq", "rabbitmq classic": "rabbitmq quorum"}
BUSY = """\
What waits for a processor does not count, but other work takes the processor's caches, and makes
it longer. These figures were measured on a machine with two processors for which 10 to 30 other
processes waited: they are rather too high. For the same reason there are no lags here, and no
messages a second of a worker.
"""
QUIET = """\
Messages and leases were measured on a machine with two processors that did nothing else, and idle
workers beside other work.
"""
#: Fewer leases than this are lost in the noise of the server's memory.
MANY = 1000
#: The share of a processor that is planned with, and seconds between two looks of a keeper.
SHARE, LOOK = 0.5, 0.45
#: More leases than any server has.
ENDLESS = 1e9
#: What is planned: workers, leases, and seconds between two extensions of a lease.
WORKERS, LEASES, INTERVAL = 10_000, 1_000_000, 60
SERVER = "server, % of a processor"
DURATIONS = {"an hour": 3600, "a minute": 60}


def put(page: str, tables: dict[str, str]) -> str:
    """Return a page with the tables between their marks."""
    for mark, table in tables.items():
        before, begin, rest = page.partition(f"<!-- {mark} -->\n")
        _, end, after = rest.partition(f"<!-- /{mark} -->")
        if not begin or not end:
            raise ValueError(f"{mark} is not on the page")
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def tables(
    points: Sequence[Point], messages: Sequence[Messages], idle: Sequence[Idle]
) -> dict[str, str]:
    """Return all tables of the page, by their marks."""
    planned = [Plan(broker, points, messages, idle) for broker in PLANS]
    quiet = all(each.lag is not None for each in points if each.renewals)
    return {
        "how": QUIET if quiet else BUSY,
        "carries": carries(planned),
        "leases": of_leases(points),
        "messages": of_messages(messages),
        "idle": of_idle(idle),
        "arithmetic": arithmetic(planned),
    }


def of_leases(points: Sequence[Point]) -> str:
    lags = any(point.lag is not None for point in points)
    head = [
        "broker",
        "workers",
        "leases each",
        "calls/s",
        "extensions/s",
        "server, % of a processor",
    ]
    head += ["keeper, % each", "bytes a lease", *["lag, 99.9 %, s"] * lags]
    rows = [
        [
            NAMES[each.broker],
            f"{each.workers}",
            f"{each.leases:,}",
            f"{each.calls:.1f}",
            f"{each.renewals:,.1f}",
            f"{each.server_cpu:.2f}",
            f"{each.keeper_cpu:.1f}",
            f"{each.bytes_each:,.0f}" if each.bytes_each and each.all_leases >= MANY else "",
            *["" if each.lag is None else f"{each.lag:.2f}"] * lags,
        ]
        for each in points
    ]
    return _table(head, rows)


def of_messages(messages: Sequence[Messages]) -> str:
    rates = any(each.rate is not None for each in messages)
    head = [
        "broker",
        "tasks",
        "sent, µs",
        "delivered and ended, µs",
        "messages/s at half a processor",
    ]
    head += ["messages/s of one worker"] * rates
    rows = [
        [
            NAMES[each.broker],
            each.kind,
            f"{each.sent:,.0f}",
            f"{each.served:,.0f}",
            f"{SHARE * 1e6 / (each.sent + each.served):,.0f}",
            *["" if each.rate is None else f"{each.rate:,.0f}"] * rates,
        ]
        for each in messages
    ]
    return _table(head, rows)


def of_idle(idle: Sequence[Idle]) -> str:
    head = [
        "broker",
        "worker",
        "server, % of a processor",
        "connections",
        "memory at the server, kB",
    ]
    rows = [
        [
            NAMES[each.broker],
            each.kind,
            f"{each.cpu:.3f}",
            f"{each.connections:.1f}",
            f"{each.memory:,.0f}",
        ]
        for each in idle
    ]
    return _table(head, rows)


class Plan:
    """The costs of one broker."""

    def __init__(
        self,
        broker: str,
        points: Sequence[Point],
        messages: Sequence[Messages],
        idle: Sequence[Idle],
    ) -> None:
        own = [each for each in points if each.broker == broker]
        self.name = NAMES[PLANS[broker]]
        self.fixed, self.call, self.extension = costs(own)
        (message,) = [m for m in messages if m.kind == "leased" and m.broker == PLANS[broker]]
        (self.idle,) = [i for i in idle if i.kind == "leased" and i.broker == broker]
        self.message = message.sent + message.served
        self.bytes_each = max(own, key=lambda point: point.all_leases).bytes_each

    def leases(self, workers: int, interval: float) -> float:
        """Return how many leases need :data:`SHARE` of a processor."""
        low, high = 0.0, 1e12
        while high - low > 1:
            middle = (low + high) / 2
            used = self.extending(workers, middle / interval)
            low, high = (middle, high) if used < SHARE else (low, middle)
        return low

    def extending(self, workers: int, extensions: float) -> float:
        """Return the processors that so many extensions a second take."""
        return (self.call * calls(workers, extensions) + self.extension * extensions) / 1e6


def calls(workers: int, extensions: float) -> float:
    """Return the calls a second: one for each extension, but at most one for each look."""
    return min(extensions, workers / LOOK)


def carries(plans: Sequence[Plan]) -> str:
    """Return what half of a processor carries, of one kind of load at a time."""
    rows: dict[str, Callable[[Plan], str]] = {
        "fixed, % of a processor": lambda plan: f"{plan.fixed:.2f}",
        "a call, µs": lambda plan: f"{plan.call:.0f}",
        "an extension more in a call, µs": lambda plan: f"{plan.extension:.1f}",
        "leased messages a second": lambda plan: about(SHARE * 1e6 / plan.message),
        "leases of 64 workers": lambda plan: about(plan.leases(64, INTERVAL)),
        "leases of 1,000 workers": lambda plan: about(plan.leases(1000, INTERVAL)),
        "idle workers": lambda plan: about(SHARE * 100 / max(plan.idle.cpu, 0.001)),
    }
    head = ["", *(plan.name for plan in plans)]
    return _table(head, [[name, *map(cell, plans)] for name, cell in rows.items()])


def about(number: float) -> str:
    """Return a number with the two digits that are measured well enough."""
    return f"{float(f'{number:.1e}'):,.0f}" if number < ENDLESS else "not limited by this"


def arithmetic(plans: Sequence[Plan]) -> str:
    """Return what :data:`WORKERS` and :data:`LEASES` take, with the formulae."""
    return "\n".join(line for plan in plans for line in _worked(plan)).strip()


def _worked(plan: Plan) -> Iterator[str]:
    extensions = LEASES / INTERVAL
    asked = calls(WORKERS, extensions)
    extending = plan.extending(WORKERS, extensions)
    waiting = WORKERS * plan.idle.cpu / 100
    yield f"**{plan.name}**\n"
    rows = [
        [
            "extensions",
            f"{plan.call:.0f} µs x {asked:,.0f} + {plan.extension:.1f} µs x {extensions:,.0f}",
            f"{extending:.2f} processors",
        ],
        ["idle workers", f"{WORKERS:,} x {plan.idle.cpu:.3f} %", f"{waiting:.2f} processors"],
    ]
    for name, seconds in DURATIONS.items():
        rate = LEASES / seconds
        used = rate * plan.message / 1e6
        total = extending + waiting + used
        servers = math.ceil(total / SHARE)
        rows.append(
            [
                f"messages, tasks of {name}",
                f"{rate:,.0f}/s x {plan.message:.0f} µs",
                f"{used:.2f} processors; with the first two rows {total:.1f}: half of {servers}",
            ]
        )
    connections = WORKERS * plan.idle.connections
    rows.append(
        ["connections", f"{WORKERS:,} x {plan.idle.connections:.1f}", f"{connections:,.0f}"]
    )
    memory = WORKERS * plan.idle.memory / 1e6
    rows.append(
        ["memory of connections", f"{WORKERS:,} x {plan.idle.memory:.0f} kB", f"{memory:.1f} GB"]
    )
    if plan.bytes_each:
        size = LEASES * plan.bytes_each / 1e9
        rows.append(["leases", f"{LEASES:,} x {plan.bytes_each:,.0f} bytes", f"{size:.1f} GB"])
    yield _table(["what", "formula", "takes"], rows, left=3) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))
