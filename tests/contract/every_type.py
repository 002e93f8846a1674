"""The verify suite of a built-in sink, with every value of ``type_cases``."""

from __future__ import annotations

import pytest

from connectors.testing import VerifyContract
from tests.contract.type_cases import CASES, rows

SQL_TYPES = {"varchar(5)": "string", "char(5)": "string"}  # what a cast may name


class VerifyEveryType(VerifyContract):
    refused: frozenset[str] = frozenset()
    """The SQL of values that the sink refuses."""

    @pytest.fixture
    def typed(self, spark):
        selects = []
        for number, row in enumerate([*rows(), {}]):  # the last row has nulls alone
            given = {column: "NULL" if value in self.refused else value for column, value in row.items()}
            casts = (
                f"CAST({given.get(case.column, 'NULL')} AS {SQL_TYPES.get(case.type, case.type)}) AS {case.column}"
                for case in CASES
            )
            selects.append(f"SELECT '{number}' AS id, 'name' AS name, {', '.join(casts)}")
        return spark.sql(" UNION ALL ".join(selects))

    def test_view_has_long_number_of_a_variant_in_a_map(self, spark, sink, route):
        """Elasticsearch gets no other field of such a row that contains a long number."""
        variant = """parse_json('{"a":12345678901234567890123}')"""
        rows = spark.sql(f"SELECT '1' AS id, 'name' AS name, map('k', {variant}) AS m")
        self.test_view_has_rows_of_every_type_as_written(spark, sink, route, rows)
