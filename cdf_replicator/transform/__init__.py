"""Turn rows of Delta into change frames: filter, key, guard, projection, reduction."""

from cdf_replicator.transform.change_frame import latest_per_key, row_schema, snapshot_frame
from cdf_replicator.transform.enrichment import Dimensions
from cdf_replicator.transform.expressions import check_filter, computed_types

__all__ = ["Dimensions", "check_filter", "computed_types", "latest_per_key", "row_schema", "snapshot_frame"]
