"""Sinks of these tests, installed as a third party's would be (see ``conftest.py``). Spark's workers import them."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field
from pyspark import SparkContext
from pyspark.sql import functions as F  # noqa: N812

from connectors import (
    Addressed,
    ArrowSettings,
    Claim,
    PermanentError,
    Rejected,
    Repairable,
    RetryableError,
    RowSink,
    View,
    Watermarked,
    WriteResult,
)
from connectors.view import PACED
from tests.contract.resyncable_folder_sink import ResyncableFolderSink


class PickySink(ResyncableFolderSink, Watermarked):
    """The folder sink, which refuses a row whose name begins with ``bad``, and fails as ``<path>/trouble`` says.

    It refuses deletes instead if that is ``referenced``, as a table with a foreign key does.
    """

    def check(self):
        if _said(self.settings.path) == "locked":
            raise PermanentError("The folder is locked.", "Unlock it.")
        if _said(self.settings.path) == "unreachable":
            raise RetryableError("unreachable", "no answer")
        super().check()

    def prepare(self, schema, route):
        super().prepare(schema, route)
        return ["the folder is on one disk"]

    def save_watermark(self, route, watermark):
        """A folder has no place for a watermark."""

    def lost_acknowledged_writes(self):
        return _said(self.settings.path) == "restarted"

    def count_entries(self, route, below_guard):
        if _said(self.settings.path) == "count":
            raise RuntimeError("the plug was pulled")
        return super().count_entries(route, below_guard)

    def delete_orphans(self, route, below_guard):
        if _said(self.settings.path) == "sweep":
            files = sorted(Path(self.target(route)).glob("*.json"))
            next(file for file in files if json.loads(file.read_text())["guard"] < below_guard).unlink()
            raise RuntimeError("the plug was pulled")
        return super().delete_orphans(route, below_guard)

    def write_rows(self, changes):
        _hang(self.settings.path)
        after = _trouble(self.settings.path)
        if after is not None:
            super().write_rows(changes[:after])
            raise RuntimeError("the plug was pulled")
        refused = [] if _said(self.settings.path) == "tolerant" else _refused(changes)
        if _said(self.settings.path) == "referenced":
            refused = [position for position, change in enumerate(changes) if change.deleted]
        taken = [position for position in range(len(changes)) if position not in refused]
        result = super().write_rows([changes[position] for position in taken])
        return WriteResult(
            stale=[taken[position] for position in result.stale],
            noop=[taken[position] for position in result.noop],
            rejected=[Rejected(position, "bad_name", "the name is bad") for position in refused],
        )


class NamelessSink(PickySink, Addressed):
    """The picky sink, which can't say its address."""

    @property
    def endpoint(self):
        raise RuntimeError("the address is not known")

    def places(self, route):
        return frozenset()


class EndlessSink(PickySink, Repairable):
    """The picky sink, whose view has no end; fails to open it as ``<path>/trouble`` says.

    ``<path>/viewed`` says whether the reads of the view are paced.
    """

    def identity(self, route):
        return F.col("key")

    def key(self, route):
        return F.col("identity")

    @contextmanager
    def view(self, route):
        if _said(self.settings.path) == "view":
            raise RuntimeError("the plug was pulled")
        paced = SparkContext.getOrCreate().getLocalProperty(PACED)
        (self.settings.path / "viewed").write_text(str(paced))
        try:
            yield EndlessView()
        finally:
            (self.settings.path / "closed").touch()


class EndlessView(View):
    consistent = True

    def entries(self, spark, schema):
        row, guard = F.lit(None).cast(schema).alias("row"), F.lit(None).cast("long").alias("guard")
        return spark.range(10**15).select(F.col("id").cast("string").alias("identity"), guard, row)


class LinesSettings(ArrowSettings):
    path: Path
    headers: dict[str, str] = Field(default_factory=dict)


class LinesSink(RowSink):
    """An append sink: one line per change; refuses and hangs as ``PickySink`` does."""

    Settings, mode = LinesSettings, "append"

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
        _hang(self.settings.path)
        refused = _refused(changes)
        with self.file.open("a") as lines:
            for position, change in enumerate(changes):
                if position not in refused:
                    lines.write(json.dumps([change.key, change.commit_version, change.change_type, change.row]) + "\n")
        return WriteResult(rejected=[Rejected(position, "bad_name", "the name is bad") for position in refused])


def _refused(changes):
    return [p for p, c in enumerate(changes) if not c.deleted and str(c.row.get("name")).startswith("bad")]


def _hang(folder):
    while _said(folder) == "hang":
        time.sleep(0.1)


def _trouble(folder):
    """None: all is well. A number: write so many changes, then die."""
    what = _said(folder)
    if what == "away":
        (folder / "called").touch()
        raise RetryableError("unreachable", "no answer")
    if what == "away once" and not (folder / "called").exists():
        (folder / "called").touch()
        raise RetryableError("unreachable", "no answer", retry_after=60)  # longer than a write is tried
    if what in {"forbidden", "locked"}:
        raise PermanentError("The folder is locked.", "Unlock it.")
    return int(what) if what.isdigit() else None


def _said(folder):
    file = folder / "trouble"
    return file.read_text() if file.exists() else ""
