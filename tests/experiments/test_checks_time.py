"""Statements about time: each verdict from invented records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.synthetic import clocked, run, timed
from quadjoint.experiments import clock, crossing, images, nested_spheres, ou, sines
from quadjoint.experiments.claims import checks_time
from quadjoint.experiments.claims.checks_ablation import irregular_cost
from quadjoint.experiments.claims.checks_time import (
    faster,
    faster_on_the_whole,
    grows_more,
    growth,
    keeps_time,
    linear_growth,
    shrinks,
    similar_times,
)
from quadjoint.experiments.config import as_dict
from quadjoint.experiments.records import clocked as split
from quadjoint.experiments.records import epoch_seconds, step_seconds
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict


def test_faster_goes_by_the_turns_of_the_clock_at_the_largest_width():
    noise = [1.0, 1.1, 0.9, 1.0, 1.05]
    records = [clocked("a", noise, width=20), clocked("b", [2 * s for s in noise], width=20)]
    records += [clocked("a", [9.0] * 5), clocked("b", [1.0] * 5)]  # the smaller width does not count
    finding = faster("a", "b")(records)
    assert finding.verdict is AGREES and finding.words == "b takes 2.00 times as long as a at width 20"
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
    single = timed("a", [1.0]) + timed("b", [3.0])
    assert faster("a", "b")(single).verdict is OPEN  # nothing is known of the spread
    assert faster("a", "b")(single + timed("c", [1.0, 1.1, 0.9])).verdict is AGREES  # another method tells it


def test_epochs_of_a_run_are_no_repetitions_of_it():
    """One run may meet a busier machine than another, in all of its epochs."""

    def steady(method: str, second: float) -> dict:
        curves = {"seconds": [second] * 50, "cpu_seconds": [second] * 50}
        facts = {"curves": curves, "epochs": 50, "gradients": 50, "cpu_seconds_per_gradient": second}
        return run(method, result=facts)

    assert faster("a", "b")([steady("a", 1.0), steady("b", 1.16)]).verdict is OPEN


def test_statements_about_large_and_small_models_are_not_judged_on_others():
    records = [clocked(m, [s, 1.1 * s], width=100) for m, s in (("a", 1.0), ("b", 2.0))]
    assert faster("a", "b")(records).verdict is AGREES
    assert faster("a", "b", least=500)(records).verdict is MISSING
    assert faster("a", "b", most=50)(records).verdict is MISSING
    assert similar_times(("a", "b"), 4 / 3)(records).verdict is MISSING
    wider = [clocked(m, [s, 1.1 * s], width=200) for m, s in (("a", 1.0), ("b", 4.0))]
    assert growth("a", "b")(records + wider).verdict is MISSING
    assert growth("a", "b", least=200)(records + wider).verdict is AGREES


def test_the_clock_counts_at_its_widths_and_training_at_the_others():
    in_turns = [clocked("a", [1.0, 1.1], width=20), clocked("b", [2.0, 2.2], width=20)]
    trained = timed("a", [5.0, 5.1], width=20) + timed("a", [1.0, 1.1], width=900) + timed("b", [3.0, 3.3], width=900)
    chosen = checks_time.timed(in_turns + trained)
    assert [(r["config"]["width"], r["config"]["study"]) for r in chosen] == [(20, "clock")] * 2 + [(900, "widths")] * 4
    assert faster("a", "b", least=500)(in_turns + trained).verdict is AGREES


@pytest.mark.parametrize("task", [crossing, nested_spheres, sines, ou, images])
def test_where_the_clock_has_run_trained_runs_of_the_same_size_are_not_timed(task):
    """With the configurations of the experiments: their runs have a batch size, the clock's lines only of images."""
    of_images = task is images
    config = replace(task.Config(), width=50)
    cell = clock.Config(task=task.NAME, width=50, **({"dataset": "mnist", "batch": config.batch} if of_images else {}))
    trained = [run("direct", result={"seconds_per_gradient": 5.0}) for _ in range(3)]
    trained = [r | {"config": as_dict(config) | {"method": "direct", "seed": k}} for k, r in enumerate(trained)]
    steps = {"cpu_seconds_per_gradient": 1.0, "steps": {"cpu_seconds": [1.0, 1.0], "seconds": [1.0, 1.0]}}
    line = {"experiment": "clock", "status": "done", "config": as_dict(cell), "result": {"methods": {"direct": steps}}}
    both = trained + split([line], task.NAME)
    assert [step_seconds(r) for r in checks_time.timed(both)] == [1.0]
    for r in trained:
        r["result"] |= {"epochs": 4, "gradients": 8, "curves": {"cpu_seconds": [9.0] * 4}}
    assert epoch_seconds(both, trained) == [[2.0] * 4] * 3  # two steps an epoch, at the pace of the clock
    assert epoch_seconds(trained, trained) == [[9.0] * 4] * 3


def test_faster_on_the_whole_is_an_average_over_the_widths():
    def records(*slower: float) -> list[dict]:
        pairs = [(m, s, 10 * k) for k, each in enumerate(slower, 1) for m, s in (("a", 1.0), ("b", each))]
        return [clocked(m, [s, 1.01 * s, 0.99 * s], width=width) for m, s, width in pairs]

    check = faster_on_the_whole("a", "b")
    assert check(records(1.3, 1.2, 0.9)).verdict is AGREES
    assert check(records(0.7, 0.8, 1.1)).verdict is DISAGREES
    assert check(records(1.2)[:1]).verdict is MISSING


def test_an_advantage_shrinks_with_the_batch():
    def records(small: float, large: float) -> list[dict]:
        pairs = [("a", 1.0, 16), ("b", small, 16), ("a", 1.0, 32), ("b", large, 32)]
        return [clocked(m, [s, 1.01 * s, 0.99 * s], batch=batch, dataset="x") for m, s, batch in pairs]

    check = shrinks("a", "b", (16, 32))
    assert check(records(2.0, 1.2)).verdict is AGREES
    assert check(records(1.2, 2.0)).verdict is DISAGREES
    assert check(records(0.9, 0.8)).verdict is OPEN  # there is no advantage that could shrink
    assert shrinks("a", "b", (16, 32), least=200)(records(2.0, 1.2)).verdict is OPEN  # too few channels
    assert check(records(2.0, 1.9)).words.startswith("b over a with 10 channels: 2.00 with a batch of 16")
    assert check(records(2.0, 1.2)[:2]).verdict is MISSING


def test_times_that_do_not_grow_with_the_width():
    def records(wide: float) -> list[dict]:
        return [clocked("a", [1.0, 1.1, 0.9]), clocked("a", [wide, 1.1 * wide, 0.9 * wide], width=90)]

    check = keeps_time(("a", "b"), 1.5)
    assert check(records(0.8)).verdict is AGREES
    assert check(records(3.0)).verdict is DISAGREES
    assert check(records(1.5)).verdict is OPEN
    assert check(records(1.0)[:1]).verdict is MISSING
    slow = [r | {"config": r["config"] | {"method": "b"}} for r in records(3.0)]
    assert check(records(0.8) + slow).verdict is DISAGREES


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
    records += [clocked("a", [2.0, 2.2], width=900), clocked("b", [8.0, 8.8], width=900)]
    assert growth("a", "b")(records).verdict is AGREES
    assert growth("b", "a")(records).verdict is DISAGREES
    assert growth("a", "b")(records[:2]).verdict is MISSING
    assert (
        growth("a", "b")([*records[:2], clocked("a", [2.0], width=900), clocked("b", [8.0], width=900)]).verdict is OPEN
    )


def test_a_step_becomes_longer_by_more_seconds():
    records = [clocked("a", [1.0, 1.1], width=5), clocked("b", [0.1, 0.1], width=5)]
    records += [clocked("a", [9.0, 9.1], width=900), clocked("b", [2.0, 2.1], width=900)]  # 9 times as long, and 20
    assert grows_more("a", "b")(records).verdict is AGREES
    assert grows_more("b", "a")(records).verdict is DISAGREES
    assert grows_more("a", "b")(records[:2]).verdict is MISSING


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


def test_settings_of_an_ablation_are_compared_turn_by_turn_if_the_clock_has_them():
    def kinds(merged: float) -> list[dict]:
        made = []
        for times in (10, 50):
            for spacing, seconds in (("regular", 1.0), ("merged", merged)):
                settings = {"study": "clock of regularity", "times": times, "spacing": spacing}
                record = clocked("a", [seconds, 1.1 * seconds, 0.9 * seconds])
                made.append(record | {"config": record["config"] | settings})
        return made

    check = irregular_cost("regular", "merged", "a", 1.5)
    disturbed = [
        record
        for times in (10, 50)
        for spacing in ("regular", "merged")
        for record in timed("a", [1.0, 1.1], study="regularity", times=times, spacing=spacing)
    ]
    assert check(disturbed).verdict is DISAGREES
    assert check(disturbed + kinds(5.0)).verdict is AGREES
    assert "10 times: 5.00; 50 times: 5.00" in check(kinds(5.0)).words


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
    single = [r for r in records(1.0, 10.0) if r["config"]["seed"] == 0]
    assert check(single).verdict is OPEN
    others = [r | {"config": r["config"] | {"method": "b"}} for r in records(3.0, 4.0)]
    assert check(single + others).verdict is AGREES  # seeds of another method differ little
    assert check(records(1.0, 1.2)).verdict is DISAGREES
    assert check([]).verdict is MISSING
