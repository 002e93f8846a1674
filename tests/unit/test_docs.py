"""Every test that the docs name exists, and every page and heading that they link to."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
import yaml

from docs.generate.readme import PAGES, PAGES_URL, ROOT

if TYPE_CHECKING:
    from pathlib import Path

WITNESS = re.compile(r"`((?:tests|connectors)/[\w/]+\.py)::(\w+)`")
GUARANTEES = ROOT / "docs/guarantees.md"
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@cache
def headings_of(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page):
    for path, name in WITNESS.findall(page.read_text()):
        assert (ROOT / path).exists(), path
        assert name in functions_of(ROOT / path), f"{path}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_without_its_file_exists_somewhere(page):
    files = [file for folder in ("tests", "connectors") for file in (ROOT / folder).rglob("*.py")]
    known = set[str]().union(*map(functions_of, files))
    assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_internal_link_has_a_target(page):
    for path, heading in LINK.findall(page.read_text()):
        leads_somewhere((page.parent / path).resolve() if path else page, heading)


def test_every_alert_links_to_its_runbook():
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        url = rule["annotations"]["runbook_url"]
        assert url.startswith(PAGES_URL)
        path, _, heading = url.removeprefix(PAGES_URL).partition("#")
        leads_somewhere(ROOT / path, heading)


def leads_somewhere(page: Path, heading: str) -> None:
    assert page.exists(), page
    if heading:
        assert heading in headings_of(page), f"{page}#{heading}"


def test_pages_for_users_name_no_test():
    users = [page for page in PAGES if page != GUARANTEES]
    assert [page.name for page in users if re.search(r"`test_\w+`|::test_", page.read_text())] == []


def test_index_links_to_every_page():
    linked = {path for path, _ in LINK.findall((ROOT / "docs/README.md").read_text())}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - linked == {"README.md"}
