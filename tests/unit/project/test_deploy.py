"""The documentation's manifests and units leave a worker the time that its settings ask for."""

from __future__ import annotations

import configparser
import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from celery_lease import settings
from celery_lease.cli.group import MARGIN, _worker, group as group_command
from celery_lease.group import LAST_WORDS, longest_stop

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[3] / "docs"
DEPLOY = DOCS / "deploy"
SETTINGS = settings.load(runpy.run_path(str(DEPLOY / "celeryconfig.py")))
SHUTDOWN_TIMEOUT = SETTINGS.policy.shutdown_timeout


@dataclass(frozen=True, kw_only=True)
class Service:
    """One worker or group as something is told to run it. Seconds."""

    where: str
    command: tuple[str, ...]
    grace: float  #: between SIGTERM and SIGKILL
    before: float = 0.0  #: of these, what passes before SIGTERM

    @property
    def levels(self) -> int:
        """How many stops follow each other: the different priorities of a group."""
        if "group" not in self.command:
            return 1
        arguments = list(self.command[self.command.index("group") + 1 :])
        parsed = group_command.make_parser(group_command.make_context("group", arguments.copy()))
        texts = parsed.parse_args(arguments)[0]["workers"]
        return len({_worker(text).priority for text in texts})

    @property
    def needed(self) -> float:
        return self.before + longest_stop(SHUTDOWN_TIMEOUT + MARGIN, self.levels)


def ini(name: str) -> configparser.RawConfigParser:
    """Return a file of sections, continued lines joined."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text().replace("\\\n", ""))
    return parser


def kubernetes() -> Iterator[Service]:
    """Yield what each Deployment runs."""
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        yield pod_service(document["metadata"]["name"], document["spec"]["template"]["spec"])


def pod_service(name: str, pod: dict[str, Any]) -> Service:
    """Return the service of a pod; a hook's time is part of the grace period."""
    [container] = pod["containers"]
    hook = container.get("lifecycle", {}).get("preStop", {})
    return Service(
        where=f"kubernetes.yaml {name}",
        command=(*container["command"], *container.get("args", ())),
        grace=pod["terminationGracePeriodSeconds"],
        before=hook.get("sleep", {}).get("seconds", 0),
    )


def systemd() -> Iterator[Service]:
    """Yield what each unit runs."""
    for path in sorted(DEPLOY.glob("*.service")):
        unit = ini(path.name)["Service"]
        command = tuple(shlex.split(unit["ExecStart"]))
        yield Service(where=path.name, command=command, grace=float(unit["TimeoutStopSec"]))


def supervisord() -> Iterator[Service]:
    """Yield what each program section runs."""
    programs = ini("supervisord.conf")
    for name in programs.sections():
        program = programs[name]
        yield Service(
            where=f"supervisord.conf {name}",
            command=tuple(shlex.split(program["command"])),
            grace=float(program["stopwaitsecs"]),
        )


def compose() -> Iterator[Service]:
    """Yield what each Compose service runs."""
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(\d+)s", service["stop_grace_period"]).groups()
        yield Service(
            where=f"compose.yaml {name}",
            command=tuple(service["command"]),
            grace=60 * int(minutes or 0) + int(seconds),
        )


def docker() -> Iterator[Service]:
    """Yield each container twice: for its own timeout, and for the one given to docker stop."""
    lines = (DEPLOY / "docker.sh").read_text().replace("\\\n", "").splitlines()
    runs = [shlex.split(line) for line in lines if line.startswith("docker run")]
    commands = {words[words.index("--name") + 1]: tuple(words) for words in runs}
    for name, words in commands.items():
        grace = float(words[words.index("--stop-timeout") + 1])
        yield Service(where=f"docker run {name}", command=words, grace=grace)
    for line in lines:
        if found := re.fullmatch(r"docker stop -t (\d+) (\S+)", line):
            command = commands.pop(found[2])
            yield Service(where=line, command=command, grace=float(found[1]))
    assert commands == {}, "started and never stopped"


SERVICES = [*kubernetes(), *systemd(), *supervisord(), *compose(), *docker()]


def test_every_file_is_held_against_the_rules() -> None:
    """A manifest that is added without a test is noticed."""
    others = {"celeryconfig.py", "Dockerfile", "docker.sh"}
    covered = {service.where.split()[0] for service in SERVICES} | others
    assert {path.name for path in DEPLOY.iterdir() if path.is_file()} <= covered
    assert len(SERVICES) == 2 * (2 + 1 + 1 + 1 + 1)  # Docker's are counted twice: run and stop


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.where)
def test_the_grace_period_is_longer_than_the_longest_stop(service: Service) -> None:
    """A worker that uses all of lease_shutdown_timeout is not killed while it leaves."""
    assert service.grace > service.needed


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.where)
def test_the_grace_period_is_not_much_longer_either(service: Service) -> None:
    """Readers take the numbers for the rule: they are the rule's, rounded up."""
    assert service.grace <= service.needed + 10


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.where)
def test_groups_are_counted_level_by_level(service: Service) -> None:
    """The groups of the examples have two priorities, so they need the time twice."""
    assert service.levels == (2 if "group" in service.command else 1)


def test_the_time_of_a_hook_counts() -> None:
    """Kubernetes takes preStop out of the grace period."""
    pod = {
        "terminationGracePeriodSeconds": 75,
        "containers": [
            {
                "command": ["celery", "worker"],
                "lifecycle": {"preStop": {"sleep": {"seconds": 30}}},
            }
        ],
    }
    assert pod_service("hooked", pod).needed > 75


def test_signals_go_to_the_main_process_alone() -> None:
    """A SIGTERM to the pool's processes would end the tasks in them."""
    for path in DEPLOY.glob("*.service"):
        unit = ini(path.name)["Service"]
        assert (unit["KillMode"], unit["KillSignal"]) == ("mixed", "SIGTERM")
    programs = ini("supervisord.conf")
    for name in programs.sections():
        program = programs[name]
        assert (program["stopsignal"], program["stopasgroup"]) == ("TERM", "false")
        assert program["killasgroup"] == "true"


def test_no_shell_stands_between_the_container_and_the_worker() -> None:
    """A shell as process 1 keeps SIGTERM to itself."""
    for service in (*kubernetes(), *compose()):
        assert service.command[0] == "celery"
    assert re.search(r'^CMD \["celery"', (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)


def test_probes_ask_the_port_that_the_settings_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, a worker has the usual port; in a group, the one of its name."""
    ports: dict[str, int] = {}
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        [container] = document["spec"]["template"]["spec"]["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        ports |= named
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            assert container[probe]["httpGet"]["port"] in named
    opened = {"health": SETTINGS.health_port}
    for name in ("video", "mail"):
        monkeypatch.setenv("LEASE_GROUP_MEMBER", name)
        conf = runpy.run_path(str(DEPLOY / "celeryconfig.py"))
        opened[f"health-{name}"] = settings.load(conf).health_port
    assert ports == opened


def test_the_page_states_the_rule_and_the_numbers() -> None:
    """What a reader computes is what the test computes."""
    page = (DOCS / "shutdown.md").read_text()
    assert f"levels x (lease_shutdown_timeout + {MARGIN + LAST_WORDS:g})" in page
    assert f"(`lease_shutdown_timeout` + {MARGIN:g}) get SIGQUIT" in page
    alone = {f"{service.grace:g}" for service in SERVICES if service.levels == 1}
    rows = re.findall(r"^\| [A-Z].* \| (?:yes|no) \| (\d+)(?: s)? \|$", page, re.MULTILINE)
    rows += re.findall(r"^\| s.* \| (?:yes|no) \| (\d+)(?: s)? \|$", page, re.MULTILINE)
    assert set(rows) == alone
    assert len(rows) == 5


def test_every_file_is_linked_from_the_page_and_every_link_leads_somewhere() -> None:
    """A renamed manifest does not leave a dead link, nor an added one stay hidden."""
    links = set(re.findall(r"\]\((deploy/[^)]+)\)", (DOCS / "shutdown.md").read_text()))
    files = {f"deploy/{path.name}" for path in DEPLOY.iterdir() if path.is_file()}
    assert links == files
