"""What the pages in docs/ say is true of the code."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import operator
import re
import runpy
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import celery_lease
from celery_lease import settings
from celery_lease.cli import lease
from celery_lease.settings import LeaseConfigError
from celery_lease.settings.table import PREFIX
from celery_lease.testing import plugin
from unit.settings_reference import reference

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CALIBRATION = (DOCS / "calibration.md").read_text()

#: Values that rules between settings are tried with, around each other's bounds.
TRIED = (1, 9, 10, 10.5, 30, 31, 60, 61, 99, 100, 150, 300)


def between(text: str, mark: str) -> str:
    """Return what stands between two marks of a page."""
    return text.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- /{mark} -->")[0]


def blocks(text: str, language: str = "python") -> list[str]:
    """Return the code blocks of a page."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def prose(text: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def rows(text: str) -> list[list[str]]:
    """Return the cells of a page's tables, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not set(row[0]) <= set("- :")]


def slug(title: str) -> str:
    """Return the anchor of a heading, as mkdocs makes it."""
    plain = re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def test_the_settings_table_is_the_one_in_the_code() -> None:
    """Names, defaults and meanings; write ``reference()`` between the marks to mend it."""
    page = (DOCS / "settings.md").read_text()
    assert between(page, "settings").strip() == reference().strip()


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    """And no other."""
    names = re.findall(
        r"^::: celery_lease\.(?:\w+\.)*(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE
    )
    assert sorted(names) == sorted(celery_lease.__all__)


NAMED = re.findall(r"`([a-z_.]+):([A-Za-z_.]+)`", (DOCS / "architecture.md").read_text())


@pytest.mark.parametrize(("module", "path"), sorted(set(NAMED)), ids=":".join)
def test_what_the_architecture_names_is_there(module: str, path: str) -> None:
    """Functions, classes and methods, by module and qualified name."""
    assert operator.attrgetter(path)(importlib.import_module(f"celery_lease.{module}"))


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that is not there is found by nobody."""
    pages = re.findall(
        r"^ +- [^:\n]+: (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE
    )
    assert sorted(pages) == [page.name for page in PAGES]


def test_the_site_has_five_groups_search_versions_and_two_themes() -> None:
    """And the API, made of the docstrings."""
    config = (DOCS.parent / "mkdocs.yml").read_text()
    groups = config.partition("\nnav:\n")[2].partition("\nextra:\n")[0]
    assert len(re.findall(r"^  - [\w-]+:$", groups, re.MULTILINE)) == 5
    for part in ("  - search\n", "  - mkdocstrings:\n", "provider: mike", "scheme: slate"):
        assert part in config


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Files and anchors, within docs/ and outside of it."""
    missing = []
    for link in re.findall(r"\]\((?!https?:)([^) ]+)[^)]*\)", prose(page.read_text())):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            missing.append(link)
        elif anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            if anchor not in map(slug, titles):
                missing.append(link)
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "README.md"], ids=lambda page: page.stem)
def test_links_to_other_sites_are_well_formed(page: Path) -> None:
    """Over TLS; an issue has the project and the number of its text. CI asks the sites weekly."""
    for text, link in re.findall(r"\[([^\]]+)\]\((https?:[^) ]+)\)", prose(page.read_text())):
        assert re.fullmatch(r"https://[a-z\d-]+(\.[a-z\d-]+)+(/[\w.~#=&?/%-]*)?", link), link
        if issue := re.fullmatch(r"([\w-]+) #(\d+)", text):
            assert re.search(rf"/{issue[1]}\b.*/(issues|pull)/{issue[2]}$", link), (text, link)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_are_python_and_import_what_exists(page: Path) -> None:
    """A renamed class is noticed."""
    for block in blocks(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "celery_lease":
                assert {name.name for name in node.names} <= set(celery_lease.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_that_are_named_exist(page: Path) -> None:
    """A name in backticks that looks like a setting is one, or a remote control command."""
    known = {setting.name for setting in settings.SETTINGS}
    commands = {
        "lease_drain",
        "lease_resume",
        "lease_state",
        "lease_about",
        "lease_cancel",
        "lease_hand_over",
        "lease_stack",
        "lease_consumer",
    }
    named = set(re.findall(r"`(lease_[a-z_]+)\b", page.read_text()))
    assert named - known - commands - FROM_ELSEWHERE.get(page.stem, set()) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_in_examples_exist(page: Path) -> None:
    """Assigned, given as a keyword or set on ``app.conf``, also with Django's prefix."""
    known = {setting.name for setting in settings.SETTINGS}
    named: set[str] = set()
    for block in blocks(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.keyword) and node.arg:
                named.add(node.arg)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                named.add(ast.unparse(node).rpartition(".")[2])
    ours = {name.removeprefix("CELERY_").lower() for name in named}
    assert {name for name in ours if name.startswith(PREFIX)} - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    """What stands after ``celery -A proj lease``."""
    for line in re.findall(r"celery -A \w+ lease ([a-z][^`\n#|]*)", page.read_text()):
        words = line.split()
        assert words[0] in lease.commands, line
        command = lease.commands[words[0]]
        subcommands = getattr(command, "commands", {})
        if subcommands and len(words) > 1 and words[1].isalpha():
            assert words[1] in subcommands, line
            command = subcommands[words[1]]
        known = {option for each in command.params for option in each.opts + each.secondary_opts}
        assert {word.partition("=")[0] for word in words if word[:2] == "--"} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_yaml_and_json_can_be_read(page: Path) -> None:
    """And the metrics in it exist."""
    observed = rows(between((DOCS / "observability.md").read_text(), "metrics"))
    metrics = {row[0].strip("`") for row in observed}
    for block in blocks(page.read_text(), "yaml"):
        list(yaml.safe_load_all(block))
        assert set(re.findall(r"\bcelery_lease_\w+", block)) <= metrics
    for block in blocks(page.read_text(), "json"):
        json.loads(block)


#: Names of other things on a page, by page.
FROM_ELSEWHERE: dict[str, set[str]] = {
    "testing": set(dir(plugin)),
    "resume-a-loop": set(dir(plugin)),
    "django": {"lease_urls"},
}


def broken(values: dict[str, Any], name: str) -> str:
    """Return what settings do about *values* as far as *name* is concerned."""
    try:
        loaded = settings.load(values)
    except LeaseConfigError as exc:
        return "refused" if any(fault.name == name for fault in exc.faults) else "other"
    return "warned" if any(line.startswith(name) for line in loaded.warnings) else "fine"


RULES = [(row[0].strip("`"), row[1]) for row in rows(between(CALIBRATION, "rules"))[1:]]


@pytest.mark.parametrize(("rule", "outcome"), RULES)
def test_rules_between_settings_are_those_of_the_code(rule: str, outcome: str) -> None:
    """Around every bound: what the page says is broken is refused or warned, nothing else is."""
    names = sorted(set(re.findall(rf"{PREFIX}[a-z_]+", rule)))
    subject = next(name for name in names if name != "lease_extension")
    seen = set()
    for numbers in itertools.product(TRIED, repeat=len(names)):
        values = dict(zip(names, numbers, strict=True))
        holds = bool(eval(rule, {}, values))  # noqa: S307  (our own page)
        found = broken(values, subject)
        seen.add(holds)
        if outcome == "refused":
            assert (found == "refused") is not holds, values
        elif found not in {"refused", "other"}:
            assert (found == "warned") is not holds, values
    assert seen == {True, False}


def test_the_page_has_every_rule_of_the_code() -> None:
    """One rule for each relation that is checked."""
    subjects = {rule.split()[0] for rule, _ in RULES}
    here = Path(settings.__file__).parent
    code = (here / "resolve.py").read_text()
    relations = set(re.findall(r'"(lease_[a-z_]+)",\n +sound', code))
    warned = set(
        re.findall(r'f"(lease_[a-z_]+) = ', (here.parent / "core" / "policy.py").read_text())
    )
    assert subjects == relations | warned


EXAMPLES = re.findall(
    r"### (.+?)\n.*?```python\n(.*?)```\n(.*?)(?=\n### |\n## )", CALIBRATION, re.DOTALL
)


@pytest.mark.parametrize(("title", "block", "text"), EXAMPLES, ids=[each[0] for each in EXAMPLES])
def test_worked_examples_obey_the_rules_and_are_worked_right(
    title: str, block: str, text: str
) -> None:
    """Settings load without a warning; each line is true, and its numbers are those settings'."""
    values: dict[str, Any] = {}
    exec(block, values)  # noqa: S102  (our own page)
    loaded = settings.load({name: values[name] for name in values if name.startswith(PREFIX)})
    assert loaded.warnings == (), title
    known = {
        f"{PREFIX}{name}": getattr(loaded.policy, name)
        for name in ("extension", "interval", "shutdown_timeout", "max_duration")
    }
    known |= {"lease_reaper_interval": loaded.reaper_interval, "levels": 1, "pre_stop": 0}
    worked = rows(text)[1:]
    assert worked
    for rule, here in worked:
        assert eval(here.strip("`"), {}), here  # noqa: S307
        sides = re.split(r"[<>]=?", rule.strip("`")), re.split(r"[<>]=?", here.strip("`"))
        facts = {"gap": gap_of(worked)}
        for symbols, number in zip(*sides, strict=True):
            if re.search(PREFIX, symbols):
                assert eval(symbols.strip(), {}, known | facts) == float(number), rule  # noqa: S307


def gap_of(worked: list[list[str]]) -> float:
    """Return the gap that an example speaks of, 0 if it does not."""
    for rule, here in worked:
        if rule.startswith("`gap"):
            return float(here.strip("`").split()[0])
    return 0.0


SOURCE = Path(celery_lease.__file__).parent
RUNBOOK = rows(between((DOCS / "operations.md").read_text(), "lines"))
LINES = [(row[0].strip("`"), row[1]) for row in RUNBOOK if row[0] != "line"]
PLACEHOLDER = re.compile(r"%r|%s|%d|%g|%\.\df")


@cache
def logged(directory: Path) -> dict[str, set[str]]:
    """Return the texts of all log calls below a directory, and at which levels they are used."""
    found: dict[str, set[str]] = {}
    for path in directory.rglob("*.py"):
        texts: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                texts |= {ast.unparse(each): str(node.value.value) for each in node.targets}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
                level = ast.unparse(node.func).removeprefix("logger.")
                first = node.args[0]
                text = texts.get(ast.unparse(first), getattr(first, "value", ""))
                found.setdefault(PLACEHOLDER.sub("…", str(text)), set()).add(level)
    return found


@pytest.mark.parametrize(("line", "level"), LINES, ids=[line for line, _ in LINES])
def test_log_lines_that_are_explained_exist(line: str, level: str) -> None:
    """Word for word, at the level that the page gives."""
    levels = {"ERROR": {"error", "exception"}}.get(level, {level.lower()})
    matches = {text: used for text, used in logged(SOURCE).items() if text.startswith(line)}
    assert any(levels & used for used in matches.values()), matches


def test_every_notice_of_the_worker_is_explained() -> None:
    """What operators read about leases is in the runbook."""
    explained = {line for line, _ in LINES}
    tree = ast.parse((SOURCE / "worker" / "telemetry" / "log_messages.py").read_text())
    calls = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
    ]
    texts = {PLACEHOLDER.sub("…", str(getattr(call, "value", ""))) for call in calls}
    assert texts - explained == set()


def test_tests_that_are_named_exist() -> None:
    """A test that is renamed takes its mention along."""
    tests = "".join(path.read_text() for path in DOCS.parent.glob("tests/**/test_*.py"))
    pages = "".join((DOCS / name).read_text() for name in ("problems.md", "promises.md"))
    named = set(re.findall(r"`(test_\w+)`", pages))
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_pictures_are_those_that_the_script_draws() -> None:
    """A picture that was drawn by hand, or not drawn again, is noticed."""
    drawn = runpy.run_path(str(DOCS / "diagrams.py"))["PICTURES"]
    assert len(drawn) == 2
    for name, draw in drawn.items():
        assert (DOCS / name).read_text() == draw(), f"python docs/diagrams.py makes {name}"
