"""Every type a Delta column can have, with its extremes, and what each sink makes of them.

One table of data, two readers: tests/integration/test_types.py takes every value through a real Delta table, the change feed and
each sink and reads it back; docs/types.md is written from it (``make docs``).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import Any

EMOJI = "👩‍🚀e\u0301"
CONTROL = "".join(map(chr, [*range(1, 32), 127]))
QUOTES = '"it\'s" \\ / \u2028'
LONG_TEXT = "é" * 524_288  # 1 MB
ALL_BYTES = bytes(range(256))
NINES = "9" * 20 + "." + "9" * 18
DEEP = 24
DEEP_ARRAYS = f"parse_json(concat(repeat('[', {DEEP}), repeat(']', {DEEP})))"


@dataclass(frozen=True)
class Value:
    """``sql``: a literal. ``json``: the text a JSON sink shows. ``hash``: a field of a Redis hash, if that is not the JSON
    text without its quotes. ``shown``: for the docs, where the literal is too long. ``search``: Elasticsearch finds it."""

    sql: str
    json: str
    hash: bytes | None = None
    shown: str | None = None
    search: bool = True

    @property
    def field(self) -> bytes:
        """The value in a Redis hash."""
        if self.hash is not None:
            return self.hash
        read = json.loads(self.json, parse_float=str, parse_int=str)
        return (read if self.json.startswith('"') else self.json).encode()


@dataclass(frozen=True)
class Case:
    """A column. ``field``: its type in an index we create."""

    type: str
    field: str
    values: tuple[Value, ...]
    note: str = ""

    @property
    def column(self) -> str:
        return column_of(self.type)


@dataclass(frozen=True)
class Refusal:
    """A value that a sink refuses. Its row becomes a dead letter with this code. Redis takes it."""

    type: str
    sql: str
    shown: str
    code: str
    why: str


def column_of(kind: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in kind).strip("_")


def text(value: str, sql: str, shown: str | None = None) -> Value:
    return Value(sql, json.dumps(value, ensure_ascii=False), value.encode(), shown)


def code_points(value: str) -> str:
    """A SQL literal of characters that SQL text can't spell."""
    return f"decode(X'{value.encode().hex()}', 'UTF-8')"


def same(*literals: str) -> tuple[Value, ...]:
    """Literals that are their own JSON."""
    return tuple(Value(literal, literal) for literal in literals)


def quoted(kind: str, *values: str) -> tuple[Value, ...]:
    """Typed literals whose text JSON quotes."""
    return tuple(Value(f"{kind}'{value}'", f'"{value}"') for value in values)


def real(kind: str, *extremes: str) -> tuple[Value, ...]:
    finite = tuple(Value(f"{kind}('{value}')", value) for value in (*extremes, "0.1", "-0.0", "1.0E7"))
    others = tuple(Value(f"{kind}('{v}')", f'"{v}"', search=False) for v in ("NaN", "Infinity", "-Infinity"))
    return finite + others


def moments(kind: str, zone: str) -> tuple[Value, ...]:
    moment = {
        "0001-01-01T00:00:00.000000": True,
        "9999-12-31T23:59:59.999999": True,
        "2024-02-29T12:34:56.000001": True,
    }
    moment |= {"-0005-01-01T00:00:00.000000": True, "+12024-01-01T00:00:00.000001": False}
    return tuple(Value(f"{kind}'{at}'", f'"{at}{zone}"', search=found) for at, found in moment.items())


def keys(*pairs: tuple[str, str]) -> tuple[Value, ...]:
    return tuple(Value(f"map({sql}, 1)", f"{{{json.dumps(json_text)}:1}}") for sql, json_text in pairs)


def variant(sql: str, json_text: str, shown: str | None = None) -> Value:
    return Value(sql, json_text, json_text.encode(), shown)


LONG_DECIMAL = "Text: a JSON number of more than 15 digits is rounded by most readers."
MAP_KEYS = "Keys as key columns are written: dates and times readable, binary in base64, decimals plain."

CASES = (
    Case("boolean", "boolean", same("true", "false")),
    Case("tinyint", "long", (Value("-128Y", "-128"), Value("127Y", "127"))),
    Case("smallint", "long", (Value("-32768S", "-32768"), Value("32767S", "32767"))),
    Case("int", "long", same("-2147483648", "2147483647")),
    Case(
        "bigint",
        "long",
        (
            Value("-9223372036854775807L - 1L", "-9223372036854775808"),
            Value("9223372036854775807L", "9223372036854775807"),
        ),
        "A number. Readers that hold numbers as doubles (JavaScript) round above 2^53.",
    ),
    Case(
        "float",
        "double",
        real("float", "3.4028235E38", "1.4E-45"),
        "NaN and infinities are text; Elasticsearch keeps them in `_source` and names the field in `_ignored`.",
    ),
    Case("double", "double", real("double", "1.7976931348623157E308", "4.9E-324"), "As float."),
    Case("decimal(10,2)", "double", (Value("12345678.90BD", "12345678.90"), Value("CAST(0 AS DECIMAL(10,2))", "0.00"))),
    Case(
        "decimal(15,14)",
        "double",
        (Value("CAST('0.00000000000001' AS DECIMAL(15,14))", "1E-14", b"0.00000000000001"),),
        "A number up to 15 digits, as exact as the table.",
    ),
    Case(
        "decimal(5,5)", "double", (Value("CAST('-0.99999' AS DECIMAL(5,5))", "-0.99999"),), "No digit before the point."
    ),
    Case(
        "decimal(38,18)",
        "keyword",
        tuple(
            Value(f"CAST('{digits}' AS DECIMAL(38,18))", f'"{digits}"')
            for digits in (NINES, f"-{NINES}", "0.000000000000000000", "0.000000000000000001")
        ),
        LONG_DECIMAL,
    ),
    Case("decimal(38,0)", "keyword", (Value(f"CAST('{'9' * 38}' AS DECIMAL(38,0))", f'"{"9" * 38}"'),), LONG_DECIMAL),
    Case(
        "string",
        "text",
        (
            text("", "''", "empty, not null"),
            text(EMOJI, f"'{EMOJI}'", "emoji of several characters, combining accent"),
            text("nul\0byte", code_points("nul\0byte"), "a NUL character"),
            text(CONTROL, code_points(CONTROL), "control characters"),
            text(QUOTES, code_points(QUOTES), "quotes, backslash, line separator"),
            text(LONG_TEXT, "repeat('é', 524288)", "1 MB of text"),
            Value("CAST(X'61FF62' AS STRING)", '"a\ufffdb"', b"a\xffb", "bytes that are no UTF-8"),
        ),
        "`text`, and `.keyword` up to 256 characters. Bytes that are no UTF-8 are U+FFFD in JSON, as they are in a hash.",
    ),
    Case("varchar(5)", "text", (text("abcde", "'abcde'"), text("", "''"))),
    Case("char(5)", "text", (text("ab   ", "'ab'"),), "Padded with blanks, as Delta keeps it."),
    Case(
        "binary",
        "binary",
        (
            Value("X''", '""', shown="empty, not null"),
            Value(f"X'{ALL_BYTES.hex()}'", json.dumps(base64.b64encode(ALL_BYTES).decode()), shown="all 256 bytes"),
        ),
        "Base64.",
    ),
    Case(
        "date",
        "date",
        (
            *quoted("DATE", "0001-01-01", "9999-12-31"),
            Value("DATE'-0005-01-01'", '"-0005-01-01"'),
            Value("DATE'+12024-01-01'", '"+12024-01-01"', search=False),
        ),
        "Elasticsearch finds years up to 9999; later years are kept in `_source` and named in `_ignored`.",
    ),
    Case(
        "timestamp",
        "date",
        moments("TIMESTAMP", "Z"),
        "UTC, microseconds. Elasticsearch searches by milliseconds; years as for date.",
    ),
    Case("timestamp_ntz", "date", moments("TIMESTAMP_NTZ", ""), "No zone; read as UTC by Elasticsearch."),
    Case("array<int>", "long", (Value("array()", "[]"), Value("array(1, NULL)", "[1,null]"))),
    Case(
        "array<string>",
        "text",
        (
            Value("array('', NULL, '{\"}')", '["",null,"{\\"}"]'),
            Value("array(CAST(X'61FF62' AS STRING))", '["a\ufffdb"]', shown="bytes that are no UTF-8"),
        ),
    ),
    Case("array<double>", "double", (Value("array(0.5D, double('NaN'))", '[0.5,"NaN"]', search=False),)),
    Case("array<decimal(38,18)>", "keyword", (Value(f"array({NINES}BD)", f'["{NINES}"]'),)),
    Case("array<array<array<int>>>", "long", (Value("array(array(array(1), array()), NULL)", "[[[1],[]],null]"),)),
    Case(
        "array<struct<a:int,b:string>>",
        "object",
        (Value("array(named_struct('a', 1, 'b', NULL), NULL)", '[{"a":1,"b":null},null]'),),
    ),
    Case(
        "map<string,int>",
        "flattened",
        (Value("map()", "{}"), Value("map('a.b', 1, '', 2, 'none', NULL)", '{"a.b":1,"":2,"none":null}')),
        "One field, whatever keys there are: a map never widens the mapping.",
    ),
    Case("map<int,string>", "flattened", (Value("map(-1, 'x')", '{"-1":"x"}'),)),
    Case("map<boolean,int>", "flattened", keys(("true", "true"))),
    Case("map<double,int>", "flattened", keys(("double('NaN')", "NaN"))),
    Case(
        "map<decimal(15,14),int>", "flattened", keys(("CAST('1E-14' AS DECIMAL(15,14))", "0.00000000000001")), MAP_KEYS
    ),
    Case("map<date,int>", "flattened", keys(("DATE'2024-02-29'", "2024-02-29")), MAP_KEYS),
    Case(
        "map<timestamp,int>",
        "flattened",
        keys(("TIMESTAMP'0001-01-01 00:00:00.000001'", "0001-01-01T00:00:00.000001Z")),
        MAP_KEYS,
    ),
    Case(
        "map<timestamp_ntz,int>",
        "flattened",
        keys(("TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999")),
        MAP_KEYS,
    ),
    Case("map<binary,int>", "flattened", keys(("X'00FF'", "AP8=")), MAP_KEYS),
    Case(
        "map<struct<a:int,at:timestamp>,int>",
        "flattened",
        keys(
            (
                "named_struct('a', 1, 'at', TIMESTAMP'2024-01-01 00:00:00')",
                '{"a":1,"at":"2024-01-01T00:00:00.000000Z"}',
            )
        ),
        "A key that is no simple value is its JSON text.",
    ),
    Case(
        "map<string,array<struct<at:map<date,timestamp>>>>",
        "flattened",
        (
            Value(
                "map('k', array(named_struct('at', map(DATE'2024-02-29', TIMESTAMP'2024-01-01 00:00:00')), NULL))",
                '{"k":[{"at":{"2024-02-29":"2024-01-01T00:00:00.000000Z"}},null]}',
            ),
        ),
    ),
    Case(
        "struct<a:int,b:struct<c:struct<d:decimal(38,18)>>>",
        "object",
        (
            Value(
                "named_struct('a', NULL, 'b', NULL)", '{"a":null,"b":null}', shown="all fields null, not null itself"
            ),
            Value(
                f"named_struct('a', 1, 'b', named_struct('c', named_struct('d', {NINES}BD)))",
                f'{{"a":1,"b":{{"c":{{"d":"{NINES}"}}}}}}',
            ),
        ),
    ),
    Case(
        "variant",
        "object",
        (
            variant("""parse_json('{"a":[1,2.50,"x",null,true],"b":{}}')""", '{"a":[1,2.5,"x",null,true],"b":{}}'),
            variant("parse_json('[1]')", "[1]"),
            variant("to_variant_object(named_struct('whole', 5.0D))", '{"whole":5.0}'),
            variant("parse_json('\"x\"')", '"x"'),
            variant("parse_json('null')", "null", "a JSON null"),
            variant(
                "to_variant_object(named_struct('at', TIMESTAMP'9999-12-31 23:59:59.999999', 'b', X'00FF', "
                f"'d', {NINES}BD, 'f', double('NaN'), 'n', TIMESTAMP_NTZ'0001-01-01 00:00:00'))",
                '{"at":"9999-12-31 23:59:59.999999+00:00","b":"AP8=","d":'
                + NINES
                + ',"f":"NaN","n":"0001-01-01 00:00:00"}',
            ),
            variant(
                DEEP_ARRAYS,
                "[" * DEEP + "]" * DEEP,
                f"arrays {DEEP} deep",
            ),
        ),
        "The JSON Spark makes of it: times with a blank and an offset, decimals as numbers of any length. A JSON null and "
        "a null column give the same JSON. Not indexed, so that any content fits.",
    ),
    Case("map<string,variant>", "flattened", (Value("map('k', parse_json('{\"a\":[1]}'))", '{"k":{"a":[1]}}'),)),
    Case("array<variant>", "object", (Value("array(parse_json('1'), parse_json('{}'))", "[1,{}]"),)),
    Case("void", "keyword", (), "Always null."),
)

REFUSED_BY_ELASTICSEARCH = (
    Refusal(
        "map<string,int>",
        f"map({code_points('a' + chr(0))}, 1)",
        "a NUL character in a key",
        "document_parsing",
        "Keys of a flattened field can't hold it.",
    ),
    Refusal(
        "map<string,int>",
        "map(repeat('k', 33000), 1)",
        "a key of 33,000 bytes",
        "document_parsing",
        "A term has at most 32,766 bytes.",
    ),
)

REFUSED_BY_OPENSEARCH = (
    replace(REFUSED_BY_ELASTICSEARCH[1], code="illegal_argument"),
    Refusal(
        "map<string,string>",
        "map('k', repeat('v', 33000))",
        "a value of 33,000 bytes in a map",
        "illegal_argument",
        "A `flat_object` keeps path and value as a term of at most 32,766 bytes.",
    ),
    Refusal(
        "variant", DEEP_ARRAYS, f"arrays {DEEP} deep", "document_parsing", "Arrays are at most 20 deep, in any field."
    ),
)

REFUSED_BY_POSTGRES = (
    Refusal("string", code_points("nul\0byte"), "a NUL character", "invalid_text", "Its `text` can't hold it."),
    Refusal(
        "map<string,int>",
        f"map({code_points('a' + chr(0))}, 1)",
        "a NUL character in a key, or in a text inside a nested value",
        "invalid_text",
        "Its `jsonb` can't hold it.",
    ),
)

# The column in a table that the sink creates; every other type is jsonb.
POSTGRES_TYPES = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "string": "text", "varchar(5)": "text", "char(5)": "text",
    **{kind: kind.replace("decimal", "numeric") for kind in (
        "decimal(10,2)", "decimal(15,14)", "decimal(5,5)", "decimal(38,18)", "decimal(38,0)",
    )},
    "binary": "bytea", "date": "date", "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone", "array<int>": "integer[]",
    "array<string>": "text[]", "array<double>": "double precision[]",
    "array<decimal(38,18)>": "numeric(38,18)[]", "void": "text",
}  # fmt: skip

# Spark knows these, Delta 4.4 stores none of them: CREATE TABLE fails, with this condition.
NO_DELTA_COLUMN = {
    "string collate utf8_lcase": "DELTA_UNSUPPORTED_DATA_TYPES",
    "interval year to month": "DELTA_UNSUPPORTED_DATA_TYPES",
    "interval day to second": "DELTA_UNSUPPORTED_DATA_TYPES",
    "time(6)": "UNSUPPORTED_TIME_TYPE",
    "geometry(4326)": "DELTA_GEOSPATIAL_NOT_SUPPORTED",
    "geography(4326)": "DELTA_GEOSPATIAL_NOT_SUPPORTED",
    "decimal(5,-2)": "PARSE_SYNTAX_ERROR",
}

# Key text of a value; types that are not here can't be a key.
KEY_TEXTS: dict[str, tuple[tuple[str, str], ...]] = {
    "boolean": (("true", "true"),),
    "tinyint": (("-1Y", "-1"),),
    "smallint": (("-1S", "-1"),),
    "int": (("-1", "-1"),),
    "bigint": (("9223372036854775807L", "9223372036854775807"),),
    "float": (("float('NaN')", "NaN"), ("float('-0.0')", "-0.0")),
    "double": (("double('0.1')", "0.1"), ("double('1E7')", "1.0E7")),
    "decimal(38,18)": (("CAST('1.50' AS DECIMAL(38,18))", "1.500000000000000000"),),
    "string": (("'a:b%'", "a%3Ab%25"), ("''", ""), ("CAST(X'61FF' AS STRING)", "%!61FF")),
    "binary": (("X'00FF'", "AP8="), ("X''", ""), (f"X'{'00' * 60}'", "A" * 80)),
    "date": (("DATE'-0005-01-01'", "-0005-01-01"),),
    "timestamp": (("TIMESTAMP'2024-01-01 00:00:00.000001'", "2024-01-01T00%3A00%3A00.000001Z"),),
    "timestamp_ntz": (("TIMESTAMP_NTZ'2024-01-01 00:00:00'", "2024-01-01T00%3A00%3A00.000000"),),
}
KEYLESS = ("array<int>", "map<string,int>", "struct<a:int>", "variant", "void")


def rows() -> list[dict[str, str]]:
    """Return the rows of the table as SQL by column: the n-th row has the n-th value of each type, or null."""
    longest = max(len(case.values) for case in CASES)
    return [{c.column: c.values[n].sql for c in CASES if n < len(c.values)} for n in range(longest)]


def expected(number: int) -> dict[str, Any]:
    """The n-th value of each type that has one, None for the others."""
    return {c.column: c.values[number] if number < len(c.values) else None for c in CASES}
