"""Test a sink against the contract, built-in and third-party sinks alike.

The suite needs pytest and a Spark session. The service never imports it.

    class TestFolderSink(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path): ...    # a new sink with a separate target

        @pytest.fixture
        def route(self): ...             # RouteSpec(keys=("id",), epoch=1, ...)

        @pytest.fixture
        def read(self): ...              # (route, key text) -> the entry as a reader of the destination sees it, or None

The fixture ``spark`` in your ``conftest.py`` returns any session whose time zone is UTC. ``SinkContract`` is for upsert
sinks, ``AppendContract`` for append sinks, ``FrameContract`` for upsert sinks that take DataFrames. Mix in
``ResyncContract`` or ``FrameResyncContract`` if the sink is ``Resyncable``, ``VerifyContract`` if it is ``Verifiable``,
``BadRowContract`` if it can refuse a row, and ``FenceContract`` if it is ``Watermarked`` and refuses the writer of an older
lease.
"""

import pytest

pytest.register_assert_rewrite(
    "connectors.testing.contract",
    "connectors.testing.upserting",
    "connectors.testing.appending",
    "connectors.testing.framing",
    "connectors.testing.resyncing",
    "connectors.testing.verifying",
)

from connectors.testing.appending import AppendContract  # noqa: E402 - pytest rewrites asserts of later imports only
from connectors.testing.chunk import SCHEMA, change_frame, deletion, key_of, render_chunk, upsert  # noqa: E402
from connectors.testing.contract import BadRowContract, FenceContract  # noqa: E402
from connectors.testing.framing import FrameContract  # noqa: E402
from connectors.testing.resyncing import FrameResyncContract, ResyncContract  # noqa: E402
from connectors.testing.upserting import SinkContract  # noqa: E402
from connectors.testing.verifying import VerifyContract  # noqa: E402

__all__ = [
    "SCHEMA",
    "AppendContract",
    "BadRowContract",
    "FenceContract",
    "FrameContract",
    "FrameResyncContract",
    "ResyncContract",
    "SinkContract",
    "VerifyContract",
    "change_frame",
    "deletion",
    "key_of",
    "render_chunk",
    "upsert",
]
