"""The body with which an index is created, for the plugin k-NN that no server of the tests has, and its identity."""

import pytest
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from connectors.elasticsearch import ElasticsearchSink, OpenSearchSink, index
from connectors.elasticsearch.mapping import leaves
from connectors.testing import SCHEMA
from tests.contract.elasticsearch_reader import route_to


@pytest.mark.parametrize(
    ("sink", "settings"),
    [
        (OpenSearchSink, {"knn": True, "knn.derived_source.enabled": False}),
        (ElasticsearchSink, {"mapping.exclude_source_vectors": False}),
    ],
)
def test_created_index_keeps_vectors_as_they_were_sent(monkeypatch, sink, settings):
    bodies = []

    class Recorder:
        def create(self, _, body):
            bodies.append(body)

    monkeypatch.setattr(index, "find", lambda *_: object())
    schema = StructType([*SCHEMA.fields, StructField("embedding", ArrayType(FloatType()))])
    route = route_to(options=sink.Options(vectors="embedding:3:cosine"))
    fields = leaves(schema, route.name, sink.Settings.dialect, route.options.parsed_vectors)
    index.create(Recorder(), route.table, fields, route, "1h")
    assert settings.items() <= bodies[0]["settings"]["index"].items()


def test_index_that_an_alias_of_its_name_replaced_has_no_identity():
    class Aliased:
        def find(self, _):
            return {"orders-v2": {"settings": {"index": {"uuid": "x"}}}}

    assert index.identity_of(Aliased(), "orders-v2") == "x"
    assert index.identity_of(Aliased(), "orders") is None
