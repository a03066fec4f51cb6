"""What a stranger gets: the wheel, the sdist, and what the index shows of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Directories of the sdist, and its files beside them.
DIRECTORIES = {"docs", "example_project", "examples", "src", "tests"}
FILES = {
    *(
        ".gitignore",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "SECURITY.md",
    ),
    *("mkdocs.yml", "noxfile.py", "pyproject.toml"),
}
#: Unit tests that read the repository's files, the others know only the package.
READERS = sorted(
    path
    for path in ROOT.glob("tests/unit/**/test_*.py")
    if "Path(__file__).parents" in path.read_text()
)


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources(directory: Path) -> set[str]:
    """Return the names of the files below a directory, caches aside."""
    return {
        str(path.relative_to(directory.parent))
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and ".hypothesis" not in path.parts
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    directory = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", directory, ROOT, cwd=directory)
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    """The wheel, open."""
    return zipfile.ZipFile(next(dist.glob("*.whl")))


@pytest.fixture(scope="module")
def sdist(dist: Path) -> tarfile.TarFile:
    """The sdist, open."""
    return tarfile.open(next(dist.glob("*.tar.gz")))


@pytest.fixture(scope="module")
def unpacked(sdist: tarfile.TarFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked in a place where there is nothing else."""
    directory = tmp_path_factory.mktemp("unpacked")
    sdist.extractall(directory, filter="data")
    return next(directory.iterdir())


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """What the index learns."""
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def test_the_wheel_has_the_package_and_its_metadata(wheel: zipfile.ZipFile) -> None:
    """All modules, the Lua scripts, the typing marker; no tests, no docs."""
    package = {name for name in wheel.namelist() if name.startswith("celery_lease/")}
    assert package == sources(ROOT / "src" / "celery_lease")
    assert "celery_lease/py.typed" in package
    rest = {name.partition(".dist-info/")[2] for name in wheel.namelist()} - {""}
    assert rest == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_sdist_has_all_that_its_tests_and_docs_need(sdist: tarfile.TarFile) -> None:
    """The tree without what only the repository's machines read."""
    names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {name for name in names if "/" not in name} == FILES
    assert {name.partition("/")[0] for name in names if "/" in name} == DIRECTORIES
    for directory in DIRECTORIES:
        missing = sources(ROOT / directory) - names
        assert {name for name in missing if "__pycache__" not in name} == set()


def test_the_index_accepts_both(dist: Path) -> None:
    """As ``twine check --strict`` finds, which renders the long description, too."""
    assert run("-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist).count("PASSED") == 2


def test_links_of_the_long_description_lead_to_the_repository(metadata: Message) -> None:
    """They are relative in the README, where an index would not find what they name."""
    text = metadata.get_payload()
    links = re.findall(r"\]\(([^)]+)\)", text)
    source = (ROOT / "README.md").read_text()
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", source))
    repository = PROJECT["urls"]["Source"]
    for link in links:
        assert link.startswith("https://"), link
        path = link.partition("/main/")[2].partition("#")[0]
        if link.startswith(f"{repository}/blob/"):
            assert (ROOT / path).exists(), link
    assert f"]({repository.replace('github.com', 'raw.githubusercontent.com')}/main/docs/" in text


def test_the_metadata_is_complete_and_does_not_cap_python(metadata: Message) -> None:
    """What an index shows, and what installers decide by."""
    for field in ("Summary", "License-Expression", "Keywords", "Author"):
        assert metadata[field], field
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    classifiers = metadata.get_all("Classifier")
    assert "Typing :: Typed" in classifiers
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= urls.keys()


def test_extras_that_are_promised_exist(metadata: Message) -> None:
    """Those of today, and former names."""
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"redis", "sqs", "rabbitmq", "pgmq", "web", "cli", "otel", "django", "test"} <= extras
    assert {"demo", "prometheus", "psutil", "pytest", "rich"} <= extras
    docs = "".join(path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
    named = re.findall(r"celery-lease\[([\w,]+)\]", docs)
    assert {extra for each in named for extra in each.split(",")} <= extras


def test_the_sdist_builds_the_wheel_of_the_same_version(dist: Path, unpacked: Path) -> None:
    """Without git, whose tags the version comes from."""
    wheel = next(dist.glob("*.whl")).name
    run("-m", "build", "--no-isolation", "--wheel", "--outdir", dist / "again", ".", cwd=unpacked)
    assert [path.name for path in (dist / "again").iterdir()] == [wheel]


def test_a_tree_without_git_and_metadata_has_a_version(unpacked: Path, tmp_path: Path) -> None:
    """As somebody has who downloads an archive of the repository."""
    kept = [path for path in unpacked.iterdir() if path.name != "PKG-INFO"]
    tree = tmp_path / "archive"
    tree.mkdir()
    for path in kept:
        (tree / path.name).symlink_to(path)
    assert run("-m", "hatchling", "version", cwd=tree).strip() == "0.1.dev0"


def test_tests_pass_in_the_unpacked_sdist(unpacked: Path) -> None:
    """Those that read files of the repository: they would miss one that is not there."""
    assert len(READERS) > 5
    names = [path.relative_to(ROOT) for path in READERS]
    arguments = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *names)
    source = str(unpacked / "src")
    environ = {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    assert source in run("-c", "import celery_lease; print(celery_lease)", cwd=unpacked, **environ)
    assert " passed" in run("-m", "pytest", *arguments, cwd=unpacked, **environ)
