"""Write names in one spelling: addresses of targets, so that two sinks with the same target are detected; names in SQL."""

from __future__ import annotations

import os
import re
from typing import Final

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):(?=/)", re.IGNORECASE)
_SAME_STORE: Final = {"s3": "s3a", "s3n": "s3a", "abfs": "abfss", "wasb": "wasbs"}
"""Schemes of Hadoop that differ from the second scheme in the client or in TLS only."""


def server(host: str | None, port: int) -> str:
    """Return host and port, with ``localhost`` for every loopback name."""
    name = (host or "localhost").lower().rstrip(".")
    return f"{'localhost' if name in _LOOPBACK else name}:{port}"


def folder(path: str) -> str:
    """Return the normalized path of a Hadoop file system; a path without a scheme is local."""
    found = _SCHEME.match(path)
    scheme = found[1].lower() if found else "file"
    beyond = path[found.end() :] if found else path
    if scheme == "file":
        return f"file:{os.path.realpath(re.sub('^/+', '/', beyond))}"
    authority, _, inside = beyond.removeprefix("//").partition("/")
    return f"{_SAME_STORE.get(scheme, scheme)}://{authority.lower()}{os.path.normpath('/' + inside.lstrip('/'))}"


def quote_identifier(name: str) -> str:
    """Return a column or table name in backquotes, so that every character in it is part of the name."""
    return "`" + name.replace("`", "``") + "`"
