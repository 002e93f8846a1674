"""Quote names for Spark SQL."""

from __future__ import annotations


def quote_identifier(name: str) -> str:
    """Return a column or table name in backquotes, so that every character in it is part of the name."""
    return "`" + name.replace("`", "``") + "`"
