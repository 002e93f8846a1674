"""Mark the parameters of a test that only the nightly run needs."""

from __future__ import annotations

import pytest


def nightly(*values: object) -> object:
    """Return a parameter set that ``make nightly`` runs and CI leaves out, since another parameter proves the same path."""
    return pytest.param(*values, marks=pytest.mark.nightly)
