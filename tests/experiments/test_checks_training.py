"""Statements about what was learnt: each verdict from invented records."""

from __future__ import annotations

from experiments.synthetic import run, trained
from quadjoint.experiments.checks_training import Margin, like_regular, low, pays_little, rises, same, stays
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict


def test_accuracies_are_the_same_within_the_margin_or_cannot_be_told():
    check = same("m", ("gq-paper", "b"), Margin(absolute=3.0))
    assert check(trained("gq-paper", [100.0, 99, 100]) + trained("b", [99.0, 99, 100])).verdict is AGREES
    assert check(trained("gq-paper", [80.0, 81, 79]) + trained("b", [99.0, 99, 100])).verdict is DISAGREES
    assert check(trained("gq-paper", [81.0, 71, 91]) + trained("b", [87.0, 91, 83])).verdict is OPEN
    assert check(trained("b", [99.0])).verdict is MISSING


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


def test_an_ablation_rises_stays_or_cannot_be_told():
    def records(low: list[float], high: list[float]) -> list[dict]:
        return trained("a", low, study="C", c=1e-3) + trained("a", high, study="C", c=1e5)

    up = rises("C", "c", (1e-3, 1e5), ("final", "m"), "a", ratio=False, by_least=1.0)
    flat = stays("C", "c", (1e-3, 1e5), ("final", "m"), "a", margin=1.0, ratio=False)
    assert up(records([50.0, 52], [90.0, 91])).verdict is AGREES
    assert up(records([90.0, 91], [50.0, 52])).verdict is DISAGREES
    assert up(records([50.0, 90], [90.0, 60])).verdict is OPEN
    assert flat(records([95.0, 90], [95.0, 90])).verdict is AGREES
    assert flat(records([95.0, 90], [80.0, 75])).verdict is DISAGREES
    assert flat(records([95.0], [95.0])).verdict is OPEN
    assert up([]).verdict is flat([]).verdict is MISSING


def test_more_cosines_pay_little():
    def records(kl: tuple[float, float], seconds: tuple[float, float]) -> list[dict]:
        made = []
        for seed in range(3):
            off = 1 + seed / 100
            for n, k, t in zip((5, 50), kl, seconds, strict=True):
                result = {"final": {"test_kl": k * off}, "seconds_per_gradient": t * off}
                made.append(run("a", seed=seed, study="cosines", cosines=n, result=result))
        return made

    check = pays_little("cosines", "cosines", (5, 50), "test_kl", "a")
    assert check(records((0.07, 0.06), (1.0, 4.0))).verdict is AGREES
    assert check(records((0.60, 0.06), (1.0, 1.5))).verdict is DISAGREES
    assert check([]).verdict is MISSING


def test_irregular_times_reach_the_error_of_regular_ones():
    def records(irregular: list[float], epochs: int = 250) -> list[dict]:
        settings = {"metric": "test_mse", "study": "regularity", "times": 10, "epochs": epochs}
        regular = trained("a", [0.08, 0.10, 0.06, 0.07, 0.09], spacing="regular", **settings)
        return regular + trained("a", irregular, spacing="merged", **settings)

    alike, low = [0.075, 0.09, 0.065, 0.07, 0.085], [0.01, 0.02, 0.01, 0.02, 0.015]
    assert like_regular("a", 250)(records(alike)).verdict is AGREES
    assert like_regular("a", 250)(records([0.5, 0.51, 0.52, 0.5, 0.5])).verdict is DISAGREES
    assert like_regular("a", 250, lower=True)(records(alike)).verdict is OPEN
    assert like_regular("a", 250)(records(low)).verdict is DISAGREES  # the paper says: not different
    assert like_regular("a", 250, lower=True)(records(low)).verdict is AGREES
    assert like_regular("a", 250)(records(alike, epochs=5)).verdict is MISSING  # hardly trained
