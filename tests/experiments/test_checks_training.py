"""Statements about what was learnt: each verdict from invented records."""

from __future__ import annotations

from experiments.synthetic import trained
from quadjoint.experiments.claims.checks_training import Margin, low, same
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict


def test_accuracies_are_the_same_within_the_margin_or_cannot_be_told():
    check = same("m", ("gq-paper", "b"), Margin(absolute=3.0))
    assert check(trained("gq-paper", [100.0, 99, 100]) + trained("b", [99.0, 99, 100])).verdict is AGREES
    assert check(trained("gq-paper", [80.0, 81, 79]) + trained("b", [99.0, 99, 100])).verdict is DISAGREES
    assert check(trained("gq-paper", [81.0, 71, 91]) + trained("b", [87.0, 91, 83])).verdict is OPEN
    assert check(trained("b", [99.0])).verdict is MISSING


def test_a_standard_deviation_over_seeds_may_be_allowed_as_well():
    """As the paper calls accuracies the same: paired seeds that move together tell more than the spread of all."""
    wide = trained("gq-paper", [80.0, 90, 100]) + trained("b", [75.0, 85.5, 94.5])
    assert same("m", ("gq-paper", "b"), Margin(absolute=3.0))(wide).verdict is DISAGREES
    assert same("m", ("gq-paper", "b"), Margin(absolute=3.0, deviation=True))(wide).verdict is AGREES


def test_widths_that_the_paper_excepts_do_not_count():
    records = trained("gq-paper", [0.001, 0.002]) + trained("b", [0.001, 0.001])
    records += trained("gq-paper", [0.9, 0.91], width=3000) + trained("b", [0.1, 0.11], width=3000)
    for most, verdict in ((2500, AGREES), (3000, DISAGREES)):
        assert same("m", ("gq-paper", "b"), Margin(absolute=0.01), most=most)(records).verdict is verdict
        assert low("m", ("gq-paper", "b"), 0.05, most=most)(records).verdict is verdict


def test_a_method_with_one_seed_borrows_the_spread_of_another():
    check = same("m", ("gq-paper", "b", "many"), Margin(relative=0.3))
    one = trained("gq-paper", [0.060]) + trained("b", [0.062])
    assert check(one).verdict is OPEN
    assert check(one + trained("many", [0.060, 0.061, 0.059, 0.0605])).verdict is AGREES
    assert check(one + trained("many", [0.9, 0.91, 0.89])).verdict is DISAGREES


def test_methods_that_did_not_run_are_not_called_the_same():
    check = same("m", ("gq-paper", "b", "c"), Margin(absolute=3.0))
    records = trained("gq-paper", [99.0, 99, 100]) + trained("b", [99.0, 99, 100])
    finding = check(records)
    assert finding.verdict is OPEN and finding.words == "at width 10: no run of c"
    assert check(records + trained("c", [99.0, 100, 99])).verdict is AGREES
    assert check(trained("b", [99.0, 99]) + trained("c", [99.0, 100])).verdict is MISSING  # nothing of the paper's


def test_errors_are_low_for_all_methods():
    check = low("m", ("a", "b"), 0.01)
    small = trained("a", [0.001, 0.002, 0.001])
    assert check(small + trained("b", [0.001, 0.001])).verdict is AGREES
    finding = check(small + trained("b", [0.2, 0.21, 0.2], width=20))
    assert finding.verdict is DISAGREES and finding.words.startswith("the largest: b at width 20")
    assert check([]).verdict is MISSING


def test_the_spread_may_come_from_a_method_that_is_not_compared():
    """As of the SDE's gradients, each trained once beside five seeds of direct."""
    check = same("m", ("gq-paper", "b"), Margin(absolute=1.0))
    singles = trained("gq-paper", [5.0]) + trained("b", [5.1])
    assert check(singles).verdict is Verdict.UNDECIDED
    assert check(singles + trained("direct", [5.0, 5.1, 4.9, 5.0])).verdict is Verdict.AGREES
    assert check(singles + trained("direct", [3.0, 7.0, 5.0, 6.0])).verdict is Verdict.UNDECIDED


def test_the_pair_that_decides_is_named():
    """The means of b are further off than those of c, whose spread leaves it open."""
    records = trained("gq-paper", [5.0, 5.0, 5.0]) + trained("b", [5.3, 5.3, 5.31]) + trained("c", [5.2, 3.0, 7.2])
    found = same("m", ("gq-paper", "b", "c"), Margin(absolute=1.0))(records)
    assert found.verdict is Verdict.UNDECIDED and "c " in found.words and "b " not in found.words
