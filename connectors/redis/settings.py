"""Define the settings of the sink (server, credentials, layout) and a route's option (its key template)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from connectors import names
from connectors.redis.keys import parse_template
from connectors.settings import ArrowSettings, RouteOptions, UpToADay

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["server", "cluster", "sentinel"]

KINDS: Final[dict[str, tuple[Kind, str]]] = {
    "redis": ("server", "redis"),
    "rediss": ("server", "rediss"),
    "unix": ("server", "unix"),
    "redis+cluster": ("cluster", "redis"),
    "rediss+cluster": ("cluster", "rediss"),
    "redis+sentinel": ("sentinel", "redis"),
}
"""The kind of place of each scheme of a URL, and the scheme for redis-py."""
PORT, SENTINEL_PORT = 6379, 26379
EXPECTED: Final = (
    "expected redis://host:6379/0, rediss://..., unix:///path/to/socket, redis+cluster://host:6379,host:6379, "
    "rediss+cluster://... or redis+sentinel://host:26379,host:26379/SERVICE/0"
)


@dataclass(frozen=True, slots=True)
class Address:
    """The place that a URL names, without credentials.

    Args:
        kind: One server, a cluster, or the master that sentinels name.
        servers: Host and port of the server, of nodes of the cluster, or of the sentinels.
        place: The rest of the place: a database, for sentinels after the name of the service. A cluster has none.
        plain: The URL of a single server with the same credentials and options, for redis-py.
    """

    kind: Kind
    servers: tuple[tuple[str, int], ...]
    place: str
    plain: str = field(repr=False)

    @property
    def service(self) -> str:
        """Return the name by which the sentinels know the master."""
        return self.place.rpartition("/")[0]

    def text(self) -> str:
        return f"{','.join(sorted(f'{host}:{port}' for host, port in self.servers))}{self.place and '/'}{self.place}"


def parse(url: str) -> Address:
    """Return the address of a URL.

    It parses a URL as redis-py does, since the import of redis-py takes longer than the validation of a configuration.

    Raises:
        ValueError: The URL is not an address of Redis.

    """
    parts = urlsplit(url)
    if parts.scheme not in KINDS:
        raise ValueError("not an address of Redis")
    kind, scheme = KINDS[parts.scheme]
    path = unquote(parts.path)
    if scheme == "unix":
        if not path:
            raise ValueError("not a path of a socket")
        return Address(kind, ((path, 0),), str(_database("", parts.query)), url)
    if kind == "server":
        server = (unquote(parts.hostname or "localhost"), parts.port or PORT)
        return Address(kind, (server,), str(_database(path.replace("/", ""), parts.query)), url)
    login, at, hosts = parts.netloc.rpartition("@")
    default = PORT if kind == "cluster" else SENTINEL_PORT
    servers = tuple((_named(one.hostname), one.port or default) for one in map(urlsplit, _each("//", hosts)))
    service, _, database = path.strip("/").partition("/") if kind == "sentinel" else ("", "", path.strip("/"))
    number = _database(database, parts.query)
    if (kind == "cluster" and number != 0) or (kind == "sentinel" and not service):
        raise ValueError("a cluster has one database; sentinels need the name of a service")
    query = f"?{parts.query}" if parts.query else ""
    plain = f"{scheme}://{login}{at}{hosts.split(',')[0]}/{number}{query}"
    return Address(kind, servers, f"{service}/{number}" if service else "", plain)


def _each(head: str, hosts: str) -> list[str]:
    return [head + host for host in hosts.split(",")]


def _named(host: str | None) -> str:
    if not host:
        raise ValueError("no host")
    return unquote(host)


def _database(path: str, query: str) -> int:
    return int(parse_qs(query).get("db", [path or "0"])[0])


def address(url: str) -> str:
    """Return ``host:port/db``, ``socket/db`` or ``host:port,host:port/service/db``, with and without TLS alike."""
    found = parse(url)
    return f"{found.servers[0][0]}/{found.place}" if found.plain.startswith("unix:") else found.text()


def normal_addresses(url: str) -> list[str]:
    """Return ``address`` of each server that the URL names, with one spelling of a host, or of a socket's path."""
    found = parse(url)
    place = found.place or "0"
    if found.plain.startswith("unix:"):
        return [f"{names.folder(found.servers[0][0])}/{place}"]
    return [f"{names.server(host, port)}/{place}" for host, port in found.servers]


class RedisSettings(ArrowSettings):
    url: SecretStr = Field(
        description="redis://, rediss:// (TLS) or unix://, with the options of redis-py: rediss://user:pass@host:6379/0; "
        "redis+cluster://host:6379,host:6379 (rediss+cluster:// with TLS): some nodes of a cluster; "
        "redis+sentinel://host:26379,host:26379/SERVICE/0: the sentinels, with the user and password of the servers",
    )
    username: str | None = Field(None, description="ACL user, unless the url names one")
    password: SecretStr | None = Field(None, description="password, unless the url holds one")
    ca_certs: str | None = Field(None, description="file of the CAs to trust, for TLS")
    timeout_seconds: UpToADay = Field(10, gt=0, description="longest wait for a connection, and for each answer")
    layout: Literal["json", "hash"] = Field(
        "json",
        description="json: a string that holds the row (GET). hash: a field per column (HGETALL). Resync after a change",
    )
    ttl_seconds: int | None = Field(
        None, gt=0, description="entries expire this long after they were last written. Resync after a change"
    )
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
            raise ValueError(EXPECTED) from None
        return url

    @model_validator(mode="after")
    def _ca_certs_need_tls(self) -> Self:
        if self.ca_certs is not None and not self.url.get_secret_value().startswith("rediss"):
            raise ValueError("ca_certs needs a url that begins with rediss:// or rediss+cluster://")
        return self


def is_cluster(settings: RedisSettings) -> bool:
    return parse(settings.url.get_secret_value()).kind == "cluster"


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

    def entry_names(self, table: str, keys: tuple[str, ...]) -> str:
        """Return the template, or the template of the default keys."""
        return self.key_template or f"{table}:{':'.join(f'{{{name}}}' for name in keys)}"
