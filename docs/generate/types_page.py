"""Write docs/types.md from the data of its tests, tests/contract/type_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.contract.type_cases import (
    CASES,
    KEY_TEXTS,
    KEYLESS,
    NO_DELTA_COLUMN,
    POSTGRES_TYPES,
    REFUSED_BY_ELASTICSEARCH,
    REFUSED_BY_OPENSEARCH,
    REFUSED_BY_POSTGRES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.contract.type_cases import Refusal, Value

PAGE = Path(__file__).parents[1] / "types.md"
LONGEST = 100

HEAD = """\
<!-- Written by `make docs` from tests/contract/type_cases.py; tests/integration/test_types.py proves every line. -->
# Types

This page lists the form of each Delta type in each sink. Every value below passes through a Delta table, its change feed and
each sink, and is read back, in `tests/integration/test_types.py`.

- **Delta sinks** (`delta_audit`, `delta_replica`) hold the same types and the same values.
- **Redis, `layout: json`** and **Elasticsearch's `_source`** show a row as one JSON object; a null column is `null`.
- **Redis, `layout: hash`** shows a column as text: the JSON below without its quotes, unless a second text is listed beside it.
  A null column has no field, so it differs from an empty text. A row of nulls alone has no key.
- An **Elasticsearch index that the service creates** maps types as below, `dynamic: strict`: no type is guessed from a value,
  and no text becomes a date. A value that a field can't index (NaN, the year 12024) is kept in `_source` and named in the
  document's `_ignored`. A column in `VECTORS` is a `dense_vector`.
- **OpenSearch** has the fields of Elasticsearch, with `flat_object` for `flattened` and `knn_vector` for `dense_vector`. It finds years
  after 9999. The contract suite writes the values below to it and reads them back.
- A **table that the PostgreSQL sink creates** has a column of the type below for each column, and the key columns as its primary
  key. `jsonb` holds the JSON below. Every other column holds the value itself; an array in `VECTORS` is pgvector's `vector(n)`.
- A `RowSink` gets the JSON form as Python objects; integers beyond 64 bits, which only a variant can hold, become floats.
- A **key** is the text of each key column, `%` and `:` percent-encoded, joined by `:`. An Elasticsearch `_id` over 512 bytes is the
  SHA-256 of the key. A Redis key is `<table>:<key>`, or follows `KEY_TEMPLATE` (`orders:{id}`).
- An **index or write alias of your own** is used unchanged if its mapping accepts the route; its settings are never changed. The
  user of the route needs `view_index_metadata`, `create_index`, `manage`, `read` and `write` on it.
"""


def page() -> str:
    return "\n".join([HEAD, *_columns(), "", *_refused(), "", *_absent(), "", *_keys(), ""])


def _columns() -> Iterable[str]:
    yield "| Delta type | Elasticsearch field | PostgreSQL column | Value → JSON, and the text in a hash if it differs | |"
    yield "|---|---|---|---|---|"
    for case in CASES:
        values = "<br>".join(_value(value) for value in case.values) or "`null`"
        yield f"| `{case.type}` | `{case.field}` | `{POSTGRES_TYPES.get(case.type, 'jsonb')}` | {values} | {case.note} |"


def _value(value: Value) -> str:
    short = len(value.json) <= LONGEST and value.json.isprintable()
    text = _code(value.json) if short else ("as the table has it" if value.shown else _code(value.json[:LONGEST] + "…"))
    in_hash = value.field.decode(errors="backslashreplace")
    other = short and in_hash.isprintable() and in_hash not in {value.json, value.json[1:-1]}
    beside = f", in a hash {_code(in_hash)}" if other else ""
    literal = value.shown or _code(value.sql)
    return f"{literal} → {text}{beside}" + ("" if value.search else " (not searched)")


def _refused() -> Iterable[str]:
    yield "## Refused by Elasticsearch"
    yield ""
    yield "The row becomes a dead letter with this code; Redis and Delta sinks take it."
    yield ""
    yield from _codes(REFUSED_BY_ELASTICSEARCH)
    yield ""
    yield "## Refused by OpenSearch"
    yield ""
    yield "The row becomes a dead letter with this code. OpenSearch takes a NUL character in a key of a map."
    yield ""
    yield from _codes(REFUSED_BY_OPENSEARCH)
    yield ""
    yield "## Refused by PostgreSQL"
    yield ""
    yield (
        "The row becomes a dead letter with this code. So does a key of more than about 2,700 bytes (`too_large`), a text of a key "
        "column that is not UTF-8 (`invalid_text`), a date before 4713 BC (`out_of_range`), a floating-point key -0.0, which equals the key "
        "0.0 there, and a vector of another length or with a null or NaN (`invalid`)."
    )
    yield ""
    yield from _codes(REFUSED_BY_POSTGRES)


def _codes(refused: Iterable[Refusal]) -> Iterable[str]:
    rows = ((f"`{r.type}`", r.shown, f"`{r.code}`", r.why) for r in refused)
    yield from _table(("Delta type", "Value", "Code", "Why"), rows)


def _absent() -> Iterable[str]:
    yield "## No Delta column"
    yield ""
    yield "Spark has these types, but Delta 4.4 stores none of them: creating a table fails with the condition."
    yield ""
    yield from _table(("Type", "Condition"), ((f"`{kind}`", f"`{why}`") for kind, why in NO_DELTA_COLUMN.items()))


def _keys() -> Iterable[str]:
    yield "## Key columns"
    yield ""
    yield (
        "The key text is each key column as text, `%` and `:` percent-encoded, joined by `:`. No two keys have one text. "
        "Elasticsearch's `_id` is the key text, or its SHA-256 where it is longer than 512 bytes."
    )
    yield ""
    rows = (
        (f"`{kind}`", "<br>".join(f"{_code(sql)} → {_code(text) if text else 'empty'}" for sql, text in pairs))
        for kind, pairs in KEY_TEXTS.items()
    )
    yield from _table(("Type", "Value → key text"), rows)
    yield ""
    yield (
        "Floating-point keys work, with a limit: Java 17 and Java 19 and later write a few of them with different digits. "
        "Resync a route with such a key after changing Java between the two."
    )
    yield ""
    yield (
        f"Refused as a key, by name, before anything is written: {', '.join(f'`{kind}`' for kind in KEYLESS)}, "
        "and any other array, map, struct, variant or void. A null in a key column makes the row a dead "
        "letter (`null_key`)."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("|", "\\|")
