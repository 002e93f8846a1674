"""The parts in which a chunk with bad rows is written again."""

import pyarrow as pa
import pytest
from psycopg import errors
from psycopg.pq import DiagnosticField

from connectors.change import CHANGE_TYPE
from connectors.postgres.writer import Writer, body_of

ROWS = 512


class BadRows(Writer):
    """Refuses a part as the server does: with the first line that is bad."""

    def _write(self, part, body, offset, names, outcome):
        lines = bytes(body).split(b"\n")[:-1]
        for line, text in enumerate(lines, 1):
            if text.startswith(b"bad"):
                context = f"COPY cdf_stage, line {line}" if names else ""
                raise errors.DataException("no", info={DiagnosticField.CONTEXT: context.encode()})
        outcome.stale += [offset + at for at in range(len(lines))]  # each row that was written


@pytest.mark.parametrize("names", [["a"], []], ids=["line is named", "line is unknown"])
@pytest.mark.parametrize(
    "bad",
    [range(0), range(ROWS), [0], [ROWS - 1], [5, 6, 300], range(0, ROWS, 2)],
    ids=["none", "all", "first", "last", "few", "half"],
)
def test_each_row_is_written_or_rejected_once_and_in_order(bad, names):
    ends = [f"{'bad' if at in bad else 'row'} {at:04}\n" for at in range(ROWS)]
    chunk = pa.RecordBatch.from_pydict({CHANGE_TYPE: ["insert"] * ROWS, '["a"]': ends})
    result = BadRows(None, None, None, ()).write(chunk, names)
    assert [entry.position for entry in result.rejected] == list(bad)
    assert list(result.stale) == [at for at in range(ROWS) if at not in bad]
    assert result.sent_bytes <= 12 * body_of(chunk).nbytes, "each row is sent some log(rows) times"
