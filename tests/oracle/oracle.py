"""Lives one history with the service beside it, and says every difference between the sinks and the engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.oracle import engines
from tests.oracle.acts import ACTS, halts
from tests.oracle.counts import miscounted, whole_batches
from tests.oracle.dimension import label
from tests.oracle.history import COMPARE, REWRITES, SERVICE
from tests.oracle.operations import OPERATIONS
from tests.oracle.service import Replicator
from tests.oracle.table import Table
from tests.support.reading import key_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cdf_replicator.errors.exceptions import ErrorDecision
    from deploy.local.servers import Elasticsearch, OpenSearch, Postgres, Redis
    from tests.oracle.history import Act, History
    from tests.oracle.table import Row

FORGETS = (COMPARE, "vacuum", "recreate_table")
"""Acts before which the sinks are compared. VACUUM removes what is not delivered, and a new table has a feed of its own."""


@dataclass
class Findings:
    """``compared``: rows held against an engine's. ``counted``: micro-batches whose counts were compared with the feed. ``other``: whether ``deltalake`` could read the feed."""

    differences: list[str] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    versions: int = 0
    batches: int = 0
    compared: int = 0
    counted: int = 0
    other: bool = False

    def plus(self, more: Findings) -> Findings:
        return Findings(
            self.differences + more.differences,
            self.operations + more.operations,
            self.versions + more.versions,
            self.batches + more.batches,
            self.compared + more.compared,
            self.counted + more.counted,
        )


def live(
    history: History,
    slug: str,
    folder: Path,
    spark: SparkSession,
    elasticsearch: Elasticsearch | OpenSearch,
    cache: Redis,
    database: Postgres,
) -> Findings:
    """Do what the history says, and compare at its end and before each act that removes what a comparison needs."""
    found = Findings()
    table = Table(spark, folder / "source", history.shape)
    service = Replicator(table, slug, folder, elasticsearch, cache, database)
    table.look()
    for number, act in enumerate(history.acts):
        if history.shape.feed_late and number == history.shape.feed_late:
            table.enable_feed()
        _perform(act, table, service, found)
    _compare_after(service.deliver(), table, service, found)
    found.versions, found.batches = len(table.versions), service.batches
    return found


def _perform(act: Act, table: Table, service: Replicator, found: Findings) -> None:
    if act.kind in (*SERVICE, "vacuum") and not table.feed_is_on:
        return
    if act.kind in FORGETS:
        _compare_after(service.catch_up(), table, service, found)
    if act.kind == COMPARE:
        return
    if act.kind in SERVICE:
        found.differences += ACTS[act.kind](service, act)
    else:
        OPERATIONS[act.kind](table, act)
        table.rewritten_after_vectors |= table.vectors and act.kind in REWRITES
        table.look()
    found.operations[act.kind] += 1


def _compare_after(decisions: dict[str, ErrorDecision], table: Table, service: Replicator, found: Findings) -> None:
    """Compare after a delivery, given what stopped the routes that did not get to its end."""
    found.differences += halts(decisions)
    table.capture()
    _compare(table, service, found, decisions)


def _compare(table: Table, service: Replicator, found: Findings, halted: Collection[str]) -> None:
    """Compare the sinks of the routes that did not halt: the others are behind the table."""
    found.other = _other_reads(table)
    if not table.shape.twins:
        _compare_by_key(table, service, found, halted)
    found.differences += service.verified(halted)
    if service.audit not in halted:
        _compare_audit(table, service, found)
    found.differences += service.miscounted
    for route, batches in service.delivered.items():
        for batch in whole_batches(batches) if route != "narrow" else ():
            found.differences += miscounted(route, batch, table.spark_feed, table.shape.keys)
            found.counted += 1
    if letters := service.letters():
        found.differences.append(f"{letters} dead letters, none expected")


def _compare_by_key(table: Table, service: Replicator, found: Findings, halted: Collection[str]) -> None:
    expected = {"Spark's SELECT": engines.selected(table)}
    first = min(service.pinned.values(), default=-1)
    expected["the snapshots' differences"] = engines.summed(table, first)
    if found.other:
        base = table.versions[first] if first >= 0 else {}
        expected["deltalake's fold"] = engines.folded(table.other_feed, base, first)
        expected["the same of Spark's feed"] = engines.folded(table.spark_feed, base, first)
    slug, further = service.slug, table.shape.further
    read = {"Elasticsearch": (f"{slug}_search", service.documents), "Redis": (f"{slug}_cache", service.entries)}
    shown = {sink: rows() for sink, (route, rows) in read.items() if route not in halted}
    if further == "none" and f"{slug}_db" not in halted:
        shown["PostgreSQL"] = {_key(table, row): row for row in service.table_rows()}
    if further == "replica" and f"{slug}_replica" not in halted:
        replicated = service.replicated()
        shown["the replica"] = {_key(table, row): row for row in replicated}
        if len(shown["the replica"]) < len(replicated):
            found.differences.append(f"the replica has a key more than once: {replicated}")
    for engine, rows in expected.items():
        wanted = {_key(table, row): _row(table, row) for row in rows.values()}
        for sink, held in shown.items():
            given = {key: _row(table, row) for key, row in held.items()}
            found.differences += _different(f"{sink} against {engine}", wanted, given)
            found.compared += len(wanted)
        narrow = {key: _narrow(row) for key, row in wanted.items() if _passes(row)}
        if "narrow" not in halted:
            found.differences += _different(f"Redis, filtered, against {engine}", narrow, service.narrow_entries())
        if further == "features" and f"{slug}_features" not in halted:
            found.differences += _different(f"the features against {engine}", _features(wanted), service.features())


def _compare_audit(table: Table, service: Replicator, found: Findings) -> None:
    """As a multiset: the snapshot of each epoch, then the feed after it, or from an earlier version that was replayed."""
    snapshots = [pinned for pinned in service.epochs[service.audit].values() if pinned >= 0]
    first = min([service.pinned[service.audit] + 1, *service.replayed])
    feeds = {"Spark's feed": table.spark_feed} | ({"deltalake's feed": table.other_feed} if found.other else {})
    held = Counter(_audit_row(table, row, row["change_type"], row["commit_version"]) for row in service.audited())
    for engine, feed in feeds.items():
        wanted = Counter(
            _audit_row(table, row, "snapshot", pinned) for pinned in snapshots for row in table.held[pinned]
        )
        wanted += Counter(
            _audit_row(table, row, row["_change_type"], row["_commit_version"])
            for row in feed
            if row["_commit_version"] >= first and row["_change_type"] != "update_preimage"
        )
        lost = service.audited_from
        wanted, held = (Counter({r: n for r, n in rows.items() if r[0] > lost}) for rows in (wanted, held))
        found.compared += sum(wanted.values())
        for row, count in (wanted - held).items():
            found.differences.append(f"audit against {engine}: lacks {count} x {row}")
        for row, count in (held - wanted).items():
            found.differences.append(f"audit against {engine}: has {count} too many x {row}")


def _other_reads(table: Table) -> bool:
    """Return True if ``deltalake`` supports the table. The table's features decide, not the rows it returns."""
    shape = table.shape
    if (
        table.mapped
        or table.widened
        or table.fields
        or shape.type_widening
        or (shape.odd_region and shape.layout == "region")
    ):
        return False
    if table.other_refused:
        raise AssertionError(f"deltalake can't read a table it should read: {table.other_refused}")
    return not table.rewritten_after_vectors


def _passes(row: Row) -> bool:
    """The filter of the narrow route, in Python."""
    return row["region"] == "us" or (row["amount"] is not None and row["amount"] > 40)


def _narrow(row: Row) -> Row:
    return {"id": row["id"], "price": row["amount"], "label": label(row["region"])}


def _features(rows: dict[str, Row]) -> dict[str, Row]:
    """The query of the feature route, in Python."""
    answer: dict[str, Row] = {}
    for region in {row["region"] for row in rows.values()}:
        members = [row for row in rows.values() if row["region"] == region]
        amounts = [row["amount"] for row in members if row["amount"] is not None]
        names = [row["name"] for row in members if row["name"] is not None]
        answer[region] = {
            "region": region,
            "held": len(members),
            "total": sum(amounts) if amounts else None,
            "newest": max(names, key=str.encode) if names else None,
        }
    return answer


def _key(table: Table, row: Row) -> str:
    return key_text(row, table.shape.keys)


def _row(table: Table, row: Row) -> Row:
    """Return a row with the present columns and fields. Those added after the row was written are null."""
    return {name: _value(table, name, row.get(name)) for name in table.all_columns}


def _value(table: Table, name: str, value: Any) -> Any:
    if name != "detail" or value is None:
        return value
    return tuple((field, value.get(field)) for field in sorted(table.fields))


def _audit_row(table: Table, row: Row, change_type: str, version: int) -> tuple:
    return (version, change_type, *_row(table, row).values())


def _different(what: str, wanted: dict[str, Row], held: dict[str, Row]) -> list[str]:
    return [
        f"{what}: key {key}: expected {wanted.get(key)}, found {held.get(key)}"
        for key in sorted(wanted.keys() | held.keys())
        if wanted.get(key) != held.get(key)
    ]
