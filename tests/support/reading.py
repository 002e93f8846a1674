"""Read a source table and each sink in the same form: key text -> row in its JSON form.

Written from the README's rules, not with the product's code: ``connectors.rendering`` is under test here too.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import redis
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

Rows = dict[str, Any]

AUDIT_COLUMNS = (
    "change_type",
    "commit_version",
    "commit_timestamp",
    "commit_date",
    "source_table",
    "source_table_id",
    "route",
    "generation",
    "batch",
)


def table(spark: SparkSession, path: Path, keys: Sequence[str], where: str = "true") -> Rows:
    """The rows of a Delta table, as a sink should show them."""
    frame = spark.read.format("delta").load(str(path)).where(where)
    return {key_text(row, keys): as_json(row, frame.schema) for row in frame.collect()}


def documents(url: str, index: str) -> Rows:
    """Return ``_source`` by ``_id``, with numbers as written in the text."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        client.post(f"/{index}/_refresh").raise_for_status()
        page = client.post(f"/{index}/_search", params={"scroll": "1m"}, json={"size": 5000, "sort": "_doc"})
        found: Rows = {}
        while hits := _parsed(page.raise_for_status().text)["hits"]["hits"]:
            found |= {hit["_id"]: hit["_source"] for hit in hits}
            page = client.post("/_search/scroll", json={"scroll": "1m", "scroll_id": _parsed(page.text)["_scroll_id"]})
        return found


def entries(url: str, prefix: str) -> Rows:
    """JSON values by what follows the prefix in their key."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        names = [name for name in client.scan_iter(f"{prefix}*", count=5000) if client.type(name) == "string"]
        values = client.mget(names) if names else []
        return {name.removeprefix(prefix): _parsed(value) for name, value in zip(names, values, strict=True)}


def table_rows(url: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table in PostgreSQL, without their guards."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute(SQL("SELECT * FROM {}").format(Identifier(name))).fetchall()
    return [{name: value for name, value in row.items() if name != "_cdf_guard"} for row in rows]


def folded(spark: SparkSession, path: Path, keys: Sequence[str]) -> Rows:
    """Fold an audit table with preimages in its order into the present rows of the source table."""
    frame = spark.read.format("delta").load(str(path))
    data = StructType([field for field in frame.schema.fields if field.name not in AUDIT_COLUMNS])
    return fold(frame.collect(), keys, lambda change: as_json(change, data))


def fold(changes: Iterable[Any], keys: Sequence[str], shown: Callable[[Any], Any]) -> Rows:
    """Fold changes with preimages into the present rows; ``shown`` gives the row of a change."""
    removals = ("delete", "update_preimage")
    present: Rows = {}
    for change in sorted(changes, key=lambda row: (row["commit_version"], row["change_type"] not in removals)):
        if change["change_type"] in removals:
            present.pop(key_text(change, keys), None)
        else:
            present[key_text(change, keys)] = shown(change)
    return present


def key_text(row: Any, keys: Iterable[str]) -> str:
    return ":".join(str(row[key]).replace("%", "%25").replace(":", "%3A") for key in keys)


def as_json(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    if isinstance(data_type, StructType):
        return {field.name: as_json(value[field.name], field.dataType) for field in data_type.fields}
    if isinstance(data_type, ArrayType):
        return [as_json(item, data_type.elementType) for item in value]
    if isinstance(data_type, MapType):
        return {str(key): as_json(item, data_type.valueType) for key, item in value.items()}
    scalar = _SCALARS.get(type(data_type), lambda value, _: value)
    return scalar(value, data_type)


def _micros(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")


def _decimal(value: Decimal, data_type: DataType) -> Decimal | str:
    assert isinstance(data_type, DecimalType)
    return str(value) if data_type.precision > 15 else value


_SCALARS: dict[type[DataType], Callable[[Any, DataType], Any]] = {
    DecimalType: _decimal,
    DoubleType: lambda value, _: Decimal(str(value)),
    TimestampType: lambda value, _: _micros(value.astimezone(timezone.utc)) + "Z",
    TimestampNTZType: lambda value, _: _micros(value),
    DateType: lambda value, _: value.isoformat(),
    BinaryType: lambda value, _: base64.b64encode(value).decode(),
}


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)
