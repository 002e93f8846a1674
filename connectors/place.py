"""Write the place of a target in one spelling, so that two sinks that reach it by other words are found."""

from __future__ import annotations

import os
import re
from typing import Final

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):(?=/)", re.IGNORECASE)
_SAME_STORE: Final = {"s3": "s3a", "s3n": "s3a", "abfs": "abfss", "wasb": "wasbs"}
"""Schemes of Hadoop that differ in the client or in TLS alone."""


def server(host: str | None, port: int) -> str:
    """Return a host and port; the names of the machine itself are replaced by ``localhost``."""
    name = (host or "localhost").lower().rstrip(".")
    return f"{'localhost' if name in _LOOPBACK else name}:{port}"


def folder(path: str) -> str:
    """Return a path of Hadoop's file systems; one without a scheme is taken for a local path."""
    found = _SCHEME.match(path)
    scheme = found[1].lower() if found else "file"
    beyond = path[found.end() :] if found else path
    if scheme == "file":
        return f"file:{os.path.realpath(re.sub('^/+', '/', beyond))}"
    authority, _, inside = beyond.removeprefix("//").partition("/")
    return f"{_SAME_STORE.get(scheme, scheme)}://{authority.lower()}{os.path.normpath('/' + inside.lstrip('/'))}"
