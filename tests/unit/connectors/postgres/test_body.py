"""The body of COPY: raw texts of a chunk, escaped, before the rest of each line."""

import pyarrow as pa
import pytest

from connectors.postgres.types import RAW
from connectors.postgres.writer import body_of


def chunk(ends, *texts):
    columns = [pa.array(["key"] * len(ends)), *(pa.array(column, pa.binary()) for column in texts), pa.array(ends)]
    return pa.RecordBatch.from_arrays(
        columns, names=["key", *(f"{RAW}{number}" for number in range(len(texts))), '["a"]']
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"plain", b"plain\t1\n"),
        (None, b"\\N\t1\n"),
        (b"", b"\t1\n"),
        (b"\\N", b"\\\\N\t1\n"),
        (b"a\\n\tb\nc\rd\\", b"a\\\\n\\tb\\nc\\rd\\\\\t1\n"),
        ("\u00e9\u2028".encode(), "\u00e9\u2028\t1\n".encode()),
        (b"a\xe2\x82\tb\xff", "a\ufffd\\tb\ufffd\t1\n".encode()),
    ],
)
def test_text_is_escaped_and_valid_utf8(text, line):
    assert bytes(body_of(chunk(["1\n"], [text]))) == line
    assert bytes(body_of(chunk(["0\n", "1\n", "2\n"], [b"x", text, b"y"]).slice(1, 1))) == line


def test_lines_have_all_texts_of_their_row_in_order():
    rows = chunk(["1\n", "2\n", "3\n"], [b"a", None, b"c"], [None, b"b\t", b""])
    assert bytes(body_of(rows)) == b"a\t\\N\t1\n\\N\tb\\t\t2\nc\t\t3\n"
    assert bytes(body_of(rows.slice(2))) == b"c\t\t3\n"


def test_lines_without_texts_are_sent_as_they_are():
    rows = chunk(["1\\t\n", "2\n", "3\n"])
    assert bytes(body_of(rows)) == b"1\\t\n2\n3\n"
    assert bytes(body_of(rows.slice(1, 1))) == b"2\n"


def test_parts_of_a_character_in_adjacent_texts_are_no_character():
    first, second = "\u00e9".encode()[:1], "\u00e9".encode()[1:]
    assert bytes(body_of(chunk(["1\n", "2\n"], [first, second]))) == "\ufffd\t1\n\ufffd\t2\n".encode()
