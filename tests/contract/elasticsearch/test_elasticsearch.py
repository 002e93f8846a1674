"""``ElasticsearchSink`` held to the contract, against a real server."""

from dataclasses import replace

import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType

from connectors import load
from connectors.elasticsearch import ElasticsearchSink
from connectors.testing import SCHEMA, BadRowContract, FenceContract, ResyncContract, SinkContract, upsert
from tests.contract.elasticsearch_reader import id_of
from tests.contract.every_type import VerifyEveryType


class DocumentContract(SinkContract, ResyncContract, BadRowContract, FenceContract, VerifyEveryType):
    @pytest.fixture
    def schema(self):
        return StructType([*SCHEMA.fields, StructField("counts", MapType(StringType(), IntegerType()))])

    @pytest.fixture
    def other_route(self, route):
        return replace(route, name="other", table=f"{route.table}_other")

    @pytest.fixture
    def read(self, es):
        return lambda route, key: es.document(route.table, id_of(key))

    @pytest.fixture
    def write_foreign(self, es):
        return lambda route, key: es("PUT", f"/{route.table}/_doc/{id_of(key)}", {"id": key})

    @pytest.fixture
    def bad_change(self):
        return upsert("bad", 7, counts={"k" * 33_000: 1})  # longer than a term may be


class TestElasticsearchSink(DocumentContract):
    pass


def test_the_type_elasticsearch_is_this_sink():
    assert load("elasticsearch") is ElasticsearchSink
