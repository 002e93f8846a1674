"""A contest gives no ratio that its control forbids, and runs every arm as often as any other."""

import pytest

from tests.benchmarks.arm import Arm, Contest, Sample
from tests.benchmarks.contest import Result, hold
from tests.benchmarks.kept import Kept
from tests.benchmarks.report import summary
from tests.benchmarks.targets import EFFORTS, LIMITS, TARGETS, check_targets


def samples(*rates):
    return [Sample(rows=rate, seconds=1, cpu_seconds=0, peak_rss=0, sent_bytes=None) for rate in rates]


def result(control, name="redis bootstrap"):
    given = {"ours": samples(90, 100, 110), "pipeline.set": samples(20, 25, 30)}
    return Result(name, "", given, samples(control))


def of_pipeline(found):
    (check,) = (check for check in found if check.what == "redis bootstrap: ours / pipeline.set")
    return check


def test_ratio_is_the_ratio_of_the_medians():
    assert result(105).ratio("ours", "pipeline.set") == 4


@pytest.mark.parametrize("control", [89, 111])
def test_control_with_a_large_deviation_forbids_every_ratio(control):
    assert result(control).ratio("ours", "pipeline.set") is None


def test_parts_of_the_same_code_are_kept_and_others_are_measured(tmp_path):
    file, results = tmp_path / "results.json", Kept()
    results.measured("idle", {}, {}, "one")
    results.measured("start", {}, {}, "")  # not committed
    results.write(file)
    results = Kept.read(file)
    assert results.left(("idle", "start", "many"), "one") == ["start", "many"]
    assert results.left(("idle", "start"), "two") == results.left(("idle", "start"), "") == ["idle", "start"]


def test_every_arm_runs_once_a_round_and_the_first_one_twice():
    run = []
    checked = []

    def arm(name):
        return Arm(name, lambda: run.append(name) or 1, [], lambda: run.append(f"before {name}"))

    contest = Contest("c", "", [arm("ours"), arm("theirs")], lambda arm: checked.append(arm.name))
    held = hold(contest, 3, lambda _: None)
    assert (checked.count("ours"), checked.count("theirs")) == (run.count("ours"), run.count("theirs"))
    assert run.count("ours") == 1 + 3 * 2
    assert run.count("theirs") == 1 + 3
    assert run.count("before ours") == run.count("ours")
    assert len(held.control) == len(held.samples["ours"]) == len(held.samples["theirs"]) == 3


def test_met_target_is_held_and_unknown_target_is_missed():
    met, unsure = (of_pipeline(check_targets({"redis bootstrap": result(control)}, {})) for control in (100, 50))
    assert (met.held, met.measured) == (True, "4.00 x")
    assert (unsure.held, unsure.measured) == (False, "too noisy to say")
    assert summary([met, unsure]) == "targets: 1 held, 1 missed"


@pytest.mark.parametrize(("theirs", "held"), [(2.0, True), (0.9, False)])
def test_processor_time_is_compared_for_a_row(theirs, held):
    seconds = {"ours": 1.0, "spark-redis": theirs}
    given = {arm: [Sample(100, 1, cpu, 0, None)] * 3 for arm, cpu in seconds.items()}
    found = check_targets({"redis bootstrap": Result("redis bootstrap", "", given, given["ours"])}, {})
    (check,) = (each for each in found if each.what == "redis bootstrap: processor time, ours / spark-redis")
    assert (check.measured, check.held) == (f"{1 / theirs:.2f} x", held)


def test_unmeasured_target_is_counted_apart():
    found = check_targets({}, {})
    assert len(found) == len(TARGETS) + len(EFFORTS) + len(LIMITS)
    assert {(check.measured, check.held) for check in found} == {("not measured", False)}
    assert summary(found[:2]) == "targets: 0 held, 0 missed, 2 not measured"


def test_results_read_back_equal_the_stored_results():
    kept = result(100)
    assert Result.from_json(kept.to_json()) == kept


def test_a_limit_is_held_up_to_its_value():
    limits = {"commit to visible in Redis, p50": 0.6, "commit to visible in Redis, p99": 1.51}
    found = [check for check in check_targets({}, limits) if check.what in limits]
    assert [(check.measured, check.held) for check in found] == [("0.60 s", True), ("1.51 s", False)]


def test_targets_are_unique():
    names = [(target.contest, target.against) for target in TARGETS]
    assert len(names) == len(set(names))
