"""Define the settings of the sink (hosts, credentials, limits) and a route's option (its index)."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Annotated, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from typing_extensions import Self

from connectors import names
from connectors.elasticsearch.dialect import ELASTICSEARCH, OPENSEARCH, Dialect
from connectors.settings import ArrowSettings, UpToADay, VectorOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

FORBIDDEN: Final = frozenset('\\/*?"<>| ,#:')
INDEX_BYTES: Final = 255 - len("CDF-writer--1234567890")


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _some(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if not hosts:
        raise ValueError("expected at least one http(s)://host:port")
    return hosts


def _host(url: str) -> str:
    """Check a URL. The text of the ``ValueError`` does not contain the value, which may hold a password."""
    try:
        parts = urlsplit(url)
        complete = parts.scheme in {"http", "https"} and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise ValueError("expected http://host:port or https://host:port") from None
    if parts.username is not None:
        raise ValueError("expected no credentials here: give USERNAME and PASSWORD, or API_KEY")
    if parts.query or parts.fragment:
        raise ValueError("expected http(s)://host:port with at most a path")
    return url


def nodes(hosts: Iterable[str]) -> list[str]:
    """Return the addresses of the nodes in one spelling of each host, with and without TLS alike."""
    parts = (urlsplit(host) for host in hosts)
    return [f"{names.server(part.hostname, part.port or 0)}{part.path.rstrip('/')}" for part in parts]


def _index(name: str) -> str:
    """Check a name by the rules of both products; the length leaves room for the prefix and suffix of the writer's alias."""
    wrong = FORBIDDEN & set(name) or name[:1] in {"", "-", "_", "+", "."} or name != name.lower()
    if wrong or len(name.encode()) > INDEX_BYTES:
        raise ValueError(
            f"expected the name of an index or alias: lower case, not starting with - _ + or ., none of "
            f'\\ / * ? " < > | , # : or blank, at most {INDEX_BYTES} bytes'
        )
    return name


class DocumentSettings(ArrowSettings):
    dialect: ClassVar[Dialect]
    hosts: Annotated[
        tuple[Annotated[str, AfterValidator(_host)], ...], BeforeValidator(_split), AfterValidator(_some)
    ] = Field(description="URLs of the nodes, comma separated: http://es:9200")
    api_key: SecretStr | None = Field(
        None, description="encoded API key of Elasticsearch, or of OpenSearch 3.7 or later"
    )
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = Field(
        None, description="file of certificate authorities to trust; every host is then https://"
    )
    verify_certs: bool = True
    request_timeout: UpToADay = Field(
        15, gt=0, description="seconds until a request times out; it is retried only if this is below RETRY_SECONDS"
    )
    gc_deletes: str = Field(
        "1h",
        pattern=r"^\d+(s|m|h|d)$",
        description="time for which an index that the sink created remembers deletes (index.gc_deletes)",
    )

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("USERNAME and PASSWORD go together")
        if self.api_key is not None and self.username is not None:
            raise ValueError("expected either API_KEY or USERNAME and PASSWORD, not both")
        return self

    @model_validator(mode="after")
    def _authorities_need_tls(self) -> Self:
        if self.ca_certs is not None and any(urlsplit(host).scheme != "https" for host in self.hosts):
            raise ValueError("CA_CERTS needs https:// in each URL of HOSTS")
        return self


class ElasticsearchSettings(DocumentSettings):
    dialect: ClassVar[Dialect] = ELASTICSEARCH


class OpenSearchSettings(DocumentSettings):
    dialect: ClassVar[Dialect] = OPENSEARCH


class Options(VectorOptions):
    largest_vector: ClassVar[int] = 4096

    index: Annotated[str, AfterValidator(_index)] | None = Field(
        None, description="index or alias to write to (default: the table's slug)"
    )
