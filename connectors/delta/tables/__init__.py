"""Create, read and change Delta tables: sessions, snapshots, schemas, commits and transactions, for any sink."""

__all__ = ["commits", "schema", "session", "snapshot", "table", "transactions"]
