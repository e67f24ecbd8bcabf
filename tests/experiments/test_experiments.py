"""Every experiment, end to end, tiny: facts about its data, its model and its results."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
import torch

from quadjoint.experiments import config as shared
from quadjoint.experiments import crossing, images, nested_spheres, ou, sines, toy_gradient
from quadjoint.experiments.config import Choice, from_dict, learning_rate, run_key
from quadjoint.experiments.execute import Job
from quadjoint.experiments.names import PRESETS
from quadjoint.experiments.registry import NAMES, experiment

TRAINED = ("nested-spheres", "sines", "images", "ou", "crossing")


def test_every_run_of_every_experiment_ends_well(records):
    assert {r["experiment"] for r in records} == set(NAMES)
    assert [(r["key"], r["result"]) for r in records if r["status"] != "done"] == []


def test_a_record_names_the_commit_it_was_made_at(records):
    here = Path(__file__).parent
    head = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True)
    tracked = subprocess.run(["git", "-C", str(here), "ls-files", "--error-unmatch", __file__], capture_output=True)
    if head.returncode or tracked.returncode:
        pytest.skip("the tests are not in a checkout")
    assert records[0]["environment"]["commit"].rstrip("+") == head.stdout.strip()


@pytest.mark.parametrize("name", TRAINED)
def test_all_methods_give_the_same_loss_curve_to_the_solver_tolerance(records, name):
    """Two epochs of Adam from the same weights on the same batches: only the error of the gradient differs."""
    curves = {}
    for record in records:
        method = record["config"]["method"]
        regular = record["config"].get("study") == "widths"
        if record["experiment"] == name and regular and not method.startswith("torchsde"):
            curves[method] = record["result"]["curves"]["train_loss"]
    assert set(curves) == set(shared.METHODS)
    for method, curve in curves.items():
        assert curve == pytest.approx(curves["direct"], rel=2e-2), method


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_record_holds_what_the_figures_need(records, name):
    for record in (r for r in records if r["experiment"] == name):
        result, epochs = record["result"], record["config"]["epochs"]
        assert {len(curve) for curve in result["curves"].values()} == {epochs}
        assert all(cpu > 0 for cpu in result["curves"]["cpu_seconds"]) and result["cpu_seconds_per_gradient"] > 0
        assert result["peak_memory"] > 0 and result["seconds_per_gradient"] > 0 and result["parameters"] > 0
        if not record["config"]["method"].startswith("torchsde"):
            assert result["per_gradient"]["forward_evaluations"] >= 7
        assert record["environment"]["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in torch.__version__


def test_discrete_gives_the_gradient_of_direct(records):
    for name in ("nested-spheres", "sines", "crossing"):
        off = {
            r["config"]["method"]: r["result"]["gradient_mismatch"]
            for r in records
            if r["experiment"] == name and r["config"]["study"] == "widths"
        }
        assert off["direct"] == 0 and off["discrete"] < 1e-5 < off["adjoint"], name


def test_merged_and_per_sample_times_give_the_same_loss(records):
    """The same data at the same irregular times, solved in two ways."""
    first = {}
    for record in records:
        if record["experiment"] == "sines" and record["config"]["spacing"] != "regular":
            key = record["config"]["method"], record["config"]["spacing"]
            first[key] = record["result"]["curves"]["train_loss"][0]
    for method in shared.METHODS:
        assert first[method, "merged"] == pytest.approx(first[method, "per-sample"], rel=2e-2)


def test_gradients_of_the_exponential_are_as_accurate_as_its_solution(records):
    for record in (r for r in records if r["experiment"] == "toy-gradient"):
        assert all(max(errors) < 2e-2 for errors in record["result"]["errors"].values()), record["config"]["method"]


def test_closed_forms_of_the_exponential_are_derivatives_of_its_loss():
    config = toy_gradient.Config()
    z0, a, end = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (config.z0, config.a, 19.0))
    loss = (z0 * torch.exp(a * end)) ** 2
    grads = torch.autograd.grad(loss, (z0, a, end))
    known = toy_gradient.exact(config, 19.0)
    found = {"loss": loss, **dict(zip(("z0", "a", "T"), grads, strict=True))}
    assert {name: v.item() for name, v in found.items()} == pytest.approx(known)


def test_direct_memory_grows_with_the_steps_and_that_of_adjoint_and_mali_does_not(records):
    peaks = {r["config"]["method"]: r["result"]["peak_memory"] for r in records if r["experiment"] == "memory"}
    assert peaks["direct"][-1] > 1.3 * peaks["direct"][0]
    # Up to a few numbers that the garbage collector may not have found yet.
    assert peaks["adjoint"][-1] == pytest.approx(peaks["adjoint"][0], rel=1e-3)
    assert peaks["mali"][-1] == pytest.approx(peaks["mali"][0], rel=1e-3)


def test_spheres_data_are_two_balanced_classes_within_their_radii():
    (x, y), (test_x, _) = nested_spheres.data(2000, 100)
    radius = x.norm(dim=1)
    assert (int((y == 0).sum()), int((y == 1).sum()), len(test_x)) == (1000, 1000, 100)
    assert radius[y == 0].max() <= 0.4 and radius[y == 1].min() >= 0.7 and radius[y == 1].max() <= 0.9
    # uniform by area: the mean squared radius is the mean of the bounds' squares
    assert float((radius[y == 1] ** 2).mean()) == pytest.approx((0.49 + 0.81) / 2, abs=0.01)


def test_sine_data_solve_their_equation():
    config = sines.Config(spacing="merged")
    (y0, t, x), (test_y0, _, _) = sines.data(config)
    assert (len(y0), len(test_y0), t.shape[1]) == (15, 5, 50)
    assert torch.equal(x[:, 0], y0[:, 0]) and bool((t.diff(dim=1) > 0).all())
    # with x'' = -x and x(0) = x0, v(0) = v0 the energy stays: x² <= x0² + v0²
    assert bool((x**2 <= (y0**2).sum(dim=1, keepdim=True) + 1e-6).all())


def test_ou_data_have_the_mean_and_variance_of_the_process():
    config = ou.Config(starts=400, samples=50, times=11)
    t, paths, test = ou.data(config)
    assert paths.shape == (400, 50, 11) and test.shape == (20, 50, 11)
    assert bool((paths[:, :, 0] == paths[:, :1, 0]).all()) and float(paths[:, 0, 0].abs().max()) <= 3
    gap = paths[:, :, -1] - ou.PROCESS.mean(paths[:, :, 0].double(), t[-1].double())
    variance = float(ou.PROCESS.variance(t[-1].double()))
    assert float(gap.mean()) == pytest.approx(0, abs=4 * math.sqrt(variance / gap.numel()))
    assert float(gap.var()) == pytest.approx(variance, rel=0.05)


def test_solutions_of_the_ou_record_start_where_the_data_do(records):
    record = next(r for r in records if r["experiment"] == "ou")
    for start in record["result"]["solutions"]["paths"]:
        assert {path[0] for path in start["learnt"]} == {path[0] for path in start["true"]}


def test_the_paper_preset_is_the_papers_grid():
    paper = Choice("paper")
    spheres = [c for c in nested_spheres.grid(paper) if c.study == "widths"]
    assert {c.width for c in spheres} == {5, 20, 100, 500, 1000, 1500, 2000, 2500, 3000}
    assert {c.seed for c in spheres} == set(range(10)) and {c.epochs for c in spheres} == {100}
    assert {(c.width, c.lr) for c in spheres} == set(nested_spheres.LEARNING_RATES.items())
    ablation = [c for c in nested_spheres.grid(paper) if c.study == "C"]
    assert {(c.width, c.c) for c in ablation} == {(1500, 1e-3), (1500, 0.1), (1500, 1e2), (1500, 1e5)}
    curves = sines.grid(paper)
    assert {(c.times, c.spacing) for c in curves if c.study == "regularity"} == {
        (k, s) for k in (10, 50) for s in sines.SPACINGS
    }
    assert {(c.dataset, c.batch) for c in images.grid(paper)} == {
        *((d, b) for d in ("mnist", "cifar10", "svhn") for b in (16, 32)),
        ("mnist", 256),
    }
    assert {c.width for c in ou.grid(paper)} == {5, 20, 50, 100}
    assert {c.cosines for c in ou.grid(paper)} == {0, 1, 5, 10, 25, 50}
    assert {c.epochs for c in crossing.grid(paper)} == {200}


def test_the_evening_has_the_papers_epochs_and_learning_rates():
    evening = Choice("evening")
    spheres, curves, crossings = (m.grid(evening) for m in (nested_spheres, sines, crossing))
    assert {c.epochs for c in spheres} == {100} and {c.epochs for c in curves} == {250}
    assert {c.epochs for c in crossings} == {200}
    for module, runs in ((nested_spheres, spheres), (sines, curves), (crossing, crossings), (ou, ou.grid(evening))):
        assert all(c.lr == module.LEARNING_RATES[c.width] for c in runs)
    assert {c.epochs for c in ou.grid(evening)} == {100}
    seeds = {width: len({c.seed for c in crossings if c.width == width}) for width in (5, 1000, 2000)}
    assert seeds == {5: 10, 1000: 10, 2000: 2}


def test_every_statement_on_training_has_runs_in_the_evening():
    """Two seeds at least of the paper's methods on every task, or of one that lends its spread."""
    evening = Choice("evening")
    for module in (nested_spheres, sines, crossing):
        runs = [c for c in module.grid(evening) if c.study == "widths"]
        for method in ("direct", "adjoint", "seminorm", "gq-paper"):
            assert len({c.seed for c in runs if c.method == method}) >= 2
    assert len({c.seed for c in ou.grid(evening) if c.method == "direct"}) >= 2


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NAMES)
def test_keys_of_a_grid_are_distinct_and_survive_json(name, preset):
    module = experiment(name)
    configs = module.grid(Choice(preset))
    keys = {Job(name, c).key for c in configs}
    assert len(keys) == len(configs) > 0
    assert {run_key(name, from_dict(module.Config, shared.as_dict(c))) for c in configs} == keys


def test_a_choice_narrows_the_grid():
    chosen = sines.grid(Choice("quick", methods=("gq", "direct"), widths=(7,), seeds=(3,)))
    assert {(c.method, c.width, c.seed) for c in chosen} == {("gq", 7, 3), ("direct", 7, 3)}


def test_unknown_preset_and_setting_are_refused_in_words():
    with pytest.raises(ValueError, match="no preset 'slow'"):
        Choice("slow")
    with pytest.raises(ValueError, match="knows no setting speed"):
        from_dict(sines.Config, {"speed": 3})


def test_learning_rate_below_the_table_is_that_of_its_smallest_width():
    assert learning_rate({5: 1.0, 20: 2.0}, 3) == 1.0
    assert learning_rate({5: 1.0, 20: 2.0}, 20) == 2.0
