"""Statements about ablations: each verdict from invented records."""

from __future__ import annotations

from experiments.synthetic import run, trained
from quadjoint.experiments.claims.checks_ablation import Series, like_regular, pays_little, reaches, rises, stays
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict
METRIC = Series("C", "c", ("final", "m"), "a")


def test_an_ablation_rises_stays_or_cannot_be_told():
    def records(low: list[float], high: list[float]) -> list[dict]:
        return trained("a", low, study="C", c=1e-3) + trained("a", high, study="C", c=1e5)

    up = rises(METRIC, (1e-3, 1e5), ratio=False, by_least=1.0)
    flat = stays(METRIC, (1e-3, 1e5), margin=1.0, ratio=False)
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
                made += [run(m, seed=seed, study="cosines", cosines=n, result=result) for m in ("a", "gq-paper")]
        return made

    check = pays_little(Series("cosines", "cosines", ("final", "test_kl"), "a"), (5, 50))
    assert check(records((0.07, 0.06), (1.0, 4.0))).verdict is AGREES
    assert check(records((0.60, 0.06), (1.0, 1.5))).verdict is DISAGREES
    worse = check(records((0.05, 0.10), (1.0, 4.0)))
    assert worse.verdict is AGREES
    falls = pays_little(Series("cosines", "cosines", ("final", "test_kl"), "a"), (5, 50), falls=True)
    assert falls(records((0.07, 0.06), (1.0, 4.0))).verdict is AGREES
    assert falls(records((0.05, 0.10), (1.0, 4.0))).verdict is OPEN  # nothing falls
    assert "TEST_KL" not in worse.words and "KL of a larger by a factor of 2.00" in worse.words
    assert check([r for r in records((0.07, 0.06), (1.0, 4.0)) if r["config"]["method"] == "a"]).verdict is MISSING
    assert check([]).verdict is MISSING


def test_counts_reach_a_level_exactly():
    def records(nodes: tuple[float, float]) -> list[dict]:
        pairs = zip((1e2, 1e5), nodes, strict=True)
        return [run("a", study="C", c=c, result={"per_gradient": {"nodes": n}}) for c, n in pairs]

    check = reaches(Series("C", "c", ("per_gradient", "nodes"), "a"), (1e2, 1e5), level=64)
    assert check(records((64.0, 64.0))).verdict is AGREES
    assert check(records((60.0, 64.0))).verdict is DISAGREES
    assert check(records((64.0, 64.0))[:1]).verdict is MISSING


def test_an_ablation_is_of_one_width():
    """Of two widths the larger counts, whatever order they ran in."""
    small = trained("a", [1.0, 1.1], study="C", c=1e-3, width=5) + trained("a", [9.0, 9.9], study="C", c=1e5, width=5)
    large = trained("a", [2.0, 2.2], study="C", c=1e-3) + trained("a", [2.0, 2.2], study="C", c=1e5)
    flat = stays(METRIC, (1e-3, 1e5), margin=0.1, ratio=True)
    assert flat(small + large).verdict is flat(large + small).verdict is AGREES
    assert flat(small).verdict is DISAGREES


def test_irregular_times_reach_the_error_of_regular_ones():
    def records(irregular: list[float], epochs: int = 250) -> list[dict]:
        settings = {"metric": "test_mse", "study": "regularity", "times": 10, "epochs": epochs}
        regular = trained("a", [0.08, 0.10, 0.06, 0.07, 0.09], spacing="regular", **settings)
        return regular + trained("a", irregular, spacing="merged", **settings)

    alike, low = [0.075, 0.09, 0.065, 0.07, 0.085], [0.01, 0.02, 0.01, 0.02, 0.015]
    assert like_regular("a", 250)(records(alike)).verdict is AGREES
    assert like_regular("a", 250)(records([0.5, 0.51, 0.52, 0.5, 0.5])).verdict is DISAGREES
    assert like_regular("a", 250, lower=True)(records([0.075, 0.10, 0.065, 0.075, 0.085])).verdict is OPEN
    assert like_regular("a", 250)(records(low)).verdict is DISAGREES  # the paper says: not different
    assert like_regular("a", 250, lower=True)(records(low)).verdict is AGREES
    assert like_regular("a", 250)(records(alike, epochs=5)).verdict is MISSING  # hardly trained
