"""Each command and option on the pages exists and is run by a test; each make target exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import typer

from cdf_replicator.cli.app import app
from docs.generate.readme import PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM: Any = typer.main.get_command(app)
CODE = re.compile(r"^ {4}.*(?:\n {8,}\[.*)*", re.MULTILINE)
"""An indented line, with the lines of further options below it."""
SPAN = re.compile(r"`([^`\n]+)`")
ROW = re.compile(r"^\| `cdf-replicator ([^`]+)`(.*?) \| (.*)", re.MULTILINE)
"""A row of a table of commands: the first command, others under the same parent, and the text with its options."""
LINE = re.compile(r"cdf-replicator ([a-z][^`#]*)")
OPTION = re.compile(r"--[a-z-]+")
TARGET = re.compile(r"`make ([a-z0-9-]+)|^ +make ([a-z0-9-]+)", re.MULTILINE)
OTHERS = re.compile(r"(?:^ {4}|`)((?:docker|helm|kubectl|pip) [a-z]+)", re.MULTILINE)

RAN_BY = ("unit", "support", "process", "integration", "system")
NOT_RUN = {
    "docker build": "needs a daemon; buildah builds the same Dockerfile in tests/system/test_image.py",
    "docker compose": "needs a daemon; podman-compose runs the same file in tests/nightly/test_compose.py",
    "docker exec": "needs a daemon; tests/system/test_image.py runs commands of the image with podman",
    "docker inspect": "needs a daemon, and only shows what is there",
    "docker logs": "needs a daemon; tests/system/test_image.py reads the log of a container of podman's",
    "docker run": "needs a daemon; tests/system/test_image.py runs the image with podman",
    "helm install": "needs a cluster; tests/system/test_manifests.py renders the chart",
    "kubectl exec": "needs a cluster; tests/integration/test_reload.py runs the command that it runs in the pod",
    "kubectl delete": "needs a cluster, whose controller adopts the pod that stays",
    "kubectl describe": "needs a cluster, and only shows what is there",
    "kubectl get": "needs a cluster, and only shows what is there",
    "kubectl logs": "needs a cluster, and only shows what is there",
    "pip install": "the package is on no index; the image is made of its wheel",
}
"""Other commands on the pages that can't be run here, and why. tests/process/test_operator.py runs the lines of curl."""


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def text(request: pytest.FixtureRequest) -> str:
    page: Path = request.param
    return page.read_text()


def named(text: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield each command of the service on the page with its options; an option without a command has no name."""
    prose = CODE.sub("", text)
    for line in (*CODE.findall(text), *prose.splitlines()):
        yield from map(parsed, LINE.findall(line))
    for span in SPAN.findall(prose):
        if span.partition(" ")[0] in PROGRAM.commands:
            yield parsed(span)
        elif span.startswith("--"):
            yield (), set(OPTION.findall(span))
    for first, others, said in ROW.findall(prose):
        name, _ = parsed(first)
        yield name, {option for span in SPAN.findall(said) for option in OPTION.findall(span)}
        yield from (parsed(" ".join((*name[:-1], other))) for other in SPAN.findall(others))


def parsed(line: str) -> tuple[tuple[str, ...], set[str]]:
    found = PROGRAM
    name: list[str] = []
    for word in line.split():
        if word not in getattr(found, "commands", ()):
            break
        found = found.commands[word]
        name.append(word)
    assert name, f"no command: cdf-replicator {line}"
    return tuple(name), set(OPTION.findall(line))


@cache
def options_of(name: tuple[str, ...]) -> set[str]:
    """Return the options of a command and of its subcommands."""
    found = PROGRAM
    for word in name:
        found = found.commands[word]
    own = {option for parameter in found.params for option in parameter.opts}
    return own.union({"--help"}, *(options_of((*name, word)) for word in getattr(found, "commands", ())))


def test_every_command_and_option_exists(text: str):
    for name, options in named(text):
        assert options <= options_of(name), f"cdf-replicator {' '.join(name)}"


def test_every_command_and_option_is_run_by_a_test(text: str):
    for name, options in named(text):
        for option in options - {"--help"} or {None}:
            words = {*name, option} - {None}
            assert any(words <= call for call in calls()), f"cdf-replicator {' '.join(name)} {option or ''}"


@cache
def calls() -> list[set[str]]:
    """Return the words of each command that a test runs: `command(given, ...)`, `[COMMAND, ...]`, or in process `here(given, ...)`."""
    places = [ROOT / "tests" / name for name in RAN_BY]
    files = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    return [
        {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        for node in nodes
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in ("command", "here"))
        or (
            isinstance(node, ast.List)
            and node.elts
            and ast.unparse(node.elts[0]) in ("COMMAND", "str(COMMAND)", "sys.executable")
        )
    ]


def test_commands_that_cannot_run_here_are_listed_with_a_reason():
    assert {found for page in PAGES for found in OTHERS.findall(page.read_text())} == NOT_RUN.keys()


def test_every_make_target_exists(text: str):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {one or other for one, other in TARGET.findall(text)} <= targets
