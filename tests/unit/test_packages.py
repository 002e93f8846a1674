"""Every package says its purpose in a sentence and has a small public face."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import cdf_replicator
import connectors

MOST_MODULES = 11
MOST_LINES = 250
PACKAGES = [module.name for module in pkgutil.walk_packages(cdf_replicator.__path__, "cdf_replicator.") if module.ispkg]
CONNECTORS = [module.name for module in pkgutil.walk_packages(connectors.__path__, "connectors.") if module.ispkg]


def test_the_service_is_in_packages() -> None:
    assert len([name for name in PACKAGES if name.count(".") == 1]) == 15
    assert {file.stem for file in Path(cdf_replicator.__path__[0]).glob("*.py")} == {"__init__", "__main__", "route"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_one_purpose_and_a_public_face(name: str) -> None:
    package = importlib.import_module(name)
    assert re.fullmatch(r"[A-Z][^.]*[a-z][^.]*\.", package.__doc__ or ""), "a docstring of one sentence"
    assert 1 <= len(package.__all__) <= 6
    for public in package.__all__:
        if not hasattr(package, public):
            importlib.import_module(f"{name}.{public}")  # a module may be a part of the face


@pytest.mark.parametrize("name", [*PACKAGES, "connectors", *CONNECTORS])
def test_a_package_is_small(name: str) -> None:
    package = importlib.import_module(name)
    modules = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]
    assert len(modules) <= MOST_MODULES, modules


def test_files_of_the_product_are_short() -> None:
    files = [file for package in (cdf_replicator, connectors) for file in Path(package.__path__[0]).rglob("*.py")]
    assert len(files) > 100
    assert [file for file in files if len(file.read_text().splitlines()) > MOST_LINES] == []
