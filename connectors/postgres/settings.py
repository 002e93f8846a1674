"""Define the settings of the sink (server, credentials, schema) and a route's options (its table and its vectors)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator

from connectors import names
from connectors.settings import ArrowSettings, UpToADay, VectorOptions, parse_vectors

SCHEMES: Final = ("postgresql", "postgres")
PORT: Final = 5432
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(\d+))?")
LONGEST_NAME: Final = 63
"""Bytes of the longest name. PostgreSQL cuts a longer one, so that two names could become the same."""
TOMBSTONES: Final = "__cdf_deleted"
OPERATORS: Final = {"cosine": "vector_cosine_ops", "l2": "vector_l2_ops", "ip": "vector_ip_ops"}
"""pgvector's operators by metric."""
LARGEST_INDEXED: Final = 2_000
"""Numbers of the largest vector that an HNSW index of pgvector takes."""


def hosts(url: str) -> list[tuple[str, int]]:
    """Return the hosts of a URL of libpq, each with its port; raises ``ValueError`` if it is no URL of PostgreSQL."""
    parts = urlsplit(url)
    # libpq ends the credentials at the first @, so that the rest of a password would be the name of a host, which errors show.
    if parts.scheme not in SCHEMES or not parts.path.strip("/") or parts.netloc.count("@") > 1:
        raise ValueError("not an address of PostgreSQL")
    query = parse_qs(parts.query)
    listed = parts.netloc.rpartition("@")[2] or ",".join(query.get("host", ["localhost"]))
    found = [_HOST.fullmatch(host) for host in listed.split(",")]
    if None in found:
        raise ValueError("not an address of PostgreSQL")
    default = query.get("port", [str(PORT)])[0]
    return [(unquote(host[1]).strip("[]") or "localhost", int(host[2] or default)) for host in found if host]


def database(url: str) -> str:
    return unquote(urlsplit(url).path.strip("/"))


def _identifier(name: str) -> str:
    if not name or "\0" in name or len(name.encode()) > LONGEST_NAME - len(TOMBSTONES):
        raise ValueError(
            f"expected a name of 1 to {LONGEST_NAME - len(TOMBSTONES)} bytes; it is quoted, so case counts"
        )
    return name


class PostgresSettings(ArrowSettings):
    url: SecretStr = Field(
        description="URL of libpq, with its options: postgresql://user@host:5432/db?target_session_attrs=read-write",
    )
    password: SecretStr | None = Field(None, description="password, unless the url holds one")
    ca_certs: str | None = Field(
        None, description="file of the CAs to trust; the server then needs TLS, and a certificate for its name"
    )
    schema_name: Annotated[str, AfterValidator(_identifier)] = Field(
        "public", description="schema of the tables; it is created if it is missing"
    )
    chunk_rows: int = Field(10_000, ge=1, le=10_000, description="most changes in one request")
    timeout_seconds: UpToADay = Field(
        30, ge=1, description="longest wait for a connection, and longest duration of the transaction of a chunk"
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
            hosts(url.get_secret_value())
        except ValueError:
            # The parser's text may quote a part of the password.
            expected = "postgresql://host:5432/database, with a user and the options of libpq"
            raise ValueError(f"expected {expected}; an @ in a password is written %40") from None
        return url

    @property
    def endpoint(self) -> str:
        """Return ``host:port/database`` without credentials."""
        url = self.url.get_secret_value()
        return f"{','.join(f'{host}:{port}' for host, port in hosts(url))}/{database(url)}"

    @property
    def servers(self) -> list[str]:
        """Return each server in one spelling of its host, with the database."""
        url = self.url.get_secret_value()
        return [f"{names.server(host, port)}/{database(url)}" for host, port in hosts(url)]


class PostgresOptions(VectorOptions):
    largest_vector: ClassVar[int] = 16_000

    target_table: Annotated[str, AfterValidator(_identifier)] | None = Field(
        None, description="table to write to, in the sink's schema (default: the table's slug)"
    )

    @field_validator("vectors")
    @classmethod
    def _index_takes_the_vectors(cls, text: str) -> str:
        for column, (dimension, metric) in parse_vectors(text, cls.largest_vector).items():
            if metric is not None and dimension > LARGEST_INDEXED:
                raise ValueError(
                    f"an HNSW index takes at most {LARGEST_INDEXED} numbers; declare {column}:{dimension} without a metric"
                )
        return text
