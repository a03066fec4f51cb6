"""Who may look at the page and change something, and what protects those who may."""

from __future__ import annotations

import base64
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from celery_lease.web import create_app, guard
from celery_lease.web.access import hashed
from celery_lease.web.guard import COOKIE, HEADERS, LARGEST
from celery_lease.web.writes import WRITES, Write
from unit.web_pages import ADDRESS, HOST, Still, client, lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_lease.web.site import Site

TOKEN = "a-token-of-some-length"  # noqa: S105  (a test's)
SECRET = "signs forms"  # noqa: S105
HASH = hashed("open sesame")
NAMES = [write.name for write in WRITES]


def as_user(user: str, password: str) -> dict[str, str]:
    """Return the header that a browser sends for a user."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def app() -> Celery:
    return Celery("video", broker="memory://", set_as_current=False)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What was done to which tasks: nothing real."""
    seen: list[Sequence[str]] = []

    def act(_site: Site, names: Sequence[str], _every: object) -> list[tuple[str, bool]]:
        seen.append(names)
        return [(f"{name} was told\nWARNING forged", name != "bad") for name in names]

    made = [
        Write(name=name, verb="Do", thing="task", back="", warning="It is done.", act=act)
        for name in NAMES
    ]
    monkeypatch.setattr("celery_lease.web.app.WRITES", made)
    return seen


@pytest.fixture
def browser(done: list[Sequence[str]]) -> Iterator[TestClient]:
    assert done == []
    with client(Still([lease()]), secret=SECRET) as made:
        made.get("/")
        yield made


def form(browser: TestClient, **fields: Any) -> dict[str, Any]:
    """Return what a form of this browser's pages sends."""
    return {"csrf": guard._token(SECRET.encode(), browser.cookies[COOKIE]), **fields}


@pytest.mark.parametrize("path", ["/", "/static/lease.css", "/nowhere", "/do/cancel"])
@pytest.mark.parametrize("host", [HOST, "http://evil.example"])
def test_every_answer_carries_the_policy(path: str, host: str) -> None:
    """Pages, files, errors and refusals: no script of others, no frame around it."""
    answer = TestClient(create_app(app(), watch=Still()), base_url=host).get(path)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("host", "options", "status"),
    [
        ("127.0.0.1:5556", {}, 200),
        ("localhost:80", {}, 200),
        ("[::1]:5556", {}, 200),
        ("evil.example", {}, 400),
        ("127.0.0.1.evil.example", {}, 400),
        ("203.0.113.9:5556", {}, 400),
        ("", {}, 400),
        ("[", {}, 400),
        ("ops.example", {"hosts": ["ops.example"], "no_auth": True}, 200),
        ("evil.example", {"hosts": ["ops.example"], "no_auth": True}, 400),
        ("203.0.113.9:5556", {"hosts": ["ops.example"], "no_auth": True}, 200),
        ("anything.example", {"hosts": ["*"], "no_auth": True}, 200),
    ],
)
def test_the_page_answers_by_its_own_names_alone(
    host: str, options: dict[str, Any], status: int
) -> None:
    """A name of somebody else's that leads here is DNS rebinding."""
    browser = client(Still(), **options)
    assert browser.get("/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hosts": ["ops.example"]}, "anybody could use it"),
        ({"hosts": ["*"]}, "anybody could use it"),
        ({"auth": "ada"}, "not USER:HASH"),
        ({"auth": "ada:open sesame"}, "not USER:HASH"),
        ({"auth_token": "short"}, "16 at least"),
        ({"auth_token": ""}, "16 at least"),
    ],
)
def test_what_would_let_anybody_in_is_refused_where_it_is_made(
    options: dict[str, Any], said: str
) -> None:
    """With what to do instead."""
    with pytest.raises(ValueError, match=said):
        create_app(app(), **options)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (as_user("ada", "open sesame"), 200),
        (as_user("ada", "open"), 401),
        (as_user("eve", "open sesame"), 401),
        (as_user("", ""), 401),
        (as_user("anybody", TOKEN), 200),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic %%%"}, 401),
        ({"Authorization": "Digest x"}, 401),
    ],
)
def test_who_is_not_known_sees_nothing(headers: dict[str, str], status: int) -> None:
    """No page, no JSON, no file; a browser asks by itself."""
    browser = client(Still([lease()]), auth=f"ada:{HASH}", auth_token=TOKEN)
    for path in ("/", "/board.json", "/static/lease.js"):
        answer = browser.get(path, headers=headers)
        assert answer.status_code == status
        if status == 401:
            assert answer.headers["www-authenticate"].startswith("Basic")
            assert "video" not in answer.text


def test_no_secret_is_in_a_page_or_a_log(
    caplog: pytest.LogCaptureFixture, done: list[Sequence[str]]
) -> None:
    """Neither the token nor the hash, nor the secret that signs forms."""
    caplog.set_level(logging.DEBUG)
    browser = client(Still([lease()]), auth=f"ada:{HASH}", auth_token=TOKEN, secret=SECRET)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    said = browser.get("/", headers=headers).text
    said += browser.post("/do/cancel", data=form(browser, id="x"), headers=headers).text
    said += browser.post("/do/cancel", data={"id": "x"}, headers=headers).text
    said += caplog.text
    assert done == []
    assert not [secret for secret in (TOKEN, HASH, HASH.split(":")[2], SECRET) if secret in said]


@pytest.mark.parametrize("name", NAMES)
def test_a_write_is_confirmed_first(
    name: str, browser: TestClient, done: list[Sequence[str]]
) -> None:
    """On a page that says what will happen; the form there does it."""
    asked = browser.post(f"/do/{name}", data=form(browser, id=["a", "b", "a"]))
    assert (asked.status_code, done) == (200, [])
    assert "It is done." in asked.text
    assert "2 tasks?" in asked.text
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.text)
    data: dict[str, list[str]] = {}
    for field, value in fields:
        data.setdefault(field, []).append(value)
    assert browser.post(f"/do/{name}", data=data).status_code == 200
    assert done == [["a", "b"]]


@pytest.mark.parametrize(
    ("fields", "headers", "status"),
    [
        ({"csrf": "", "id": "a"}, {}, 403),
        ({"csrf": "0" * 64, "id": "a"}, {}, 403),
        ({"csrf": "ä", "id": "a"}, {}, 403),
        ({"id": "a"}, {"Origin": "https://evil.example"}, 403),
        ({"id": "a"}, {"Origin": "null"}, 403),
        ({"id": "a"}, {"Sec-Fetch-Site": "cross-site"}, 403),
        ({"id": "a"}, {"Sec-Fetch-Site": "same-site"}, 403),
        ({"id": "a"}, {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"id": "a" * LARGEST}, {}, 403),
        ({}, {}, 400),
    ],
)
def test_a_forged_write_changes_nothing(
    browser: TestClient,
    done: list[Sequence[str]],
    fields: dict[str, str],
    headers: dict[str, str],
    status: int,
) -> None:
    """From another site, with no token or another browser's."""
    data = {**form(browser), "confirmed": "yes", **fields}
    assert browser.post("/do/cancel", data=data, headers=headers).status_code == status
    assert bool(done) is (status == 200)


def test_a_token_is_of_one_browser(browser: TestClient, done: list[Sequence[str]]) -> None:
    """Another one's is of no use."""
    other = client(Still(), secret=SECRET)
    other.get("/")
    data = form(other, id="a", confirmed="yes")
    assert browser.post("/do/cancel", data=data).status_code == 403
    assert done == []


def test_the_cookie_stays_with_the_page() -> None:
    """No script reads it, no other site's request carries it."""
    given = client(Still()).get("/").headers["set-cookie"]
    assert "HttpOnly" in given
    assert "SameSite=Strict" in given
    assert "Secure" not in given
    secure = TestClient(create_app(app(), watch=Still()), base_url="https://127.0.0.1")
    assert "Secure" in secure.get("/").headers["set-cookie"]


def test_each_write_is_logged_with_who_and_what(
    caplog: pytest.LogCaptureFixture, done: list[Sequence[str]]
) -> None:
    """One line each, whatever is in it; a refusal too."""
    browser = client(
        Still(), hosts=["*"], no_auth=True, user=lambda _: "ada", secret=SECRET, auth=None
    )
    browser.get("/")
    browser.post("/do/cancel", data=form(browser, id=["good", "bad"], confirmed="yes"))
    browser.post("/do/drain", data={"id": "x"})
    assert done == [["good", "bad"]]
    assert [record.getMessage() for record in caplog.records if "lease" in record.name] == [
        "cancel by ada from testclient: good was told WARNING forged",
        "cancel by ada from testclient: not done: bad was told WARNING forged",
        "drain refused, from testclient: its form is too old: go back, load the page again and "  # noqa: ISC004
        "repeat it",
    ]


def test_read_only_has_no_button_and_no_route_that_writes(done: list[Sequence[str]]) -> None:
    """Not even a hidden one."""
    browser = client(Still([lease()]), read_only=True, secret=SECRET)
    assert 'method="post"' not in browser.get("/").text
    for name in NAMES:
        answer = browser.post(f"/do/{name}", data=form(browser, id="a", confirmed="yes"))
        assert answer.status_code == 404
    for path in ("/", "/dead", "/workers", "/doctor", "/task", "/timeline"):
        assert browser.post(path, data=form(browser)).status_code == 405
    assert done == []


@pytest.mark.parametrize("prefix", ["", "/ops", "/ops/leases"])
def test_every_link_stays_below_the_prefix(prefix: str) -> None:
    """Wherever it is mounted, and each leads somewhere."""
    watch = Still([lease()])
    outer = Starlette(routes=[Mount(prefix or "/", create_app(watch.app, watch=watch))])
    browser = TestClient(outer, base_url=HOST)
    text = browser.get(f"{prefix}/").text
    links = set(ADDRESS.findall(text)) - {""}
    assert len(links) > 8
    assert {link for link in links if not link.startswith(f"{prefix}/")} == set()
    files = [link for link in links if "/static/" in link]
    assert [browser.get(link).status_code for link in files] == [200] * len(files)
    assert f'data-news="{prefix}/news"' in text
