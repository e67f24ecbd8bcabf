"""What auto would choose, said before it chooses; and the bar over integration time."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import quadjoint as qj
from quadjoint.explain import Explanation
from quadjoint.solver.progress import bar

T = torch.tensor([0.0, 1.0])
IMPLICIT = {name for name, tableau in qj.TABLEAUS.items() if not tableau.explicit}


@pytest.mark.parametrize("limit", [10**9, 20_000, 1])
def test_explains_what_auto_then_does(limit: int) -> None:
    """For every memory limit, the choice is the one that a solve with ``Auto`` makes."""
    f = qj.nn.TimeMLP(3, width=32)
    y0 = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    found = qj.explain(f, y0, T, memory_limit=limit, show=False)
    stats = qj.solve(f, y0, T, gradient=qj.Auto(memory_limit=limit)).stats
    assert stats.method == found.gradient.name
    assert stats.reason.startswith(f"auto chose {found.choice}:")
    assert stats.accepted_steps == found.stats.accepted_steps


BY_NAME = [name for name in qj.METHODS if name != "scipy_solver" and not name.startswith("my_")]


@pytest.mark.parametrize("method", [*BY_NAME, qj.TABLEAUS["heun3"], qj.TABLEAUS["sdirk2"]], ids=lambda m: str(m)[:30])
def test_explains_what_a_solve_then_does_with_every_method(method: Any) -> None:
    """Explicit or implicit, on a grid or not, of one step or of many; and the first line says so."""
    f, y0 = qj.nn.TimeMLP(3, width=8), torch.zeros(2, 3)
    found = qj.explain(f, y0, T, method=method, show=False)
    stats = qj.solve(f, y0, T, method=method).stats
    assert found.gradient.name == stats.method
    assert stats.reason.startswith(f"auto chose {found.choice}:")
    assert str(found).startswith(f"auto chooses {stats.method}")
    if found.rule is not None:
        assert stats.reason.startswith(f"auto chose {found.choice}: {found.reason}")
    assert (stats.method == "discrete") == (method in IMPLICIT or method is qj.TABLEAUS["sdirk2"])


def test_explains_what_a_solve_then_does_where_saved_tensors_are_watched() -> None:
    w, y0 = torch.ones(2, requires_grad=True), torch.ones(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        found = qj.explain(lambda t, y: -w * y, y0, T, show=False)
        stats = qj.solve(lambda t, y: -w * y, y0, T).stats
    assert (found.choice, found.gradient.name, stats.method) == ("discrete",) * 3
    assert found.reason in stats.reason and found.reason in str(found)


def test_of_implicit_steps_costs_are_measured_and_not_predicted() -> None:
    """The cost model counts the stages of explicit ones."""
    f, y0 = qj.nn.TimeMLP(3, width=8), torch.zeros(2, 3)
    found = qj.explain(f, y0, T, method="sdirk2", measure=True, repeats=1, show=False)
    assert found.predicted == {} and set(found.measured) == {"direct", "discrete", "gq"}
    assert "* discrete" in str(found) and "predicted" not in str(found)


def test_sizes_are_those_of_the_problem() -> None:
    f = qj.nn.TimeMLP(3, width=32)
    sizes = qj.explain(f, torch.zeros(40, 3), T, show=False).sizes
    assert (sizes.rows, sizes.features, sizes.state_bytes) == (40, 3, 480)
    assert sizes.parameter_count == sum(p.numel() for p in f.parameters())
    # Between its layers the network has two tensors of 40 x 32 before, and two after, the activation.
    assert 2 * 40 * 32 * 4 <= sizes.activation_bytes <= 5 * 40 * 33 * 4


def test_less_memory_never_predicts_less_time() -> None:
    f = qj.nn.TimeMLP(3, width=32)
    seconds = []
    for limit in (10**9, 100_000, 20_000):
        found = qj.explain(f, torch.zeros(40, 3), T, memory_limit=limit, show=False)
        seconds.append(found.predicted[found.choice].seconds)
    assert seconds == sorted(seconds)


def test_measures_every_method_that_it_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    """Direct keeps the activations of every evaluation, the joint transpose as many as the limit leaves room for."""
    f = qj.nn.TimeMLP(3, width=64)
    found = qj.explain(f, torch.zeros(40, 3), T, memory_limit=500_000, measure=True, repeats=1)
    assert set(found.measured) == set(found.predicted) == {"direct", "joint", "stacked", "gq"}
    assert found.measured["joint"].bytes < found.measured["direct"].bytes / 2
    shown = capsys.readouterr().out
    assert shown.strip() == str(found)
    assert all(name in shown for name in ("discrete (joint)", "measured", f"{found.sizes.evaluations} evaluations"))


def test_measures_what_it_is_asked_for() -> None:
    w = torch.ones(2, requires_grad=True)
    found = qj.explain(lambda t, y: -w * y, torch.ones(2), T, measure=["gq", "adjoint"], repeats=1, show=False)
    assert set(found.measured) == {"gq", "adjoint"}
    assert w.grad is None
    assert "gq" in str(found)


def test_parameters_that_f_uses_only_later_are_named_for_the_measurement_too() -> None:
    w = torch.ones(2, requires_grad=True)
    found = qj.explain(
        lambda t, y: -w * y if t > 0.5 else -y,
        torch.ones(2),
        T,
        params=[w],
        options={"jump_t": [0.5]},
        measure=["discrete"],
        repeats=1,
        show=False,
    )
    assert set(found.measured) == {"discrete"}


def test_tuple_states_and_times_of_each_sample() -> None:
    w = torch.ones((), requires_grad=True)
    pair = qj.explain(lambda t, y: (-w * y[0], y[1]), (torch.ones(3), torch.ones(2)), T, measure=["direct"], show=False)
    assert isinstance(pair, Explanation) and pair.sizes.parameter_count == 1
    times = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    assert qj.explain(lambda t, y: -w * y, torch.ones(2, 1), times, show=False).sizes.rows == 2


def test_scipy_leaves_no_choice() -> None:
    with pytest.raises(ValueError, match="scipy_solver"):
        qj.explain(lambda t, y: -y, torch.ones(1), T, method="scipy_solver")


def test_bar_moves_from_the_first_to_the_last_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Accepted steps add up to the interval, in either direction, and whatever was to be called is still called."""
    seen = []

    class Dynamics(torch.nn.Module):
        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -y

        def callback_accept_step(self, t: torch.Tensor, y: torch.Tensor, dt: torch.Tensor) -> None:
            seen.append(float(dt))

    for end in (3.0, -3.0):
        seen.clear()
        qj.solve(Dynamics(), torch.ones(1), torch.tensor([0.0, end]), progress=True)
        assert sum(seen) == pytest.approx(3.0)
        written = capsys.readouterr().err
        assert "100%" in written and f"t = {end:.0f}" in written


def test_no_bar_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    qj.solve(lambda t, y: -y, torch.ones(1), T)
    assert capsys.readouterr().err == ""


def test_bar_without_tqdm_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        bar([0.0, 1.0])
