"""Read a Delta source table: its versions, change feed, schema and retention."""

from cdf_replicator.source.commit_log import CommitLog
from cdf_replicator.source.schema import Metadata, TableSchema
from cdf_replicator.source.schema_evolution import CommitGuard
from cdf_replicator.source.table import SourceTable

__all__ = ["CommitGuard", "CommitLog", "Metadata", "SourceTable", "TableSchema"]
