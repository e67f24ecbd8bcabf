"""The paper's statements on the page: verdicts follow the records, and what cannot be read is not judged."""

from __future__ import annotations

import copy

import pytest

from experiments.pages import Reader
from experiments.synthetic import clocked, run
from quadjoint.experiments import store
from quadjoint.experiments.claims import CLAIMS, TITLES
from quadjoint.experiments.claims.checks_time import faster
from quadjoint.experiments.config import Choice, as_dict
from quadjoint.experiments.names import PRESETS
from quadjoint.experiments.overview import findings
from quadjoint.experiments.records import of_experiment, set_apart
from quadjoint.experiments.registry import experiment
from quadjoint.experiments.report import render
from quadjoint.experiments.tables import published_tables
from quadjoint.experiments.verdicts import Claim, Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict
_ANY_SIZE = "Direct backpropagation is the fastest."


def test_verdicts_change_with_the_records(records):
    """The page says what the records say: with the times of two methods exchanged, the verdict turns."""
    lines = [r for r in copy.deepcopy(records) if r["experiment"] == "clock"]
    verdicts = []
    for slow in (("adjoint", "seminorm", "gq-paper"), ("direct",)):
        for method, found in [item for line in lines for item in line["result"]["methods"].items()]:
            found["steps"]["cpu_seconds"] = [2.0, 2.1, 1.9] if method in slow else [1.0, 1.05, 0.95]
        checked = findings("crossing", store.Results(lines))
        verdicts += [f.verdict for claim, f in checked if claim.statement == _ANY_SIZE]
    assert verdicts == [AGREES, DISAGREES]


def test_statements_are_restricted_to_their_data_set(monkeypatch):
    """Also the runs that gave up: one on another data set opens no statement."""
    records = [
        clocked(m, s, dataset=d) | {"experiment": "images"}
        for d in "xy"
        for m, s in (("a", [1.0, 1.1]), ("b", [2.0, 2.2]))
    ]
    failed = run("a", dataset="y") | {"experiment": "images", "status": "failed"}
    claims = [Claim(d, faster("a", "b"), trained=True, about={"dataset": d}) for d in "xyz"]
    monkeypatch.setitem(CLAIMS, "images", claims)
    found = {
        claim.statement: finding.verdict for claim, finding in findings("images", store.Results([*records, failed]))
    }
    assert found == {"x": AGREES, "y": OPEN, "z": MISSING}


def test_experiments_without_runs_are_not_measured(records):
    crossing = store.Results([r for r in records if r["experiment"] == "crossing"])
    assert all(f.verdict is MISSING for name in ("memory", "ou", "images") for _, f in findings(name, crossing))
    text = Reader(render(crossing, [])).text
    total = sum(not claim.ours for claims in CLAIMS.values() for claim in claims)
    assert f"Of {total} statements of the paper" in text


@pytest.mark.parametrize("name", CLAIMS)
def test_a_check_that_cannot_read_its_records_does_not_know(name):
    configs = ({"study": "widths"}, {"study": "clock", "method": 3})
    strange = [{"experiment": name, "status": "done", "config": config, "result": {}} for config in configs]
    assert all(finding.verdict is MISSING for _, finding in findings(name, store.Results(strange)))


def test_runs_that_gave_up_keep_a_statement_from_agreeing():
    def lines(status: str) -> store.Results:
        made = []
        for method in ("direct", "adjoint", "seminorm", "gq-paper"):
            for seed in range(4):
                failed = status == "failed" and method == "gq-paper" and seed == 3
                result = {"reason": "no step"} if failed else {"final": {"test_accuracy": 99.0 + seed / 4}}
                record = run(method, seed=seed) | {
                    "experiment": "nested-spheres",
                    "status": status if failed else "done",
                }
                made.append(record | {"result": result})
        return store.Results(made)

    def verdict(status: str) -> tuple[Verdict, str]:
        found = {claim.statement: f for claim, f in findings("nested-spheres", lines(status))}
        chosen = found["All methods reach the same accuracy."]
        return chosen.verdict, chosen.words

    assert verdict("done")[0] is AGREES
    assert verdict("failed")[0] is OPEN and verdict("failed")[1].endswith("; 1 run gave up")


@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize("preset", PRESETS)
def test_no_run_of_a_preset_is_set_apart(preset, name):
    """A sweep compares all that it ran: settings that differ by design, such as MALI's tolerances, are no mistake."""
    made = [
        {"experiment": name, "key": str(number), "config": as_dict(config), "status": "done", "result": {}}
        for number, config in enumerate(experiment(name).grid(Choice(preset=preset)))
    ]
    assert made and not set_apart(store.Results(made), name)


def test_runs_of_other_settings_are_set_apart():
    """A folder with runs of 100 epochs and one of 200 compares the former, and says that one was left out."""
    made = [
        run(method, seed=seed, epochs=epochs) | {"experiment": "crossing", "key": f"{method}{seed}{epochs}"}
        for method, seed, epochs in (("a", 0, 100), ("b", 0, 100), ("a", 1, 200), ("b", 1, 100))
    ]
    results = store.Results(made)
    assert [r["key"] for r in of_experiment(results, "crossing")] == ["a0100", "b0100", "b1100"]
    assert [r["key"] for r in set_apart(results, "crossing")] == ["a1200"]
    problems: list[str] = []
    render(results, problems, {})
    assert "1 runs of crossing left out: most others of their kind have other settings" in problems


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
