"""The page in a real browser, over a real broker and workers that are killed."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.app_page import HOSTILE, SAYS
from harness.page import PageServer, browsing, chromium, complaints
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page, Route

    from harness.brokers import RedisServer

pytestmark = pytest.mark.long

MODULE = "harness.app_page"
#: Of windows, in which all pages are looked at.
SIZES = ((1280, 800), (390, 844))
#: Where the pictures of the docs are, and bytes of one at most. They are written there when this is
#: in the environment: WRITE_SCREENSHOTS=1.
DOCS, LARGEST, WRITE = Path(__file__).parents[2] / "docs", 150_000, "WRITE_SCREENSHOTS"

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@dataclass
class Stage:
    """A broker, workers, the page and a browser."""

    broker: RedisServer
    setup: Setup
    fleet: WorkerFleet
    server: PageServer
    browser: Browser
    sent: list[str] = field(default_factory=list)

    def send(self, task: str, *arguments: Any) -> str:
        with self.setup.app() as app:
            self.sent.append(str(app.send_task(task, arguments).id))
        return self.sent[-1]

    def worker(self, concurrency: int = len(SIZES)) -> Worker:
        return self.fleet.launch(self.setup, WorkerOptions(module=MODULE, concurrency=concurrency))

    def at_work(self) -> Worker:
        """Return the worker that lives; tests that end one start another."""
        return next(each for each in self.fleet.workers if each.returncode is None)

    def clear(self) -> None:
        """Leave nothing to the next test: no task that runs or comes back, and a broker.

        Nor one that has a key, or waits for it: a message that is sent while the line moves on may
        overtake one that is woken.
        """
        if self.broker.returncode is not None:
            self.broker.start()
        with self.setup.app() as app:
            if self.sent:
                app.control.revoke(self.sent)
                app.control.broadcast("lease_cancel", arguments={"task_id": self.sent})
            app.control.broadcast("lease_resume")
        self.sent.clear()
        client = self.broker.client(self.setup.database)
        in_line = lambda: client.keys("unacked.holders*") + client.keys("unacked.parked*")  # noqa: E731
        eventually(lambda: not client.llen("celery") and not in_line(), 30, what="no key is in use")


@pytest.fixture(scope="module")
def playing(valkey_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all tests of this module; no two of them run at once."""
    from harness.brokers import RedisServer

    program = chromium() or pytest.skip("chromium is not installed")
    directory = tmp_path_factory.mktemp("page")
    options = {"appendonly": "yes", "appendfsync": "always"}
    with RedisServer(valkey_path, directory / "valkey", options).start() as broker:
        url = broker.fresh_url()
        setup = Setup(url, backend=url).having(
            lease_extension=6, lease_shutdown_timeout=1, worker_prefetch_multiplier=1
        )
        fleet = WorkerFleet(directory)
        with PageServer(setup, MODULE, directory) as server:
            server.start()
            worker = fleet.launch(setup, WorkerOptions(module=MODULE, concurrency=len(SIZES)))
            with browsing(program) as browser:
                worker.wait_ready()
                server.wait_up()
                yield Stage(broker, setup, fleet, server, browser)
        fleet.close()


@pytest.fixture
def stage(playing: Stage) -> Iterator[Stage]:
    """It, as each test finds it, whatever became of the others."""
    yield playing
    playing.clear()


@pytest.fixture
def pages(stage: Stage) -> Iterator[list[Page]]:
    """A wide window and a narrow one; whatever their scripts complain of fails the test."""
    said: list[str] = []
    with ExitStack() as stack:
        opened = []
        for width, height in SIZES:
            size = {"width": width, "height": height}
            context = stack.enter_context(stage.browser.new_context(viewport=size))
            opened.append(page := context.new_page())
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
        yield opened
        assert [text for text in said if "net::ERR" not in text] == []


def row_of(page: Page, task_id: str) -> Locator:
    return page.locator("tbody tr").filter(has=page.locator(f'a[title="{task_id}"]'))


def state(row: Locator) -> Locator:
    return row.locator(".c-state")


def fits(page: Page) -> bool:
    """Whether nothing makes the page wider than its window, once it has its styles."""
    page.wait_for_load_state()
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_task_is_seen_orphaned_run_elsewhere_and_cancelled(
    stage: Stage, pages: list[Page]
) -> None:
    """As it happens, without a reload; at last by a button. Each window follows one of two."""
    first = stage.at_work()
    followed = [(page, stage.send("video.transcode", 300)) for page in pages]
    shown = [(page, row_of(page, task_id)) for page, task_id in followed]
    second = stage.worker()
    for page, row in shown:
        page.goto(stage.server.url)
        expect(state(row)).to_have_text("running")
        expect(row.locator(".c-worker")).to_have_text(first.hostname)
        expect(row.locator(".c-note")).to_have_text("encoding film")
        assert fits(page)
    second.wait_ready()
    first.kill_group()
    for _, row in shown:
        expect(state(row)).to_have_text("orphaned")
        expect(row.locator(".c-note")).to_contain_text("runs again in about")
    for _, row in shown:
        expect(state(row)).to_have_text("running")
        expect(row.locator(".c-worker")).to_have_text(second.hostname)
        expect(row.locator(".c-delivery")).to_have_text("2, 1 lost")
    for (page, row), (_, task_id) in zip(shown, followed, strict=True):
        row.locator(".c-id a").click()
        expect(page.get_by_text("Its last beat was")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("raises TaskCancelled")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        status = page.get_by_role("status").filter(has_text="its next beat raises TaskCancelled")
        expect(status).to_be_visible()
        page.get_by_role("link", name="Back").click()
        expect(row).to_have_count(0)
        said = f"cancel by somebody from 127.0.0.1: video.transcode[{task_id}]"
        assert said in stage.server.log


def test_a_dead_letter_is_shown_and_replayed(stage: Stage, pages: list[Page]) -> None:
    """With what ended it; it runs once more, and dies once more. Each window has its own."""
    ledger = stage.fleet.ledger
    letters = [(page, stage.send("video.publish")) for page in pages]
    for _, task_id in letters:
        ledger.wait("start", task_id)
    for page, task_id in letters:
        link = page.locator(f'a[title="{task_id}"]')
        page.goto(f"{stage.server.url}/dead")
        page.get_by_role("link", name="Look again").click()
        while not link.count():
            page.wait_for_timeout(200)
            page.get_by_role("link", name="Look again").click()
        link.click()
        expect(page.locator("main")).to_contain_text("uploading")
        expect(page.locator("main")).to_contain_text("SIGKILL")
        page.get_by_role("link", name="Dead letters").click()
        page.locator(f'input[value="{task_id}"]').check()
        page.get_by_role("button", name="Replay…").click()
        expect(page.get_by_text("Each returns to the queue it came from")).to_be_visible()
        page.get_by_role("button", name="Replay").click()
        status = page.get_by_role("status").filter(has_text="replayed to queue celery")
        expect(status).to_be_visible()
    for _, task_id in letters:
        ledger.wait("start", task_id, count=2)


def test_a_dead_letter_is_discarded(stage: Stage, pages: list[Page]) -> None:
    """After a page that says so; its task never runs again."""
    page, task_id = pages[0], stage.send("video.publish")
    link = page.locator(f'a[title="{task_id}"]')
    page.goto(f"{stage.server.url}/dead")
    while not link.count():
        page.wait_for_timeout(200)
        page.get_by_role("link", name="Look again").click()
    link.click()
    confirm(page, "Discard", "Each is deleted for good", "discarded")
    assert f"discard by somebody from 127.0.0.1: video.publish[{task_id}]" in stage.server.log
    assert stage.fleet.ledger.count("start", task_id) == 1


def test_a_task_is_looked_at_and_handed_over(stage: Stage, pages: list[Page]) -> None:
    """Its stack is shown; it ends at a beat, and its next run to its end."""
    page, task_id = pages[1], stage.send("video.render", 300)
    stage.fleet.ledger.wait("start", task_id)
    page.goto(f"{stage.server.url}/task?id={task_id}")
    page.get_by_role("link", name="What is it doing?").click()
    expect(page.locator("pre")).to_contain_text("in render")
    assert complaints(page) == []
    assert fits(page)
    page.get_by_role("link", name="Back to the task").click()
    confirm(page, "Hand over", "raises ShutdownRequested", "its next beat raises ShutdownRequested")
    stage.fleet.ledger.wait("end", task_id)
    assert stage.fleet.ledger.count("start", task_id) == 2


def test_a_worker_is_drained_and_resumed(stage: Stage, pages: list[Page]) -> None:
    """It says what it does; what is sent meanwhile waits."""
    page, worker = pages[0], stage.at_work()
    its = page.locator("article").filter(has_text=worker.hostname)
    page.goto(f"{stage.server.url}/workers")
    confirm(page, "Drain", "takes no more messages", f"{worker.hostname}: draining", its)
    page.goto(f"{stage.server.url}/workers")
    expect(its.get_by_role("button", name="Resume…")).to_be_visible()
    waiting = stage.send("video.render", 0)
    confirm(page, "Resume", "takes messages again", f"{worker.hostname}: taking messages", its)
    stage.fleet.ledger.wait("end", waiting)


def confirm(page: Page, verb: str, warning: str, outcome: str, part: Locator | None = None) -> None:
    """Press a button of a part, read what it will do on a page that all can read, and do it."""
    (part or page).get_by_role("button", name=f"{verb}…").click()
    expect(page.locator("main")).to_contain_text(warning)
    assert complaints(page) == []
    assert fits(page)
    page.get_by_role("button", name=verb, exact=True).click()
    expect(page.get_by_role("status").filter(has_text=outcome)).to_be_visible()
    assert complaints(page) == []


def test_a_server_that_keeps_nothing_open_is_asked_again(stage: Stage, pages: list[Page]) -> None:
    """As Django's: each end of the news is none of the server's, until it does not answer."""
    page, asked, said = pages[0], [], set()
    body = "retry: 100\nevent: look\ndata: 0\n\n"

    def answer(route: Route) -> None:
        asked.append(True)
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/news", answer)
    page.goto(stage.server.url)
    while len(asked) < 5:
        said.add(page.locator("#news").text_content())
    assert said == {""}
    # Above the former one, which stays: without any the browser could reach the server in between.
    page.route("**/news", lambda route: route.abort())
    expect(page.locator("#news")).to_have_text("This page's server does not answer.")


def test_a_hostile_task_is_text(stage: Stage, pages: list[Page]) -> None:
    """Its name and its note are read, not run; on the board and on its own page."""
    task_id = stage.send(HOSTILE, 300)
    for page in pages:
        page.goto(stage.server.url)
        row = row_of(page, task_id)
        expect(row.locator(".c-task")).to_have_text(HOSTILE)
        expect(row.locator(".c-note")).to_have_text(SAYS)
        row.locator(".c-id a").click()
        expect(page.locator("h1")).to_contain_text(HOSTILE)
        expect(page).to_have_title(re.compile("^Task"))
        assert fits(page)


def test_a_broker_that_goes_and_comes_back_is_told(stage: Stage, pages: list[Page]) -> None:
    """The page says so above what it knew, and goes on by itself."""
    page = pages[0]
    page.goto(stage.server.url)
    expect(page.locator(".sum")).to_contain_text("1 worker")
    stage.broker.kill()
    stage.broker.wait()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.locator(".sum")).to_contain_text("1 worker")
    stage.broker.start()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1000, 1280])
def test_what_comes_next_is_seen_on_a_window_of_any_width(stage: Stage, width: int) -> None:
    """The note of a row, all links of the header, and times in the reader's zone."""
    held, waits = stage.send("video.render", 300), stage.send("video.render", 300)
    context = stage.browser.new_context(
        viewport={"width": width, "height": 800}, timezone_id="Asia/Tokyo", locale="en-GB"
    )
    page = context.new_page()
    page.goto(f"{stage.server.url}/?state=parked")
    row = row_of(page, waits)
    expect(row.locator(".c-note")).to_have_text("position 1 for key screen")
    shown = "element => element.scrollWidth <= element.clientWidth + 1"
    assert row.locator(".c-note").evaluate(shown)
    assert row.locator(".c-worker").is_visible() is (width > 900)
    assert page.locator(".top nav").evaluate(shown)
    page.goto(f"{stage.server.url}/task?id={held}")
    time = page.locator(".lines time").first
    expect(time).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$|, \d\d:\d\d:\d\d$"))
    utc = time.get_attribute("title") or ""
    assert int((time.text_content() or "").split(":")[0][-2:]) == (int(utc[11:13]) + 9) % 24
    context.close()


def test_every_page_can_be_read_without_eyes_or_mouse(stage: Stage, pages: list[Page]) -> None:
    """Axe finds nothing, light and dark; nothing is wider than the window."""
    task_id = stage.send("video.render", 300)
    waiting = stage.send("video.render", 300)  # for the key
    for page in pages:
        page.goto(stage.server.url)
        expect(state(row_of(page, task_id))).to_have_text("running")
    pages[0].goto(f"{stage.server.url}/keys")
    expect(pages[0].locator("article")).to_contain_text("parked, number 1")
    pages[0].goto(f"{stage.server.url}/?state=parked")
    expect(state(row_of(pages[0], waiting))).to_have_text("parked")
    paths = (
        *("/", f"/task?id={task_id}", "/timeline", "/dead", "/keys", "/workers", "/doctor"),
        *("/?q=nothing", "/?state=parked"),
    )
    for path, page in itertools.product(paths, pages):
        page.goto(stage.server.url + path)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert (path, scheme, complaints(page)) == (path, scheme, [])
        assert fits(page), path


def test_the_pictures_of_the_docs_are_of_this_page(stage: Stage, tmp_path: Path) -> None:
    """Wide and light, narrow and dark; small files. They are not compared: fonts differ."""
    crowded = stage.worker(concurrency=4).wait_ready()
    films = ("sintel", "cosmos", "agent", "spring", "charge")
    tasks = [stage.send("video.transcode", 240 - 30 * n, f"{f}.mp4") for n, f in enumerate(films)]
    for task_id in tasks[:4]:
        stage.fleet.ledger.wait("start", task_id)
    wide = stage.browser.new_page(viewport={"width": 1280, "height": 440})
    narrow = stage.browser.new_page(viewport={"width": 390, "height": 640}, color_scheme="dark")
    for page in (wide, narrow):
        page.goto(stage.server.url)
        expect(page.locator(".rate").first).to_be_visible()
    crowded.kill_group()
    orphaned = wide.locator("td.c-state").filter(has_text="orphaned")
    expect(orphaned.first).to_be_visible()
    wide.screenshot(path=tmp_path / "web-board.png")
    narrow.screenshot(path=tmp_path / "web-narrow.png")
    wide.goto(f"{stage.server.url}/timeline")
    expect(wide.locator("svg a").first).to_be_visible()
    wide.screenshot(path=tmp_path / "web-timeline.png")
    for page in (wide, narrow):
        page.close()
    made = sorted(tmp_path.glob("*.png"))
    assert {picture.name for picture in made} == {each.name for each in DOCS.glob("web-*.png")} or (
        WRITE in os.environ
    )
    assert max(picture.stat().st_size for picture in made) < LARGEST
    for picture in made if WRITE in os.environ else ():
        (DOCS / picture.name).write_bytes(picture.read_bytes())
