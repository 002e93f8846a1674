"""A flight board of real flights, followed by the service into an audit table, Elasticsearch and Redis, then compared.

    python -m deploy.demo [--days N] [--keep]

`flights` brings the data, `source` writes them as a source system would, `service` runs `cdf-replicator`, `probe` measures
how long a commit takes to be seen, `progress` tells, `comparison` judges, `sql` is for looking at the tables.
"""
