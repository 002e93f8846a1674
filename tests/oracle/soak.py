"""Run random histories for a given time: ``make soak SECONDS=600``, ``make soak SEED=41``.

Ends with the line ``differences: N`` and exits 1 where there is one; then it prints the history, which becomes a test by
name in ``test_further_histories.py``.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from deploy.local.servers import Elasticsearch, Postgres, Redis
from tests.oracle.history import LENGTH, history_of
from tests.oracle.oracle import Findings, live
from tests.support.session import started

if TYPE_CHECKING:
    from collections.abc import Iterable


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds: Iterable[int] = itertools.count(int(time.time())) if options.seed is None else [options.seed]
    ends, total, lived = time.monotonic() + options.seconds, Findings(), 0
    readable: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers = [stack.enter_context(kind.start()) for kind in (Elasticsearch, Redis, Postgres)]
        spark = stack.enter_context(started(Path(folder)))
        spark.sparkContext.setLogLevel("ERROR")
        for seed in seeds:
            history, began = history_of(seed, options.length), time.monotonic()
            try:
                with tempfile.TemporaryDirectory(dir=folder) as home:
                    found = live(history, f"t{seed}", Path(home), spark, *servers)
                spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # or it keeps every table there was
            except Exception:  # noqa: BLE001 - a history that breaks down is a finding like any other
                found = Findings(differences=[traceback.format_exc()])
            lived += 1
            _print_seed(seed, found, time.monotonic() - began)
            if found.differences:
                print(f"{history!r}\n", flush=True)
            readable["deltalake too" if found.other else "Spark alone"] += 1
            total = total.plus(found)
            if time.monotonic() > ends:
                break
    print(f"\nseeds: {lived}  feed folded by: {dict(readable)}")
    print(f"operations: {sum(total.operations.values())} {dict(total.operations.most_common())}")
    print(f"versions: {total.versions}  micro-batches: {total.batches}  rows compared: {total.compared}")
    print(f"differences: {len(total.differences)}")
    return 1 if total.differences else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="begin no further history after so many seconds")
    parser.add_argument("--seed", type=int, help="live this one only")
    parser.add_argument("--length", type=int, default=LENGTH, help="operations in a history")
    return parser.parse_args()


def _print_seed(seed: int, found: Findings, seconds: float) -> None:
    operations = sum(found.operations.values())
    print(
        f"seed {seed}: {operations} operations, {found.versions} versions, {found.batches} micro-batches, "
        f"{found.compared} rows compared, {len(found.differences)} differences, {seconds:.0f} s",
        flush=True,
    )
    for difference in found.differences[:10]:
        print(f"    {difference}")


if __name__ == "__main__":
    sys.exit(main())
