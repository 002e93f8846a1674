"""Runs the arms of a contest by turns, the first of them twice as often: its two halves are the A/A control."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.benchmarks.arm import Sample
from tests.benchmarks.usage import measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.arm import Arm, Contest

NOISE = 0.10
"""More than that between two halves of the same arm, and no ratio of the contest means anything."""


@dataclass(frozen=True)
class Result:
    """Samples by arm; ``control``: those of the second half of the first arm."""

    name: str
    work: str
    samples: dict[str, list[Sample]]
    control: list[Sample]

    def rate(self, arm: str) -> float:
        """Rows a second: the median."""
        return median(sample.rate for sample in self.samples[arm])

    @property
    def noise(self) -> float:
        """How far the two halves of the first arm are apart, as a share."""
        first = self.rate(next(iter(self.samples)))
        return abs(median(sample.rate for sample in self.control) / first - 1)

    def ratio(self, arm: str, other: str) -> float | None:
        """How many times as fast one arm is as another; None where the control forbids to say."""
        return None if self.noise > NOISE else self.rate(arm) / self.rate(other)

    def cpu_seconds(self, arm: str) -> float:
        """Processor seconds of the client side for a row: the median."""
        return median(sample.cpu_seconds / sample.rows for sample in self.samples[arm])

    def effort(self, arm: str, other: str) -> float:
        """How many times the processor time of another arm an arm takes."""
        return self.cpu_seconds(arm) / self.cpu_seconds(other)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Result:
        samples = {name: [Sample(**one) for one in many] for name, many in given["samples"].items()}
        return cls(given["name"], given["work"], samples, [Sample(**one) for one in given["control"]])


def hold(contest: Contest, rounds: int, report: Callable[[str], None], *, warm_up: bool = True) -> Result:
    """Each round runs every arm once and the first one twice, in turning order, after the contest's warm-ups if any."""
    first = contest.arms[0]
    samples: dict[str, list[Sample]] = {arm.name: [] for arm in contest.arms}
    control: list[Sample] = []
    for _ in range(contest.warm_ups if warm_up else 0):
        for arm in contest.arms:
            report(f"{contest.name}: warm-up of {arm.name}: {_sample(arm).rate:,.0f} rows/s")
            contest.check(arm)
    for number in range(rounds):
        turns = [(arm, samples[arm.name]) for arm in contest.arms]
        turns.insert(1 + len(turns) // 2, (first, control))
        turns = turns[number % len(turns) :] + turns[: number % len(turns)]
        for arm, kept in turns:
            sample = _sample(arm)
            contest.check(arm)
            kept.append(sample)
            report(f"{contest.name}: {arm.name}: {sample.rate:,.0f} rows/s, {sample.cpu_seconds:.1f} processor seconds")
    return Result(contest.name, contest.work, samples, control)


def _sample(arm: Arm) -> Sample:
    arm.before()
    if arm.sent is not None:
        arm.sent()
    with measured(arm.processes) as usage:
        rows = arm.run()
    sent = None if arm.sent is None else arm.sent()
    return Sample(rows, usage.seconds, usage.cpu_seconds, usage.peak_rss, sent)
