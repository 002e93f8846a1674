"""Read a Delta source table: its versions, change feed, schema and retention."""
