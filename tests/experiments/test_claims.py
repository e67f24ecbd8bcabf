"""The checks of the paper's statements: each verdict from invented records, and statements on the page."""

from __future__ import annotations

import copy
from functools import partial

import pytest

from experiments.pages import Reader
from experiments.synthetic import clocked, curved, run, timed, trained
from quadjoint.experiments import store
from quadjoint.experiments.checks_cost import (
    close_errors,
    constant_memory,
    evaluations,
    fewer_evaluations,
    larger_errors,
    leaner,
    less_memory,
    most_accurate,
    order,
)
from quadjoint.experiments.checks_time import faster, growth, irregular_cost, linear_growth, similar_times, sooner
from quadjoint.experiments.checks_training import Margin, like_regular, matching_curves, pays_little, rises, same, stays
from quadjoint.experiments.claims import CLAIMS
from quadjoint.experiments.overview import findings
from quadjoint.experiments.records import of_experiment
from quadjoint.experiments.report import render
from quadjoint.experiments.tables import published_tables
from quadjoint.experiments.verdicts import Verdict, only, opposite

AGREES, DISAGREES, OPEN, MISSING = Verdict
_FIRST = "GQ is faster than the adjoint for large models."


# Time -----------------------------------------------------------------------------------------------------


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
    assert check(curved("a", falling[:1]) + curved("b", falling[:1], second=3.0)).verdict is OPEN  # one seed
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


# What was learnt --------------------------------------------------------------------------------------------


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
    assert check(trained("gq-paper", [0.06]) + trained("many", [0.9, 0.91, 0.89])).verdict is DISAGREES


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
    assert like_regular("a", 250, lower=True)(records(low)).verdict is AGREES
    assert like_regular("a", 250)(records(alike, epochs=5)).verdict is MISSING  # hardly trained


# Evaluations, memory, errors, integrals -----------------------------------------------------------------------


def counted(method: str, backward: list[float], nodes: float = 0.0) -> list[dict]:
    made = []
    for k, number in enumerate(backward):
        counts = {"forward_evaluations": 20.0, "backward_evaluations": number + nodes, "quadrature_nodes": nodes}
        made.append(run(method, seed=k, result={"per_gradient": counts}))
    return made


def test_evaluations_of_the_backward_pass():
    half = evaluations("adjoint", 0.375, 0.625)
    assert half(counted("adjoint", [10, 11, 9])).verdict is AGREES
    finding = half(counted("adjoint", [20, 22, 18]))
    assert finding.verdict is DISAGREES and finding.words.startswith("1.00 (0.752 to 1.25) of the forward ones")
    assert half(counted("adjoint", [20, 2, 8])).verdict is OPEN
    assert half([]).verdict is MISSING
    assert evaluations("gq-paper", 0.15, 0.375)(counted("gq-paper", [5, 5, 5], nodes=2)).verdict is AGREES
    nodes = evaluations("gq-paper", 0.075, 0.125, of="quadrature_nodes")
    assert nodes(counted("gq-paper", [5, 5, 5], nodes=2)).verdict is AGREES
    fewer = fewer_evaluations("seminorm", "adjoint", 0.3, 0.8)
    assert fewer(counted("seminorm", [10, 11]) + counted("adjoint", [20, 22])).verdict is AGREES
    assert fewer(counted("seminorm", [20, 22]) + counted("adjoint", [20, 22])).verdict is DISAGREES
    assert fewer([]).verdict is MISSING


def test_memory_is_counted_without_noise():
    records = [run("a", result={"peak_memory": 2**20, "seconds_per_gradient": 1.0})]
    records += [run("b", result={"peak_memory": 3 * 2**20, "seconds_per_gradient": 1.0})]
    assert leaner("a", "b")(records).words == "peak at width 10: a 1.00 MiB, b 3.00 MiB"
    assert [leaner(*pair)(records).verdict for pair in ("ab", "ba", "ac")] == [AGREES, DISAGREES, MISSING]
    growing, flat = run("a", result={"peak_memory": [10, 40]}), run("b", result={"peak_memory": [10, 11]})
    checks = [constant_memory(m)([growing, flat]).verdict for m in "abc"]
    assert checks == [DISAGREES, AGREES, MISSING]
    assert opposite(constant_memory("a"))([growing]).verdict is AGREES
    small = [run("a", width=1, result={"peak_memory": [10]}), run("b", width=1, result={"peak_memory": [11]})]
    assert [less_memory(*pair)(small).verdict for pair in ("ab", "ba", "ac")] == [AGREES, DISAGREES, MISSING]


def test_errors_of_gradients_are_compared_over_end_times():
    def toy(method: str, errors: list[float], rtol: float = 1e-3) -> dict:
        return run(method, result={"errors": {"a": errors, "z0": errors}}, rtol=rtol)

    records = [toy("x", [1e-3, 2e-3, 3e-3]), toy("y", [2e-3, 4e-3, 6e-3]), toy("z", [1e-3, 9e-3, 1e-3])]
    assert close_errors("x", "y", 3.0)(records).verdict is AGREES
    assert close_errors("x", "y", 1.5)(records).verdict is DISAGREES
    assert close_errors("x", "z", 1.5)(records).verdict is OPEN
    assert close_errors("x", "w", 3.0)(records).verdict is MISSING
    tight = [toy("x", [9e-6] * 3, rtol=1e-6), toy("y", [1e-6] * 3, rtol=1e-6)]
    assert larger_errors("y", "x", ("a", "z0"))(records + tight).verdict is AGREES  # at the loosest tolerance
    assert larger_errors("x", "y", ("a",))(records + tight).verdict is DISAGREES
    assert larger_errors("x", "z", ("a",))(records).verdict is OPEN


def test_orders_of_integration_rules():
    def rule(name: str, power: float, shift: int = 1) -> dict:
        counts = [2, 4, 8, 16]
        return run(name, result={"evaluations": [n + shift for n in counts], "errors": [n**-power for n in counts]})

    assert order("trapezoid", 2, 0.25)([rule("trapezoid", 2.0)]).verdict is AGREES
    assert order("trapezoid", 2, 0.25)([rule("trapezoid", 1.0)]).verdict is DISAGREES
    assert order("monte-carlo", 0.5, 0.15)([rule("monte-carlo", 0.5, shift=0)]).verdict is AGREES
    assert order("boole", 6, 0.25)([]).verdict is MISSING
    both = [rule("gauss", 8.0), rule("simpson", 4.0)]
    assert most_accurate("gauss", ("simpson",), (5, 9))(both).verdict is AGREES
    assert most_accurate("simpson", ("gauss",), (5, 9))(both).verdict is DISAGREES
    assert most_accurate("gauss", ("simpson",), (5, 9))(both[:1]).verdict is MISSING


# On the page --------------------------------------------------------------------------------------------------


def test_verdicts_change_with_the_records(records):
    """The page says what the records say: with the times of two methods exchanged, the verdict turns."""
    lines = [r for r in copy.deepcopy(records) if r["experiment"] == "clock"]
    verdicts = []
    for slow in ("adjoint", "gq-paper"):
        for method, found in [item for line in lines for item in line["result"]["methods"].items()]:
            found["steps"]["cpu_seconds"] = [2.0, 2.1, 1.9] if method == slow else [1.0, 1.05, 0.95]
        checked = findings("crossing", of_experiment(store.Results(lines), "crossing"))
        verdicts += [f.verdict for claim, f in checked if claim.statement == _FIRST]
    assert verdicts == [AGREES, DISAGREES]


def test_statements_are_restricted_to_their_data_set():
    records = [clocked(m, s, dataset=d) for d in "xy" for m, s in (("a", [1.0, 1.1]), ("b", [2.0, 2.2]))]
    assert only(faster("a", "b"), dataset="x")(records).verdict is AGREES
    assert only(faster("a", "b"), dataset="z")(records).verdict is MISSING


def test_experiments_without_runs_are_not_measured(records):
    crossing = store.Results([r for r in records if r["experiment"] == "crossing"])
    assert all(
        f.verdict is MISSING for name in ("memory", "ou", "images") for _, f in findings(name, crossing.of(name))
    )
    text = Reader(render(crossing, [])).text
    total = sum(not claim.ours for claims in CLAIMS.values() for claim in claims)
    assert f"Of the {total} statements of the paper that are checked here" in text


@pytest.mark.parametrize("name", CLAIMS)
def test_a_check_that_cannot_read_its_records_does_not_know(name):
    strange = [{"config": {"study": "widths"}, "result": {}}, {"config": {"study": "clock", "method": 3}, "result": {}}]
    assert all(finding.verdict is MISSING for _, finding in findings(name, strange))


def test_the_tables_of_the_paper_stand_beside_ours(records):
    spheres = [
        run("gq-paper", study="C", c=c, result={"seconds_per_gradient": 1 + (c > 1)}) for c in (1e-3, 0.1, 1e2, 1e5)
    ]
    ((_, head, rows),) = published_tables("nested-spheres", spheres)
    assert [row[head.index("paper: time")] for row in rows] == ["1.00", "1.46", "2.30", "2.31"]
    assert [row[head.index("ours: time")] for row in rows] == ["1.00", "1.00", "2.00", "2.00"]
    sines = [r for r in records if r["experiment"] == "sines"]
    (_, head, rows), (_, _, errors) = published_tables("sines", sines)
    assert [row[:2] for row in rows][3:5] == [["50 regular", "1.00"], ["50 merged", "19.45"]]
    assert [row[1] for row in errors] == ["0.08 ± 0.07", "0.07 ± 0.06", "0.11 ± 0.09", "0.09 ± 0.08"]
    assert [bool(row[2]) for row in errors] == [True, True, True, False]  # the tiny grid has no 50 merged times
