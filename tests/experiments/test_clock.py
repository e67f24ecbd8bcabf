"""The clock: the same weights and batches for all, in turns; and the authors' code as a guest, from a path."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
import torch

from quadjoint.errors import StepSizeUnderflowError
from quadjoint.experiments import authors, clock, contest, store
from quadjoint.experiments.config import Choice, as_dict
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.records import clock_of, of_experiment, of_study, repeated_seconds, step_seconds
from quadjoint.experiments.report import render
from quadjoint.experiments.timing import Stopwatch, differentiate, peak_memory
from quadjoint.experiments.training import Context

# Stands for the authors' package: the interface that is used of it, on top of our own solver.
PACKAGE = """
import quadjoint as qj
calls = []
def odeint_adjoint(f, y0, t, *, method, rtol, atol, adjoint_options=None):
    calls.append(("adjoint", adjoint_options is not None))
    return qj.odeint(f, y0, t, method=method, rtol=rtol, atol=atol, gradient="adjoint", params=list(f.parameters()))
def odeint_adjoint_gq(f, y0, t, *, gtol, method, rtol, atol):
    calls.append(("gq", gtol))
    f.nfe = 0
    return qj.odeint(f, y0, t, method=method, rtol=rtol, atol=atol, gradient="gq-paper", params=list(f.parameters()))
def make_seminorm(state):
    return lambda x: x.norm()
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    folder = tmp_path / "clone"
    (folder / authors.PACKAGE).mkdir(parents=True)
    (folder / authors.PACKAGE / "__init__.py").write_text(PACKAGE)
    monkeypatch.delitem(sys.modules, authors.PACKAGE, raising=False)
    yield folder
    sys.modules.pop(authors.PACKAGE, None)


def test_the_time_of_the_thread_stands_still_while_it_waits():
    watch = Stopwatch()
    time.sleep(0.05)
    span = watch.span()
    assert span.wall >= 0.05 > 0.04 > span.cpu >= 0.0


def test_all_methods_step_from_the_same_weights_on_the_same_batches(monkeypatch):
    seen: dict[str, list] = {}
    step = contest.Contestant.step
    reference = []

    def watched(self, seed):
        before = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        used = []
        loss = self.task.loss
        remember = replace(self.task, loss=lambda model, batch, noise: used.append(batch) or loss(model, batch, noise))
        self.task, task = remember, self.task
        step(self, seed)
        self.task = task
        after = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        seen.setdefault(str(self.model.ode.gradient), []).append((used[0][0], seed, bool((before != after).any())))
        assert torch.equal(torch.cat([w.flatten() for w in self.weights.values()]), reference[0])

    trained = clock._trained

    def remembered(config, context):
        weights = trained(config, context)
        reference.append(torch.cat([w.flatten() for w in weights.values()]).clone())
        return weights

    monkeypatch.setattr(contest.Contestant, "step", watched)
    monkeypatch.setattr(clock, "_trained", remembered)
    config = clock.Config(task="nested-spheres", width=4, methods="direct gq discrete", turns=3, before=2)
    result = clock.run(config, Context())
    assert set(seen) == {"direct", "gq", "discrete"}
    for turns in zip(*seen.values(), strict=True):  # a turn: the same batch and noise for all, a step by each
        assert all(torch.equal(turns[0][0], batch) and turns[0][1] == seed for batch, seed, _ in turns)
    assert all(moved for turns in seen.values() for *_, moved in turns)
    assert {len(found["steps"]["cpu_seconds"]) for found in result["methods"].values()} == {3}
    assert result["methods"]["discrete"]["gradient_mismatch"] < 1e-5
    assert result["methods"]["direct"]["gradient_mismatch"] == 0.0
    assert all(found["peak_memory"] > 0 for found in result["methods"].values())
    assert result["parameters"] == 5 * 4 + 4 * 4 + 4 * 5 + 4 + 4 + 5 + 4 + 5 * 2 + 2


@pytest.mark.parametrize("study", clock.ABLATIONS)
def test_the_settings_of_an_ablation_are_contestants(study):
    """Each steps with its own setting, and is read as a record that has it."""
    task, _ = clock.ABLATIONS[study]
    method = "gq-paper" if study == "C" else "direct"
    config = clock.Config(task=task, study=study, width=3, methods=method, turns=2, before=1)
    result = clock.run(config, Context())
    line = {"experiment": "clock", "status": "done", "key": "k", "config": as_dict(config), "result": result}
    found = of_study(of_experiment(store.Results([line]), task), clock_of(study))
    varied = clock.VARIED[study]
    assert [{name: r["config"][name] for name in varied[0]} for r in found] == varied
    assert all(r["config"]["method"] == method and len(repeated_seconds(r)) == 2 for r in found)
    if study == "C":
        assert [r["result"]["per_gradient"]["quadrature_nodes"] for r in found][-2:] == [64, 64]


def test_who_gives_up_is_out_of_the_line_and_the_others_go_on(monkeypatch):
    step, turns = contest.Contestant.step, []

    def failing(self, seed):
        turns.append(seed)
        if self.model.ode.gradient == "gq" and seed == 1:
            raise StepSizeUnderflowError("too stiff")
        step(self, seed)

    monkeypatch.setattr(contest.Contestant, "step", failing)
    config = clock.Config(task="crossing", width=3, methods="direct gq", turns=3, before=1)
    result = clock.run(config, Context())
    assert result["given_up"] == {"gq": "StepSizeUnderflowError: too stiff"}
    assert set(result["methods"]) == {"direct"} and len(result["methods"]["direct"]["steps"]["seconds"]) == 3
    assert turns == sorted(turns) and turns.count(2) == 1
    line = {"experiment": "clock", "status": "done", "key": "k", "config": as_dict(config), "result": result}
    assert "k: gq" in render(store.Results([line]), [], {}) and "too stiff" in render(store.Results([line]), [], {})


def test_the_peak_is_of_the_gradient_alone():
    """Of a linear layer: the gradient itself and little else, not a copy of it."""
    model = torch.nn.Linear(1000, 100, bias=False)

    def loss(model, batch, generator):
        return model(batch[0]).sum(), None

    peak = peak_memory(lambda: differentiate(model, loss, (torch.ones(1, 1000),)))
    assert 4e5 <= peak < 5e5


def test_a_line_of_the_clock_is_read_as_a_record_of_each_method(records):
    read = of_experiment(store.Results(records), "crossing")
    clocked = [r for r in read if r["config"]["study"] == "clock"]
    assert {r["config"]["method"] for r in clocked} == set(clock.Config().methods.split())
    assert {r["config"]["width"] for r in clocked} == {4, 8}
    for record in clocked:
        assert len(repeated_seconds(record)) == 3 and step_seconds(record) > 0 and record["result"]["parameters"] > 0
    assert of_experiment(store.Results(records), "clock") == [r for r in records if r["experiment"] == "clock"]


def test_the_authors_code_takes_part_from_its_path(theirs):
    methods = f"direct gq-paper {' '.join(authors.METHODS)}"
    config = clock.Config(task="crossing", width=4, methods=methods, turns=2, before=1)
    result = clock.run(config, Context(authors=theirs))
    assert set(result["methods"]) == set(methods.split()) and len(result["authors_code"]) == 12
    assert result["methods"]["paper:gq"]["gradient_mismatch"] < 1e-2
    counts = result["methods"]["paper:adjoint"]["per_gradient"]
    assert counts["forward_evaluations"] >= 7 and counts["backward_evaluations"] >= 7
    calls = sys.modules[authors.PACKAGE].calls
    assert {("adjoint", False), ("adjoint", True), ("gq", 0.1)} == set(calls)
    assert str(theirs) not in sys.path


def test_the_authors_code_is_refused_in_words_if_it_is_not_there(tmp_path, theirs):
    with pytest.raises(Refusal, match="there is no torch_gq_adjoint in"):
        authors.load(tmp_path)
    authors.load(theirs)
    other = tmp_path / "other"
    (other / authors.PACKAGE).mkdir(parents=True)
    (other / authors.PACKAGE / "__init__.py").write_text("")
    with pytest.raises(Refusal, match="was loaded from another place"):
        authors.load(other)
    with pytest.raises(ValueError, match="no method 'paper:magic'"):
        authors.solve(torch.nn.Identity(), torch.zeros(1), torch.zeros(2), method="paper:magic", tolerance=1e-3)


def test_their_methods_are_timed_only_if_their_code_is_named():
    for named in (False, True):
        cells = clock.grid(Choice("evening", authors=named))
        assert all(("paper:gq" in cell.methods.split()) == (named and cell.study == "widths") for cell in cells)
        assert all(
            ("torchsde-adjoint" in cell.methods.split()) == (cell.task == "ou" and cell.study == "widths")
            for cell in cells
        )
    assert all(cell.turns >= 10 for cell in cells)
    chosen = clock.grid(Choice("quick", methods=("gq", "direct"), widths=(7,)))
    assert {(cell.methods, cell.width) for cell in chosen} == {("direct gq", 7)}
    assert {cell.study for cell in chosen} == {"widths", "regularity", "cosines"}  # the paper's C is not asked for


def test_of_two_runs_on_one_cell_the_one_with_most_methods_counts():
    """So that methods are compared in the turns of one run, whichever came first."""

    def line(seconds: float, *methods: str) -> dict:
        steps = {"cpu_seconds_per_gradient": seconds}
        config = {"task": "crossing", "width": 5, "seed": 0, "methods": " ".join(methods)}
        result = {"methods": dict.fromkeys(methods, steps)}
        return {"experiment": "clock", "status": "done", "key": str(methods), "config": config, "result": result}

    alone, both = line(1.0, "gq-paper"), line(2.0, "gq-paper", "paper:gq")
    for records in ([alone, both], [both, alone]):
        found = of_experiment(store.Results(records), "crossing")
        assert {r["config"]["method"]: step_seconds(r) for r in found} == {"gq-paper": 2.0, "paper:gq": 2.0}
        assert len(found) == 2
