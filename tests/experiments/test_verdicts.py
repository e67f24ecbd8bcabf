"""Intervals and verdicts: what noise allows to say."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from quadjoint.experiments.verdicts import (
    UNKNOWN,
    Finding,
    Interval,
    Verdict,
    above,
    all_of,
    below,
    difference,
    every,
    interval,
    of_large_models,
    opposite,
    plain,
    ranged,
    spread,
    student,
    with_seeds,
    within,
)


def test_students_factors_are_those_of_the_distribution():
    """Between the exact values for one and two degrees of freedom and that of the normal distribution."""
    assert student(1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-4)
    assert student(2) == pytest.approx(0.95 / math.sqrt(2 * 0.975 * 0.025), rel=1e-3)
    assert student(10**6) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), rel=1e-3)
    factors = [student(k) for k in range(1, 60)]
    assert factors == sorted(factors, reverse=True)


def test_the_interval_holds_the_mean_as_often_as_it_says():
    chance = random.Random(0)
    held = 0
    for _ in range(2000):
        found = interval([chance.gauss(3.0, 2.0) for _ in range(4)])
        held += found.low < 3.0 < found.high
    assert 0.93 < held / 2000 < 0.97


def test_the_interval_of_a_difference_pools_the_spread_of_all_groups():
    """With one run of each method, only a third group tells how much runs differ."""
    chance = random.Random(1)
    held = 0
    for _ in range(2000):
        one, other = [chance.gauss(1.0, 0.5)], [chance.gauss(3.0, 0.5)]
        found = difference(other, one, [[chance.gauss(0.0, 0.5) for _ in range(5)]])
        held += found.low < 2.0 < found.high
    assert 0.93 < held / 2000 < 0.97
    assert difference([1.0], [2.0]).half == math.inf


def test_groups_that_share_their_seeds_do_not_narrow_the_interval_of_a_difference():
    """Four methods with the same seeds and results know no more of the spread than one."""
    chance = random.Random(2)
    held = 0
    for _ in range(2000):
        one, other = [chance.gauss(1.0, 0.5)], [chance.gauss(3.0, 0.5)]
        alike = [chance.gauss(0.0, 0.5) for _ in range(3)]
        found = difference(other, one, [alike] * 4)
        held += found.low < 2.0 < found.high
    assert 0.93 < held / 2000 < 0.97


def test_several_checks_agree_only_together():
    yes, no, unsure = (
        lambda _, v=v: Finding(v, v.value) for v in (Verdict.AGREES, Verdict.DISAGREES, Verdict.UNDECIDED)
    )
    assert every(yes, yes)([]).verdict is Verdict.AGREES
    assert every(yes, unsure)([]).words == "cannot tell"
    assert every(unsure, no, yes)([]).words == "disagrees"
    partly = every(yes, lambda _: UNKNOWN)([])
    assert partly == Finding(Verdict.UNDECIDED, "not all of it was measured")
    assert every(lambda _: UNKNOWN)([]) == UNKNOWN


def test_a_small_model_decides_nothing_about_large_ones():
    records = [{"config": {"study": "C", "width": 100}}]
    for verdict in (Verdict.AGREES, Verdict.DISAGREES):
        check = of_large_models(lambda _, v=verdict: Finding(v, "x"), "C", 500)
        assert check(records) == Finding(Verdict.UNDECIDED, "x; width 100 is no large model")
        assert check([{"config": {"study": "C", "width": 900}}]).verdict is verdict


def test_a_check_is_made_of_a_method_with_seeds():
    def run(method: str, seed: int) -> dict:
        return {"config": {"study": "s", "method": method, "seed": seed}}

    check = with_seeds("s", ("a", "b"), lambda method: lambda _: Finding(Verdict.AGREES, method))
    assert check([run("a", 0), run("b", 0), run("b", 1)]).words == "b"
    assert check([run("a", 0), run("a", 1), run("b", 0), run("b", 1)]).words == "a"
    assert check([run("a", 0)]).words == "a" and check([]).verdict is Verdict.MISSING


def test_verdicts_by_where_the_interval_lies():
    assert above(Interval(2.0, 0.5), 1.0) is Verdict.AGREES
    assert above(Interval(0.2, 0.5), 1.0) is Verdict.DISAGREES
    assert above(Interval(1.2, 0.5), 1.0) is Verdict.UNDECIDED
    assert below(Interval(0.2, 0.5), 1.0) is Verdict.AGREES
    assert within(Interval(0.0, 0.1), -1, 1) is Verdict.AGREES
    assert within(Interval(3.0, 0.1), -1, 1) is Verdict.DISAGREES
    assert within(Interval(0.0, 5.0), -1, 1) is Verdict.UNDECIDED
    assert above(interval([5.0]), 1.0) is Verdict.UNDECIDED  # one number has no spread
    assert above(Interval(math.nan), 1.0) is Verdict.MISSING


def test_of_several_the_worst_decides():
    agrees, disagrees, open_, missing = Verdict.AGREES, Verdict.DISAGREES, Verdict.UNDECIDED, Verdict.MISSING
    assert all_of([agrees, open_, disagrees]) is disagrees
    assert all_of([agrees, open_]) is open_
    assert all_of([agrees, missing]) is open_  # not all of it was measured
    assert all_of([missing]) is all_of([]) is missing


def test_the_contrary_turns_what_is_decided_and_nothing_else():
    for verdict, turned in zip(
        Verdict, (Verdict.DISAGREES, Verdict.AGREES, Verdict.UNDECIDED, Verdict.MISSING), strict=True
    ):
        assert opposite(lambda records, v=verdict: Finding(v, "w"))([]) == Finding(turned, "w")


def test_numbers_are_written_as_people_do():
    assert plain(1.1e2) == "110" and plain(99.96, 3) == "100" and plain(0.0) == "0" and plain(1e-7, 1) == "1e-7"
    assert ranged(Interval(1.49, 0.06)) == "1.49 (1.43 to 1.55)"
    assert ranged(Interval(2.0, math.inf)) == ranged(Interval(2.0)) == "2.00"
    assert spread([100.0, 100.0]) == "100 ± 0" and spread([0.5]) == "0.500" and spread([]) == ""
    assert spread([98.0, 99.0, 100.0]) == "99.0 ± 1.0"


def test_a_deviation_that_is_not_zero_is_not_shown_as_zero():
    assert spread([131.7, 132.3]) == "132.0 ± 0.4" and spread([5.0, 5.0]) == "5.00 ± 0.00"
