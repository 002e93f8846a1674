"""Define the settings of the sink (server, credentials, layout) and a route's option (its key template)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from connectors import names
from connectors.redis.keys import parse_template
from connectors.settings import ArrowSettings, RouteOptions

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMES: Final = ("redis", "rediss", "unix")


def address(url: str) -> str:
    """Return ``host:port/db`` or ``socket/db`` of a URL, without credentials, with and without TLS alike.

    It parses a URL as redis-py does, since the import of redis-py takes longer than the validation of a configuration.

    Raises:
        ValueError: The URL is not an address of Redis.

    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or (parts.scheme == "unix" and not parts.path):
        raise ValueError("not an address of Redis")
    path = "" if parts.scheme == "unix" else unquote(parts.path).replace("/", "")
    database = int(parse_qs(parts.query).get("db", [path or "0"])[0])
    if parts.scheme == "unix":
        return f"{unquote(parts.path)}/{database}"
    return f"{unquote(parts.hostname or 'localhost')}:{parts.port or 6379}/{database}"


def normal_address(url: str) -> str:
    """Return ``address`` with one spelling of the host, or of the socket's path."""
    server, _, database = address(url).rpartition("/")
    if urlsplit(url).scheme == "unix":
        return f"{names.folder(server)}/{database}"
    host, _, port = server.rpartition(":")
    return f"{names.server(host, int(port))}/{database}"


class RedisSettings(ArrowSettings):
    url: SecretStr = Field(
        description="redis://, rediss:// (TLS) or unix://, with the options of redis-py: rediss://user:pass@host:6379/0",
    )
    username: str | None = Field(None, description="ACL user, unless the url names one")
    password: SecretStr | None = Field(None, description="password, unless the url holds one")
    ca_certs: str | None = Field(None, description="file of the CAs to trust, for rediss://")
    timeout_seconds: float = Field(10, gt=0, description="longest wait for a connection, and for each answer")
    layout: Literal["json", "hash"] = Field(
        "json",
        description="json: a string that holds the row (GET). hash: a field per column (HGETALL). Resync after a change",
    )
    ttl_seconds: int | None = Field(None, gt=0, description="entries expire this long after they were last written")
    max_value_bytes: int = Field(
        512_000_000, ge=1_000, description="a larger row is rejected; no more than the server's proto-max-bulk-len"
    )
    tombstone_seconds: int = Field(
        86_400,
        gt=0,
        description="seconds to keep a deleted key's tombstone, which stops a late older row from reviving the key",
    )

    @field_validator("url")
    @classmethod
    def _url_is_understood(cls, url: SecretStr) -> SecretStr:
        try:
            address(url.get_secret_value())
        except ValueError:
            # The parser's text may quote a part of the password.
            raise ValueError("expected redis://host:6379/0, rediss://... or unix:///path/to/socket") from None
        return url

    @model_validator(mode="after")
    def _ca_certs_need_tls(self) -> Self:
        if self.ca_certs is not None and not self.url.get_secret_value().startswith("rediss://"):
            raise ValueError("ca_certs needs a url that begins with rediss://")
        return self


class RedisOptions(RouteOptions):
    key_template: str | None = Field(
        None, description="the Redis key, with every key column in braces: orders:{id}. Default: <table>:<key>"
    )

    @field_validator("key_template")
    @classmethod
    def _template_is_injective(cls, template: str | None) -> str | None:
        if template is not None:
            parse_template(template)
        return template
