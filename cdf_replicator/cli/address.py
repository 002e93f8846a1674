"""Find the address of the service that this configuration starts, and identify its answers.

A health check runs this module every few seconds. It therefore imports little and does not validate the configuration: it
reads three values, and a variable overrides the file.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DEFAULT_PORT: Final = "9102"
EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104 - not a bind address
READ_TOKEN: Final = ("CDF_HTTP__READ_TOKEN", "CDF_HTTP__READ_TOKEN_FILE")


@dataclass(frozen=True)
class Address:
    """Address of a service.

    Args:
        url: base URL without a trailing slash.
        owner: identity of the state path that the service must report; None accepts any.
        state_path: location that the service must report; None accepts any.

    """

    url: str
    owner: str | None = None
    state_path: str | None = None

    def belongs(self, owner: str | None, state_path: str | None) -> bool:
        """Return whether an instance that reports these values serves the state path of this configuration.

        The owner decides where the state path is readable from here. For a state path on an object store, its name decides.
        """
        if self.owner is not None:
            return owner == self.owner
        return self.state_path is None or "://" not in self.state_path or state_path == self.state_path


def found(url: str | None) -> Address:
    """Return the given address, or the address of this configuration's service.

    The configured port has priority unless it is 0, then the address that a lease holder on this host recorded, then the
    default port.
    """
    if url is not None:
        return Address((url if "://" in url else f"http://{url}").rstrip("/"))
    file = _file()
    host = _given("CDF_HTTP__HOST", file, "http", "host")
    port = _given("CDF_HTTP__BIND_PORT", file, "http", "bind_port")
    state_path = _given("CDF_STATE_PATH", file, "state_path")
    root = _folder(state_path)
    said = _said_by_holder(root) if root is not None and port in ("", "0") else None
    address = said or _url(host, DEFAULT_PORT if port in ("", "0") else port)
    return Address(address, _owner(root), state_path.rstrip("/") or None)


def read_token() -> str:
    """Return the token of this configuration that allows to read, for the endpoints that need it; empty if there is none."""
    file: dict[str, Any] = {} if any(os.environ.get(name, "").strip() for name in READ_TOKEN) else _file()
    token, location = (_given(name, file, "http", name.rpartition("__")[2].lower()) for name in READ_TOKEN)
    if not location:
        return token
    with suppress(OSError, ValueError):
        return Path(location).read_text("utf-8").strip()
    return ""


def _file() -> dict[str, Any]:
    """Read the YAML file; return an empty dict if it is unreadable, since ``run`` and ``validate`` report the error."""
    location = os.environ.get("CDF_CONFIG_FILE", "").strip()
    if not location:
        return {}
    import yaml

    with suppress(OSError, ValueError, yaml.YAMLError):
        document = yaml.safe_load(Path(location).read_text("utf-8"))
        return document if isinstance(document, dict) else {}
    return {}


def _given(variable: str, file: dict[str, Any], *path: str) -> str:
    """Return the value as text, or an empty text if it is not set."""
    value: Any = file
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return os.environ.get(variable, "").strip() or ("" if value is None else str(value).strip())


def _url(host: str, port: str) -> str:
    host = EVERYWHERE.get(host, host).strip("[]")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _folder(state_path: str) -> Path | None:
    text = state_path.removeprefix("file://")
    with suppress(OSError):
        return Path(text) if text and "://" not in text and Path(text).is_dir() else None
    return None


def _owner(root: Path | None) -> str | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        return None if root is None else str(json.loads((root / "format.json").read_text("utf-8"))["owner"])
    return None


def _said_by_holder(root: Path) -> str | None:
    """Return the URL that the lease holder recorded, if it runs on this host.

    The lease has no URL if the service selected any free port; ``service.json`` then has the port.
    """
    from urllib.parse import urlsplit

    from cdf_replicator.state import lease, service_record
    from cdf_replicator.state.storage_path import LocalPath

    with suppress(OSError, ValueError):
        said = lease.holder(LocalPath(root)) or {}
        if said.get("host") == socket.gethostname() and said.get("url"):
            parts = urlsplit(said["url"])
            return _url(parts.netloc.rpartition(":")[0], str(parts.port))
    with suppress(OSError, service_record.NoServiceError):
        record = service_record.find(LocalPath(root))
        return _url(record.address, str(record.port))
    return None
