"""``make bench``: holds the contests, takes the measures, prints the tables, and keeps all of it as JSON.

    python -m tests.benchmarks [--only elasticsearch,latency] [--smoke] [--rounds 3] [--json FILE]

Parts that are not selected keep their results in the file. Without ``--only``, so do the parts that were measured on the
committed code before: a run that was interrupted continues.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated

import typer

from tests.benchmarks import contests, measures, works
from tests.benchmarks.contest import hold
from tests.benchmarks.kept import Kept, measured_code
from tests.benchmarks.report import show
from tests.benchmarks.scale import FULL, SMOKE
from tests.benchmarks.targets import check_targets
from tests.support import service

PARTS = (*contests.PARTS, *measures.PARTS)


def main(
    only: Annotated[str, typer.Option(help="Parts, comma separated; none: all not yet measured on this code.")] = "",
    smoke: Annotated[bool, typer.Option(help="As little as shows that it works; no targets.")] = False,
    rows: Annotated[int, typer.Option(help="Of the two large works; 0: as many as there should be.")] = 0,
    rounds: Annotated[int, typer.Option(help="Of each contest; 0: as many as there should be.")] = 0,
    kept: Annotated[Path | None, typer.Option("--json", help="Where the results are kept.")] = None,
) -> None:
    parts = only.split(",") if only else [*PARTS]
    if unknown := set(parts) - set(PARTS):
        raise typer.BadParameter(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    scale = SMOKE if smoke else FULL
    if smoke:
        service.SPARK_CONF.update(service.SHORT_LIVED)
    scale = dataclasses.replace(scale, rows=rows or scale.rows, rounds=rounds or scale.rounds)
    kept = kept or works.FOLDER / ("smoke.json" if smoke else f"results-{scale.rows}.json")
    results, code = Kept.read(kept), "" if smoke or rows or rounds else measured_code()
    if not only:
        parts = results.left(PARTS, code)
    contested = [part for part in contests.PARTS if part in parts]
    if contested:
        with contests.session() as spark:
            for part in contested:
                for contest in contests.PARTS[part](spark, scale):
                    results.add(hold(contest, scale.rounds, print, warm_up=scale.warm_up))
                    results.write(kept)
                results.code[part] = code
                results.write(kept)
    for part in (part for part in measures.PARTS if part in parts):
        results.measured(part, *measures.PARTS[part](scale, print), code)
        results.write(kept)
    show(results.contests, [] if smoke else check_targets(results.contests, results.values))


if __name__ == "__main__":
    typer.run(main)
