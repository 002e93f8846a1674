"""The findings of ``validate`` about a sink."""

from __future__ import annotations

from types import SimpleNamespace

from cdf_replicator.queries import validation
from connectors import RetryableError


class Away:
    def check(self):
        raise RetryableError("unreachable: 127.0.0.1:1: Connection refused.")

    def close(self):
        pass


def test_description_of_an_unreachable_sink_ends_with_one_full_stop():
    (finding,) = validation._sink(SimpleNamespace(sink=lambda _: Away()), "cache")
    assert "Connection refused. Start it" in str(finding)
