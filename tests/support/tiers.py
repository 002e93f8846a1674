"""Mark the parameters of a test that only the nightly run needs."""

from __future__ import annotations

import pytest


def nightly(value: object) -> object:
    """Return a parameter that ``make nightly`` runs and CI leaves out, since another parameter proves the same path."""
    return pytest.param(value, marks=pytest.mark.nightly)
