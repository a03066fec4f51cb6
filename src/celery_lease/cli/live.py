"""The live table of ``lease top``, with Textual; importing this module fails without it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, ClassVar

import click
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from celery_lease.cli import rows
from celery_lease.cli.explain import facts_in_view
from celery_lease.cli.paint import aligned, columns, painted
from celery_lease.cli.story import story_of
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from celery_lease.cli.top import Screen
    from celery_lease.view import LeaseRow

#: Seconds between two drawings.
DRAW_INTERVAL = 0.5
KEYS = "q quits, s sorts, / filters, Enter explains"


class Story(ModalScreen[None]):
    """The past, the state and the next step of one task; any of its keys closes it."""

    CSS = "Story { align: center middle } Static { width: 90%; border: round; padding: 0 1 }"
    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "dismiss", "Close")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(self._text, markup=False)


class Top(App[None]):
    """Draws what a watch collects, and explains a row."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { text-style: bold; height: 1 } #more { height: 1; text-style: dim }
    Input { display: none; border: none; height: 1 } DataTable { height: 1fr }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", priority=True),
        ("s", "sort", "Sort"),
        ("/", "filter", "Filter"),
        ("escape", "unfilter", "All"),
    ]

    def __init__(self, watch: Screen, sort: str, lines: int | None) -> None:
        super().__init__()
        self._watch, self._sort, self._lines = watch, sort, lines
        self._shown: Sequence[LeaseRow] = ()
        self._columns: Sequence[tuple[str, int]] = ()
        self._headline, self._more = Static(id="headline", markup=False), Static(id="more")
        self._table: DataTable[Text | str] = DataTable(cursor_type="row")
        self._filter = Input(placeholder="task, id, worker, queue, state, key or note")

    def compose(self) -> ComposeResult:
        yield from (self._headline, self._table, self._more, self._filter)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.exit))
        self._table.focus()
        self.watch(self._table, "scroll_y", self.draw_soon)
        self.set_interval(DRAW_INTERVAL, self.draw)

    def draw_soon(self) -> None:
        """Draw when the table has its new place or size."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the present view; the cursor stays at its lease."""
        view, query, chosen = self._watch.look(), self._filter.value, self._chosen
        found = rows.in_order((each for each in view.all_rows if each.has_text(query)), self._sort)
        self._headline.update(f"{self._watch.headline(view)}   by {self._sort}; {KEYS}")
        self._shown = found[: self._lines]
        more = len(found) - len(self._shown) + view.more_parked
        self._more.update(f"and {more} more")
        self._more.display = more > 0
        self._fill(found)
        tags = [row.tag for row in self._shown]
        if chosen and chosen.tag in tags and tags.index(chosen.tag) != self._table.cursor_row:
            self._table.move_cursor(row=tags.index(chosen.tag))

    @property
    def _chosen(self) -> LeaseRow | None:
        at = self._table.cursor_row
        return self._shown[at] if at < len(self._shown) else None

    def _fill(self, found: Sequence[LeaseRow]) -> None:
        """Write the rows in sight; widths that have grown begin a new table."""
        table, now = self._table, SystemClock().wall().timestamp()
        width, height = table.scrollable_content_region.size
        first = max(0, min(int(table.scroll_y), len(self._shown) - height + 1))
        seen = self._shown[first : first + height]
        texts = [rows.cells(row, now) for row in seen]
        cells = rows.shortened(texts, width - 2, (row.id for row in found))
        self._watch.steady = rows.widths(cells, self._watch.steady)
        wide, bars = columns(self._watch.steady, width - 2)
        if wide != self._columns:
            self._columns = wide
            table.clear(columns=True)
            for name, most in wide:
                table.add_column(aligned(name), width=most)
            self.call_after_refresh(table.scroll_to, y=first, animate=False)
        for _ in range(table.row_count, len(self._shown)):
            table.add_row(*[""] * len(wide))
        for at in range(table.row_count - 1, len(self._shown) - 1, -1):
            table.remove_row(table.coordinate_to_cell_key(Coordinate(at, 0)).row_key)
        names = [name for name, _ in wide]
        for at, (row, each) in enumerate(zip(seen, cells, strict=True), first):
            for place, cell in enumerate(painted(row, each, names, bars=bars)):
                table.update_cell_at(Coordinate(at, place), cell)

    def action_sort(self) -> None:
        names = list(rows.SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self.draw()

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_unfilter(self) -> None:
        self._filter.value, self._filter.display = "", False
        self._table.focus()

    def on_input_changed(self) -> None:
        self.draw()

    def on_input_submitted(self) -> None:
        self._table.focus()

    def on_data_table_row_selected(self) -> None:
        if (row := self._chosen) is not None:
            self._explain(row.id)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _explain(self, task_id: str) -> None:
        watch = self._watch
        view, askable = watch.look(), watch.collector.sources.ask is not None
        try:
            facts = facts_in_view(watch.app, view, askable, task_id, watch.interval)
            lines = list(story_of(facts, SystemClock().wall().timestamp()))
        except click.ClickException as exc:
            lines = [exc.message]
        story = Story("\n".join(map(rows.printable, lines)))
        self.call_from_thread(self.push_screen, story)
