"""Replicate a flight board into an audit table, Elasticsearch and Redis, and compare the results.

    python -m deploy.local.demo [--days N] [--keep]

`flights` fetches the data. `source` writes them as a source system would. `service` runs `cdf-replicator`.
`probe` measures the time from a commit to its visibility in the sinks. `progress` prints the progress.
`comparison` compares the sinks with the source table. `sql` queries the tables.
"""
