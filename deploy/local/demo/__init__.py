"""Replicate a year of flights into an audit table, Elasticsearch and Redis, and compare the results.

    python -m deploy.local.demo [--days N] [--keep]

`flights` fetches the data. `board` writes them as a source system does. `service` runs `cdf-replicator`. `latency`
measures the time from a commit to its visibility. `comparison` compares the sinks with the source, `report` prints.
"""
