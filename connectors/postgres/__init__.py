"""Write to PostgreSQL: one row per key in an ordinary table. See ``connectors.postgres.sink``."""

from connectors.postgres.settings import PostgresOptions, PostgresSettings
from connectors.postgres.sink import PostgresSink
from connectors.registry import require

__all__ = ["PostgresOptions", "PostgresSettings", "PostgresSink"]

require("psycopg")
