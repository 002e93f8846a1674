"""Replicate a year of flights into an audit table, Elasticsearch and Redis, and compare the results.

    python -m deploy.local.demo [--days N] [--keep]

`flights` fetches the data. `board` writes them as a source system does. `service` runs `cdf-replicator`. `sinks` reads the
sinks as any client does, and compares them with the source.
"""
