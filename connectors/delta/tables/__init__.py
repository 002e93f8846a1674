"""Create, read and change Delta tables: sessions, snapshots, schemas, commits and transactions, for any sink."""

__all__ = ["commits", "completeness", "schema", "session", "snapshot", "table", "transactions"]
