"""Compare the configuration of a command with that of the running service, by a digest of the settings concerned."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretBytes, SecretStr

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdf_replicator.settings import Settings


def digest(settings: Settings, routes: Collection[str] | None) -> str:
    """Return the digest of what an answer depends on; settings that are equal have equal digests in every process.

    A local state path needs no comparison, since the service was found by it.

    Args:
        settings: The configuration.
        routes: Names of the routes concerned, of which unknown names are left out; None for all settings of the data path.
    """
    known = {name: settings.routes[name] for name in settings.routes if routes is None or name in routes}
    concerned: dict[str, Any] = {
        "state path": settings.state_path.rstrip("/") if "://" in settings.state_path else None,
        "routes": known,
        "sinks": {route.sink: settings.sinks[route.sink] for route in known.values()},
    }
    if routes is None:
        concerned |= {"delivery": settings.delivery, "spark": settings.spark}
    text = json.dumps(_plain(concerned), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value of JSON, with secrets in clear text, since two secrets may differ."""
    if isinstance(value, SecretStr | SecretBytes):
        return str(value.get_secret_value())
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else value
