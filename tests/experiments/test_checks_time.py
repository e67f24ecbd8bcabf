"""Statements about time: each verdict from invented records."""

from __future__ import annotations

from functools import partial

from experiments.synthetic import clocked, curved, timed
from quadjoint.experiments.checks_time import faster, growth, irregular_cost, linear_growth, similar_times, sooner
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict


def test_faster_goes_by_the_turns_of_the_clock_at_the_largest_width():
    noise = [1.0, 1.1, 0.9, 1.0, 1.05]
    records = [clocked("a", noise, width=20), clocked("b", [2 * s for s in noise], width=20)]
    records += [clocked("a", [9.0] * 5), clocked("b", [1.0] * 5)]  # the smaller width does not count
    finding = faster("a", "b")(records)
    assert finding.verdict is AGREES and finding.words == "b takes 2.00 (2.00 to 2.00) times as long as a at width 20"
    assert faster("b", "a")(records).verdict is DISAGREES
    assert faster("a", "c")(records).verdict is MISSING


def test_a_ratio_within_the_noise_is_not_called_faster():
    wild = [clocked("a", [1.0, 1.2, 0.8, 1.1]), clocked("b", [1.1, 0.9, 1.2, 1.0])]
    assert faster("a", "b")(wild).verdict is OPEN
    hardly = [clocked("a", [1.0, 1.1, 0.9]), clocked("b", [1.03, 1.133, 0.927])]
    assert faster("a", "b")(hardly).verdict is DISAGREES  # 3 % is measured, a twentieth is asked for


def test_without_the_clock_times_of_training_are_compared_seed_by_seed():
    slow_seeds = [1.0, 5.0, 20.0]
    records = timed("a", slow_seeds) + timed("b", [1.5 * s for s in slow_seeds])
    assert faster("a", "b")(records).verdict is AGREES
    assert faster("a", "b")(timed("a", [1.0]) + timed("b", [3.0])).verdict is OPEN  # one seed, no repetition


def test_a_neighbour_that_doubles_the_wall_clock_changes_no_verdict():
    """The times of the wall in these records are noise; those of the processor are not."""
    records = [clocked("a", [1.0, 1.01, 0.99]), clocked("b", [1.2, 1.21, 1.19])]
    for record, busy in zip(records, (5.0, 1.0), strict=True):
        record["result"]["steps"]["seconds"] = [busy * s for s in record["result"]["steps"]["cpu_seconds"]]
        record["result"]["seconds_per_gradient"] = busy
    assert faster("a", "b")(records).verdict is AGREES
    for record in records:
        record["config"]["device"] = "cuda"  # where the processor waits, the wall clock counts
    assert faster("a", "b")(records).verdict is DISAGREES


def test_growth_compares_ratios_of_the_ends():
    records = [clocked("a", [1.0, 1.1], width=1), clocked("b", [1.0, 1.1], width=1)]
    records += [clocked("a", [2.0, 2.2], width=9), clocked("b", [8.0, 8.8], width=9)]
    assert growth("a", "b")(records).verdict is AGREES
    assert growth("b", "a")(records).verdict is DISAGREES
    assert growth("a", "b")(records[:2]).verdict is MISSING
    assert growth("a", "b")([*records[:2], clocked("a", [2.0], width=9), clocked("b", [8.0], width=9)]).verdict is OPEN


def test_similar_times_at_the_smallest_width():
    check = similar_times(("a", "b"), 4 / 3)
    far = [clocked("a", [1.0, 1.0], width=50), clocked("b", [9.0, 9.0], width=50)]
    assert check([clocked("a", [1.0, 1.1]), clocked("b", [1.1, 1.2]), *far]).verdict is AGREES
    assert check([clocked("a", [1.0, 1.1]), clocked("b", [1.5, 1.65]), *far]).verdict is DISAGREES
    assert check([clocked("a", [1.0, 1.1]), clocked("b", [1.0, 1.7]), *far]).verdict is OPEN
    assert check(far[:1]).verdict is MISSING


def test_linear_growth_in_the_parameters():
    def records(power: float, noise: float = 1.0) -> list[dict]:
        return [
            clocked("a", [w**power, noise * w**power], width=w, result={"parameters": w}) for w in (500, 1000, 2000)
        ]

    check = linear_growth(("a",), 0.75, 1.25)
    assert check(records(1.0)).verdict is AGREES
    assert check(records(0.3)).verdict is DISAGREES
    wild = records(1.0)
    wild[-1]["result"]["steps"]["cpu_seconds"][1] *= 20
    assert check(wild).verdict is OPEN
    assert check(records(1.0)[:1]).verdict is MISSING


def test_sooner_goes_by_the_time_to_the_lowest_loss_that_both_reach():
    falling = [[4.0, 2.0, 1.0, 0.5], [4.0, 2.1, 1.1, 0.5]]
    check = sooner("a", "b", "loss")
    assert check(curved("a", falling) + curved("b", falling, second=3.0)).verdict is AGREES
    wide = partial(curved, width=1000)
    assert check(wide("a", falling, second=3.0) + wide("b", falling)).verdict is DISAGREES
    assert check(curved("a", falling, second=3.0) + curved("b", falling)).verdict is OPEN  # not a large model
    single = curved("a", falling[:1]) + curved("b", falling[:1], second=3.0)
    assert check(single).verdict is OPEN  # nothing is known of the spread
    assert check(single + curved("c", falling, second=0.5)).verdict is AGREES  # another method tells it
    wild = [[4.0, 0.5, 0.5, 0.5], [4.0, 3.0, 2.0, 0.5]]
    assert check(single + curved("c", wild, second=0.5)).verdict is OPEN
    assert check(curved("a", falling)).verdict is MISSING


def test_irregular_times_cost_more():
    def records(regular: float, merged: float) -> list[dict]:
        kinds = (("regular", regular), ("merged", merged))
        return [
            record
            for times in (10, 50)
            for spacing, seconds in kinds
            for record in timed("a", [seconds, 1.1 * seconds], study="regularity", times=times, spacing=spacing)
        ]

    check = irregular_cost("regular", "merged", "a", 1.5)
    assert check(records(1.0, 5.0)).verdict is AGREES
    assert check(records(1.0, 1.2)).verdict is DISAGREES
    assert check([]).verdict is MISSING
