"""The suite every sink passes, ours and yours. Needs pytest and a Spark session; never imported by the service.

    class TestFolderSink(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path): ...    # fresh, with a target of its own

        @pytest.fixture
        def route(self): ...             # RouteSpec(keys=("id",), epoch=1, ...)

        @pytest.fixture
        def read(self): ...              # (route, key text) -> what a reader of the destination sees, or None

and a fixture ``spark`` in your ``conftest.py``: any session whose time zone is UTC. ``SinkContract`` is for upsert
sinks, ``AppendContract`` for append sinks, ``BadRowContract`` for those of either that can refuse a row, and
``FrameContract`` for upsert sinks that take DataFrames.
"""

import pytest

pytest.register_assert_rewrite(
    "connectors.testing.contract",
    "connectors.testing.upserting",
    "connectors.testing.appending",
    "connectors.testing.framing",
)

from connectors.testing.appending import AppendContract  # noqa: E402 - after the rewrite hook, or asserts say nothing
from connectors.testing.chunk import SCHEMA, change_frame, deletion, key_of, render_chunk, upsert  # noqa: E402
from connectors.testing.contract import BadRowContract, FenceContract  # noqa: E402
from connectors.testing.framing import FrameContract  # noqa: E402
from connectors.testing.upserting import SinkContract  # noqa: E402

__all__ = [
    "SCHEMA",
    "AppendContract",
    "BadRowContract",
    "FenceContract",
    "FrameContract",
    "SinkContract",
    "change_frame",
    "deletion",
    "key_of",
    "render_chunk",
    "upsert",
]
