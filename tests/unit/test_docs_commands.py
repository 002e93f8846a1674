"""What the pages tell people to type: each command and option exists and is run by a test, each make target is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import typer

from cdf_replicator.cli.app import app
from deploy.readme import ROOT
from tests.unit.test_docs import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE = re.compile(r"cdf-replicator ([a-z][^`|#\n]*)")
OPTION = re.compile(r"--[a-z-]+")
TARGET = re.compile(r"`make ([a-z0-9-]+)|^ +make ([a-z0-9-]+)", re.MULTILINE)
RAN_BY = ("e2e", "spark", "system", "unit")


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def text(request: pytest.FixtureRequest) -> str:
    page: Path = request.param
    return page.read_text()


def commands(text: str) -> Iterator[tuple[tuple[str, ...], Any, set[str]]]:
    """Name, command and options of each line that names a command of ours."""
    for line in LINE.findall(text):
        found: Any = typer.main.get_command(app)
        name: list[str] = []
        for word in line.split():
            if word not in getattr(found, "commands", ()):
                break
            found = found.commands[word]
            name.append(word)
        assert name, f"no command: cdf-replicator {line}"
        yield tuple(name), found, set(OPTION.findall(line))


def test_every_command_and_option_exists(text: str):
    for name, command, options in commands(text):
        known = {option for parameter in command.params for option in parameter.opts}
        assert options <= known | {"--help"}, f"cdf-replicator {' '.join(name)}"


def test_every_command_and_option_is_run_by_a_test(text: str):
    for name, _, options in commands(text):
        for option in options or {None}:
            words = {*name, option} - {None}
            assert any(words <= call for call in calls()), f"cdf-replicator {' '.join(name)} {option or ''}"


@cache
def calls() -> list[frozenset[str]]:
    """The words in each call, list or tuple of the tests' code."""
    files = (file for folder in RAN_BY for file in (ROOT / "tests" / folder).rglob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return [words_in(node) for node in nodes if isinstance(node, ast.Call | ast.List | ast.Tuple)]


def words_in(node: ast.AST) -> frozenset[str]:
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return frozenset(word for text in texts for word in text.split())


def test_every_make_target_exists(text: str):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {one or other for one, other in TARGET.findall(text)} <= targets
