"""Statements about curves: each verdict from invented records."""

from __future__ import annotations

from experiments.synthetic import clocked, curved
from quadjoint.experiments.claims.checks_curves import matching_curves, sooner
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict


def test_curves_match_at_the_largest_trained_width():
    check = matching_curves("loss", ("gq-paper", "b"), 0.1)
    small = curved("gq-paper", [[1.0, 0.0]] * 2, width=5) + curved("b", [[2.0, 2.0]] * 2, width=5)
    mine = curved("gq-paper", [[2.0, 1.0, 0.5], [2.0, 1.1, 0.4]])
    near, far = [[2.0, 1.05, 0.55], [2.0, 1.0, 0.4]], [[2.0, 2.0, 2.5], [2.0, 2.0, 2.4]]
    assert check(small + mine + curved("b", near)).verdict is AGREES
    assert check(small + mine + curved("b", far)).verdict is DISAGREES
    assert check(small + mine[:1] + curved("b", near[:1])).verdict is OPEN
    assert check(mine).verdict is MISSING
    assert check(curved("gq-paper", [[0.0, 1.0]]) + curved("b", [[0.0, 2.0]])).verdict is MISSING  # a part of nothing


def test_the_spread_of_curves_may_come_from_a_method_that_is_not_compared():
    curves = curved("gq-paper", [[4.0, 2.0]]) + curved("b", [[4.0, 2.1]])
    match = matching_curves("loss", ("gq-paper", "b"), 0.1)
    assert match(curves).verdict is OPEN
    assert match(curves + curved("direct", [[4.0, 2.0], [4.0, 2.01], [4.01, 2.0]])).verdict is AGREES


def test_curves_of_methods_that_were_not_trained_do_not_match():
    two = curved("gq-paper", [[2.0, 1.0]] * 2) + curved("b", [[2.0, 1.0]] * 2)
    assert matching_curves("loss", ("gq-paper", "b"), 0.1)(two).verdict is AGREES
    finding = matching_curves("loss", ("gq-paper", "b", "c"), 0.1)(two)
    assert finding.verdict is OPEN and finding.words.endswith("b 0 %, c not trained")
    assert matching_curves("loss", ("gq-paper", "b", "c"), 0.1)(two[2:]).verdict is MISSING


def test_sooner_goes_by_the_time_to_a_loss_that_both_reach():
    falling = [[4.0, 2.0, 1.0, 0.5], [4.0, 2.1, 1.1, 0.5]]
    check = sooner("a", "b", "loss", least=5)
    assert check(curved("a", falling) + curved("b", falling, second=3.0)).verdict is AGREES
    assert check(curved("a", falling, second=3.0) + curved("b", falling)).verdict is DISAGREES
    for slow in ((1.0, 3.0), (3.0, 1.0)):  # not a large model
        records = curved("a", falling, second=slow[0]) + curved("b", falling, second=slow[1])
        assert sooner("a", "b", "loss")(records).verdict is OPEN
    single = curved("a", falling[:1]) + curved("b", falling[:1], second=3.0)
    assert check(single).verdict is OPEN  # nothing is known of the spread
    assert check(single + curved("c", falling, second=0.5)).verdict is AGREES  # another method tells it
    wild = [[4.0, 0.5, 0.5, 0.5], [4.0, 3.0, 2.0, 0.5]]
    assert check(single + curved("c", wild, second=0.5)).verdict is OPEN
    assert check(curved("a", falling)).verdict is MISSING


def test_how_low_a_run_ends_is_no_speed():
    """Both fall alike to a tenth of the first loss; what chance adds at the end does not count."""
    early, late = [4.0, 0.4, 0.1, 0.1, 0.1, 0.1], [4.0, 0.4, 0.2, 0.2, 0.2, 0.1]
    finding = sooner("a", "b", "loss", least=5)(curved("a", [early] * 2) + curved("b", [late] * 2))
    assert finding.verdict is DISAGREES and "takes 1.00 " in finding.words


def test_the_time_to_a_loss_is_as_uncertain_as_the_clock():
    """Seeds that all reach the loss in the same epoch have no spread, but the pace of the epochs has."""
    falling = [[4.0, 2.0, 0.4]] * 3
    trained = curved("a", falling) + curved("b", falling)
    check = sooner("a", "b", "loss", least=5)
    steady = [clocked("a", [1.0, 1.01, 0.99]), clocked("b", [1.5, 1.51, 1.49])]
    unsteady = [clocked("a", [1.0, 2.0, 0.5]), clocked("b", [1.5, 0.7, 3.0])]
    assert check(trained + steady).verdict is AGREES
    assert check(trained + unsteady).verdict is OPEN
    assert "takes 1.50 (1." in check(trained + steady).words
