"""``PostgresSink`` held to the contract, against a real server."""

from dataclasses import replace

import pytest
from pyspark.sql.types import DecimalType, StructField, StructType

from connectors import load
from connectors.postgres import PostgresSink
from connectors.testing import SCHEMA, BadRowContract, FenceContract, ResyncContract, SinkContract, upsert
from connectors.testing.contract import ODD_KEYS
from tests.contract.every_type import VerifyEveryType
from tests.contract.postgres_reader import text_of_key
from tests.contract.type_cases import code_points


class TestPostgresSink(SinkContract, ResyncContract, BadRowContract, FenceContract, VerifyEveryType):
    refused = frozenset({code_points("nul\0byte")})

    @pytest.fixture
    def schema(self):
        return StructType([*SCHEMA.fields, StructField("price", DecimalType(38, 0))])

    @pytest.fixture
    def odd_keys(self):
        return [key for key in ODD_KEYS if "\0" not in key]

    @pytest.fixture
    def other_route(self, route):
        return replace(route, name="other", table=f"{route.table}_other")

    @pytest.fixture
    def read(self, db):
        return lambda route, key: db.row(route.table, text_of_key(key))

    @pytest.fixture
    def write_foreign(self, db):
        return lambda route, key: db(f'INSERT INTO "{route.table}" (id) VALUES (%s)', text_of_key(key))

    @pytest.fixture
    def bad_change(self):
        return upsert("bad", 7, "nul\0byte")


def test_the_type_postgres_is_this_sink():
    assert load("postgres") is PostgresSink
