"""The checks of the paper's statements, on invented records."""

from __future__ import annotations

import copy

from experiments.pages import Reader
from quadjoint.experiments import store
from quadjoint.experiments.claims import CLAIMS
from quadjoint.experiments.plots import mean_and_deviation
from quadjoint.experiments.published import (
    Finding,
    comparable_times,
    faster,
    growth,
    leaner,
    matching_curves,
    opposite,
    same,
    trend,
)
from quadjoint.experiments.report import findings, render
from quadjoint.experiments.tables import published_tables


def run(method, width=10, seconds=1.0, seed=0, study="widths", metric=1.0, **config) -> dict:
    settings = {"method": method, "width": width, "seed": seed, "study": study, **config}
    return {"config": settings, "result": {"seconds_per_gradient": seconds, "final": {"m": metric}}}


def test_faster_compares_means_at_the_largest_width():
    records = [run("a", 10, 9.0), run("b", 10, 1.0), run("a", 20, 1.0), run("a", 20, 3.0, seed=1), run("b", 20, 4.0)]
    finding = faster("a", "b")(records)
    assert finding == Finding(True, "b takes 2.00 times as long as a at width 20")
    assert faster("b", "a")(records).agrees is False
    assert faster("a", "c")(records).agrees is None


def test_growth_compares_ratios():
    records = [run("a", 1, 1.0), run("a", 9, 2.0), run("b", 1, 0.1), run("b", 9, 1.0)]
    assert growth("a", "b")(records).agrees is True
    assert growth("b", "a")(records).agrees is False


def test_same_allows_the_spread_over_seeds():
    close = [run("a", metric=1.0), run("b", metric=1.04)]
    assert same("m", ("a", "b"), relative=0.1, absolute=0.0)(close).agrees is True
    assert same("m", ("a", "b"), relative=0.01, absolute=0.0)(close).agrees is False
    spread = [run("a", metric=x, seed=x) for x in (0, 2)] + [run("b", metric=x, seed=x) for x in (1, 3)]
    assert same("m", ("a", "b"), relative=0.0, absolute=0.0)(spread).agrees is True


def test_trend_looks_at_the_ends():
    records = [run("a", study="s", c=c, seconds=c + 1.0) for c in (0.1, 10.0, 1.0)]
    path = ("seconds_per_gradient",)
    assert trend("s", "c", path, "a", rising=True)(records).agrees is True
    assert trend("s", "c", path, "a", rising=False)(records).agrees is False


def test_curves_are_compared_at_the_largest_trained_width():
    def curve(method, values, width=20):
        record = run(method, width)
        record["result"]["curves"] = {"loss": values}
        return record

    check = matching_curves("loss", ("a", "b"), relative=0.1)
    small = [curve("a", [1.0, 0.0], width=10), curve("b", [2.0, 2.0], width=10)]
    assert check([*small, curve("a", [2.0, 1.0]), curve("b", [2.0, 1.15])]).agrees is True
    finding = check([*small, curve("a", [2.0, 1.0]), curve("b", [2.0, 1.5])])
    assert finding == Finding(False, "width 20: at most 25 % of the first value apart (epoch 2 of 2)")
    assert check([curve("a", [1.0])]).agrees is None
    assert check([curve("a", [0.0, 1.0]), curve("b", [0.0, 2.0])]).agrees is None  # a part of nothing


def test_comparable_times_looks_at_the_smallest_width():
    records = [run("a", 10, 1.0), run("b", 10, 1.4), run("a", 20, 1.0), run("b", 20, 9.0)]
    assert comparable_times(("a", "b"), 1.5)(records).agrees is True
    assert comparable_times(("a", "b"), 1.3)(records).agrees is False
    assert comparable_times(("a", "c"), 1.5)(records).agrees is None


def test_leaner_compares_peaks_and_its_opposite_the_other_way():
    records = [run("a"), run("b")]
    for record, peak in zip(records, (2**20, 3 * 2**20), strict=True):
        record["result"]["peak_memory"] = peak
    assert leaner("a", "b")(records) == Finding(True, "peak at width 10: a 1 MiB, b 3 MiB")
    assert opposite(leaner("a", "b"))(records).agrees is False
    assert opposite(leaner("a", "c"))(records).agrees is None


def test_verdicts_change_with_the_records(records):
    """The page says what the records say: with the times of two methods exchanged, the verdict turns."""
    crossing = [r for r in copy.deepcopy(records) if r["experiment"] == "crossing"]
    verdicts = []
    for slow in ("adjoint", "gq-paper"):
        for record in crossing:
            record["result"]["seconds_per_gradient"] = 2.0 if record["config"]["method"] == slow else 1.0
        found = {claim.statement: finding.agrees for claim, finding in findings("crossing", crossing)}
        verdicts.append(found["GQ is faster than the adjoint for large models."])
    assert verdicts == [True, False]


def test_experiments_without_runs_are_not_covered(records):
    page = render(store.Results([r for r in records if r["experiment"] == "crossing"]), [])
    text = Reader(page).text
    for name in ("memory", "ou", "images"):
        assert CLAIMS[name][0].statement in text.partition("Not covered:")[2]


def test_the_tables_of_the_paper_stand_beside_ours(records):
    spheres = [run("gq-paper", study="C", c=c, seconds=1 + (c > 1)) for c in (1e-3, 1e-1, 1e2, 1e5)]
    ((_, head, rows),) = published_tables("nested-spheres", spheres)
    assert [row[head.index("paper: time")] for row in rows] == ["1.00", "1.46", "2.30", "2.31"]
    assert [row[head.index("ours: time")] for row in rows] == ["1.00", "1.00", "2.00", "2.00"]
    sines = [r for r in records if r["experiment"] == "sines"]
    (_, head, rows), (_, _, errors) = published_tables("sines", sines)
    assert [row[:2] for row in rows][3:5] == [["50 regular", "1.00"], ["50 merged", "19.45"]]
    assert [row[1] for row in errors] == ["0.08 ± 0.07", "0.07 ± 0.06", "0.11 ± 0.09", "0.09 ± 0.08"]
    assert [bool(row[2]) for row in errors] == [True, True, True, False]  # the tiny grid has no 50 merged times


def test_a_check_that_cannot_read_its_records_does_not_know():
    assert all(
        finding.agrees is None for _, finding in findings("sines", [{"config": {"study": "widths"}, "result": {}}])
    )


def test_mean_and_deviation_leave_out_what_is_not_a_number():
    assert mean_and_deviation([1.0, None, 3.0]) == (2.0, 1.0)
