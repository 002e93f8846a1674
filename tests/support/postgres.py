"""Empty the database of a test server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from deploy.local.servers import Postgres


def emptied(server: Postgres) -> None:
    """Remove every table of the schema ``public``."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
