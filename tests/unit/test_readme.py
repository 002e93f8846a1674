"""README.md says what is true: generated parts are current, every command and door is named."""

import re
from pathlib import Path

import pytest
import typer

from cdf_replicator.cli.app import app
from deploy.readme import PAGES, README, current

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_are_current(page):
    text = page.read_text()
    assert current(text) == text, "run: make docs"


def test_every_command_is_named():
    text = README.read_text()
    commands = typer.main.get_command(app).commands
    assert [name for name in commands if f"cdf-replicator {name}" not in text and f"`{name}`" not in text] == []


def test_every_make_target_named_in_the_readme_exists():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z0-9-]+)", README.read_text()))
    assert named <= targets
