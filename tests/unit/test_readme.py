"""Tests of README.md: generated parts are current, every command and route state is named."""

import re

import pytest
import typer

from cdf_replicator.cli.app import app
from cdf_replicator.monitoring.status import STATES
from docs.generate.readme import PAGES, README, ROOT, configuration, current


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_parts_are_current(page):
    text = page.read_text()
    assert current(text) == text, "run: make docs"


def test_every_command_is_named():
    text = README.read_text()
    commands = typer.main.get_command(app).commands
    assert [name for name in commands if f"cdf-replicator {name}" not in text and f"`{name}`" not in text] == []


def test_every_state_of_a_route_is_named():
    text = README.read_text()
    assert [state for state in STATES if f"`{state}`" not in text] == []


def test_table_of_settings_has_four_columns():
    table = configuration()
    assert "| Variable | Type | Default | Meaning |" in table
    assert "| `CDF_HTTP__BIND_PORT` | whole number | `9102` |" in table
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
