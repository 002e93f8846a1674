"""OpenSearch, as the tests that it shares with Elasticsearch need it."""

from __future__ import annotations

import pytest

from tests.contract.elasticsearch_reader import opensearch_to


@pytest.fixture(scope="module")
def elasticsearch(opensearch):
    return opensearch


@pytest.fixture
def sink_to():
    return opensearch_to


@pytest.fixture
def runtime():
    return {}
