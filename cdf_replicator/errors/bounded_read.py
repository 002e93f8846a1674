"""Map errors of a read of a closed version range to next steps; the steps of ``conditions`` apply to a stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_A_RANGE: Final = {
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE": "A column was renamed, dropped or retyped in the range, and a read has a single "
    "schema: read the versions before that commit and the versions from it on, one after the other (DESCRIBE "
    "HISTORY shows the commit).",
    "DELTA_INVALID_CDC_RANGE": "The last version is before the first: choose a later last version.",
    "DELTA_MISSING_CHANGE_DATA": "The change feed was off in a part of the range: choose later versions. "
    "`cdf-replicator enable TABLE` shows the version from which it is on.",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION": "The range is older than "
    "delta.deletedFileRetentionDuration of the table: choose later versions, or raise that property if VACUUM has not yet "
    "run.",
    r"FAILED_READ_FILE\.FILE_NOT_EXIST": "VACUUM has removed files of the range: choose later versions.",
}
"""Next steps by a pattern of the error's text."""


def step_for(error: BaseException, steps: Mapping[str, str] = OF_A_RANGE) -> str:
    """Return the operator's next step for an error; empty if no pattern matches."""
    text = str(error)
    return next((step for pattern, step in steps.items() if re.search(pattern, text)), "")
