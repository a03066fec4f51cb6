"""The live table of ``lease top``, driven by Textual's pilot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import pytest
from textual.widgets import DataTable, Input, Static

from celery_lease.cli import live, rows
from celery_lease.cli.live import Story, Top
from celery_lease.cli.story import Facts
from celery_lease.cli.top import Screen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.pilot import Pilot

WIDE, HIGH = 200, 12


def said(number: int, **facts: Any) -> dict[str, Any]:
    """Return a lease as a worker describes it; the one with the least number is held longest."""
    return {
        "task": "proj.work",
        "id": f"{number:08d}-7c41-4b0e-9a52-9f5d1c1e1d11",
        "tag": str(number),
        "state": "running",
        "held_since": 1000.0 + number,
        "beat_age": 1.0,
        "remaining": 20.0,
        "extension": 30.0,
        "progress": {"done": 3.0, "total": 8.0, "note": f"part [{number}]"},
        "deliveries": 1,
        "losses": 0,
        **facts,
    }


@dataclass
class Stage:
    """The table on a terminal of its own, with the leases of one worker."""

    pilot: Pilot[None]
    watch: Screen

    @classmethod
    def run(cls, act: Callable[[Stage], Awaitable[None]], lines: int | None = None) -> None:
        """Show 30 leases, and act."""
        watch = Screen(None)  # type: ignore[arg-type]  # no broker is asked
        watch.collector.heard({"w1@h": [said(each) for each in range(30)]}, watch.clock.now())

        async def main() -> None:
            top = Top(watch, "held", lines)
            async with top.run_test(size=(WIDE, HIGH)) as pilot:
                await pilot.pause()
                await act(cls(pilot, watch))

        asyncio.run(main())

    @property
    def table(self) -> DataTable[Any]:
        return self.pilot.app.screen_stack[0].query_one(DataTable)

    def row(self, at: int) -> list[str]:
        return [str(cell) for cell in self.table.get_row_at(at)]

    def line(self, name: str) -> str:
        return self.pilot.app.screen_stack[0].query_one(name, Static).render_line(0).text.strip()

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait for what comes with an animation, or from a thread."""
        for _ in range(400):
            if holds():
                return
            await self.pilot.pause(0.05)
        assert holds()


def test_the_columns_are_those_of_all_tables_and_the_rows_in_order() -> None:
    """With a bar of the progress; a task's brackets are no markup."""

    async def act(stage: Stage) -> None:
        names = [str(column.label) for column in stage.table.ordered_columns]
        assert names == list(rows.HEADERS)
        row = stage.row(0)
        assert row[:4] == ["proj.work", said(0)["id"], "w1@h", "running"]
        assert row[7:] == ["━" * 10 + " 3/8 (38%)", "part [0]", "1"]
        assert stage.table.row_count == 30
        assert "1 worker, 30 leases: 30 running   by held; q quits" in stage.line("#headline")
        assert not stage.pilot.app.query_one("#more").display

    Stage.run(act)


def test_a_limit_of_lines_leaves_the_others_to_a_count() -> None:
    """As in a pipe."""

    async def act(stage: Stage) -> None:
        assert stage.table.row_count == 5
        assert stage.line("#more") == "and 25 more"

    Stage.run(act, lines=5)


def test_scrolling_shows_what_was_below_and_the_cursor_stays_at_its_lease() -> None:
    """Only rows in sight are written; leases that end before it do not move the cursor's."""

    async def act(stage: Stage) -> None:
        assert stage.row(29)[0] == ""
        await stage.pilot.press("ctrl+end")
        await stage.wait_for(lambda: stage.row(29)[1] == said(29)["id"])
        stage.watch.collector.heard({"w1@h": [said(29), said(40)]}, stage.watch.clock.now())
        await stage.wait_for(lambda: stage.table.row_count == 2)
        await stage.wait_for(lambda: stage.row(stage.table.cursor_row)[1] == said(29)["id"])

    Stage.run(act)


def test_s_sorts_by_the_next_column() -> None:
    """The headline says which."""

    async def act(stage: Stage) -> None:
        await stage.pilot.press("s")
        assert "   by beat; " in stage.line("#headline")

    Stage.run(act)


def test_a_slash_filters_until_escape() -> None:
    """By a text in any column; keys are letters meanwhile, and act again after Enter."""

    async def act(stage: Stage) -> None:
        await stage.pilot.press("slash", *"q", "backspace", *"part", "space", "left_square_bracket")
        await stage.pilot.press(*"17")
        assert [stage.table.row_count, stage.row(0)[1]] == [1, said(17)["id"]]
        await stage.pilot.press("enter")
        assert stage.pilot.app.focused is stage.table
        await stage.pilot.press("escape")
        assert stage.table.row_count == 30
        assert not stage.pilot.app.query_one(Input).display

    Stage.run(act)


@pytest.mark.parametrize("trouble", ["", "broker redis://h does not answer"])
def test_enter_explains_a_lease_until_the_next_key(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the story of ``explain``, or why there is none; control characters are blanks."""

    def facts(
        _app: object, _view: object, _askable: object, task_id: str, _seconds: float
    ) -> Facts:
        if trouble:
            raise click.ClickException(trouble)
        return Facts(task_id=f"{task_id}\x1b", replied=1)

    async def act(stage: Stage) -> None:
        await stage.pilot.press("down", "enter")
        await stage.wait_for(lambda: isinstance(stage.pilot.app.screen, Story))
        await stage.pilot.pause()
        box = stage.pilot.app.screen.query_one(Static)
        text = " ".join(box.render_line(at).text for at in range(box.size.height))
        assert (trouble or f"Nobody knows {said(1)['id']} :") in text
        await stage.pilot.press("escape")
        assert not isinstance(stage.pilot.app.screen, Story)

    monkeypatch.setattr(live, "facts_in_view", facts)
    Stage.run(act)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_q_and_ctrl_c_quit(key: str) -> None:
    """Also while a filter is typed, by Ctrl-C."""

    async def act(stage: Stage) -> None:
        if key == "ctrl+c":
            await stage.pilot.press("slash")
        await stage.pilot.press(key)
        assert not stage.pilot.app.is_running

    Stage.run(act)
