"""Run the contract against custom sinks: the example of the docs, without and with resync, and a sink that appends."""

import inspect
import json
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

from connectors import (
    ArrowSettings,
    Capabilities,
    Claim,
    Rejected,
    RouteOptions,
    RouteSpec,
    RowSink,
    ScannedView,
    Verifiable,
    WriteResult,
)
from connectors.rendering import parsed_row
from connectors.testing import (
    SCHEMA,
    AppendContract,
    BadRowContract,
    ResyncContract,
    SinkContract,
    VerifyContract,
    deletion,
)
from connectors.testing.verifying import read_entries
from connectors.view import BODY, entry_batch
from tests.contract import folder_sink
from tests.contract.folder_sink import FolderSink
from tests.contract.resyncable_folder_sink import ResyncableFolderSink


@pytest.fixture
def route():
    return RouteSpec(name="orders_files", table="orders", keys=("id",), options=RouteOptions(), owner="us", epoch=1)


class TestFolderSink(SinkContract):
    kind = FolderSink

    @pytest.fixture
    def sink(self, tmp_path):
        return self.kind(FolderSink.Settings(type="folder", path=tmp_path))

    @pytest.fixture
    def read(self, tmp_path):
        def read(route, key):
            file = tmp_path / route.table / f"{sha256(key.encode()).hexdigest()}.json"
            return json.loads(file.read_text())["row"] if file.exists() else None

        return read


class TestResyncableFolderSink(ResyncContract, TestFolderSink):
    kind = ResyncableFolderSink


class FolderView(ScannedView):
    consistent = False
    parts = 1

    def __init__(self, folder):
        self.folder = folder

    def scan(self, part):
        entries = [json.loads(file.read_text()) for file in self.folder.glob("*.json")]
        entries = [entry for entry in entries if entry["row"] is not None]
        keys, guards = ([entry.get(name) for entry in entries] for name in ("key", "guard"))
        yield entry_batch(keys, guards, [json.dumps(entry["row"]) for entry in entries])

    def read(self, schema):
        return parsed_row(BODY, schema)


class VerifiableFolderSink(FolderSink, Verifiable):
    def view(self, route):
        return nullcontext(FolderView(Path(self.target(route))))

    def identity(self, route):
        return F.col("key")


class TestVerifiableFolderSink(TestFolderSink, VerifyContract):
    kind = VerifiableFolderSink

    @pytest.fixture
    def write_foreign(self, tmp_path):
        def write(route, key):
            (tmp_path / route.table / "foreign.json").write_text(json.dumps({"key": key, "row": {}}))

        return write


def test_verify_contract_names_a_sink_without_the_protocol(spark, tmp_path, route):
    sink = FolderSink(FolderSink.Settings(type="folder", path=tmp_path))
    with pytest.raises(AssertionError, match="FolderSink does not derive from Verifiable"):
        read_entries(spark, sink, route, SCHEMA)


def test_the_example_is_short():
    code = [line for line in inspect.getsource(folder_sink).splitlines() if line.strip()]
    assert len(code) <= 40


class LinesSettings(ArrowSettings):
    path: Path


class LinesSink(RowSink):
    """One line per change in a file per table; refuses deletes of the key ``kept``."""

    Settings, mode = LinesSettings, "append"
    capabilities = Capabilities(rejection_codes=("kept",))

    def target(self, route):
        return str(self.settings.path / f"{route.table}.jsonl")

    def check(self):
        pass

    def read_claim(self, route):
        file = Path(self.target(route) + ".claim")
        return Claim(**json.loads(file.read_text())) if file.exists() else None

    def prepare(self, schema, route):
        Path(self.target(route) + ".claim").write_text(
            json.dumps({"owner": route.owner, "epoch": route.epoch, "route": route.name})
        )
        return []

    def open(self, route):
        self.file = Path(self.target(route))

    def write_rows(self, changes):
        refused = [position for position, change in enumerate(changes) if change.deleted and change.key == "kept"]
        with self.file.open("a") as lines:
            for position, change in enumerate(changes):
                if position not in refused:
                    row = {"key": change.key, "guard": change.guard, "change_type": change.change_type, **change.row}
                    lines.write(json.dumps(row) + "\n")
        return WriteResult(rejected=[Rejected(position, "kept", "this key is kept") for position in refused])


class TestLinesSink(AppendContract, BadRowContract):
    @pytest.fixture
    def sink(self, tmp_path):
        return LinesSink(LinesSink.Settings(type="lines", path=tmp_path))

    @pytest.fixture
    def read_all(self, tmp_path):
        def read_all(route):
            file = tmp_path / f"{route.table}.jsonl"
            return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

        return read_all

    @pytest.fixture
    def read(self, read_all):
        return lambda route, key: next((row for row in read_all(route) if row["key"] == key), None)

    @pytest.fixture
    def bad_change(self):
        return deletion("kept", 7)
