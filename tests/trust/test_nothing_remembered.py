"""The same weights, inputs and options give the same numbers bit for bit, whatever was solved before (12.6, 20.17)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from trust.helpers import CHECKPOINTS, GRADIENTS, Field, cases, normal, relative, times, weigh

T = torch.tensor([0.0, 0.3, 1.0])


def solve_and_differentiate(f: nn.Module, gradient: Any, *, method: str = "dopri5") -> list[Tensor]:
    y0 = normal(16, 3, dtype=torch.float32).requires_grad_()
    ys = qj.odeint(f, y0, T, gradient=gradient, method=method)
    return [ys.detach(), *torch.autograd.grad(weigh(ys), [y0, *f.parameters()])]


def small() -> Field:
    return Field(dtype=torch.float32)


def strengthen(f: nn.Module) -> None:
    """What training may do to weights, in one stroke."""
    with torch.no_grad():
        for p in f.parameters():
            p.mul_(2.0)


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_copy_of_the_weights_gives_the_same_states_and_gradients(gradient: Any) -> None:
    used = small()
    solve_and_differentiate(used, gradient)
    strengthen(used)
    fresh = small()
    fresh.load_state_dict(used.state_dict())
    for a, b in zip(solve_and_differentiate(used, gradient), solve_and_differentiate(fresh, gradient), strict=True):
        assert torch.equal(a, b)


def train(f: nn.Module, solve: Any) -> None:
    optimiser = torch.optim.Adam(f.parameters(), lr=0.1)
    y0, target = normal(16, 3, dtype=torch.float32), 3.0 * normal(16, 3, seed=1, dtype=torch.float32)
    for _ in range(40):
        optimiser.zero_grad()
        (solve(f, y0, T, rtol=1e-3, atol=1e-6)[-1] - target).square().mean().backward()
        optimiser.step()


@pytest.mark.parametrize(
    "solve",
    cases([qj.odeint, dropin.odeint, dropin.odeint_adjoint]),
)
def test_a_trained_model_predicts_the_same_after_loading(solve: Any) -> None:
    trained, loaded = small(), small()
    train(trained, solve)
    loaded.load_state_dict(trained.state_dict())
    copied = copy.deepcopy(trained)
    with torch.no_grad():
        first, second, third = (
            solve(f, normal(16, 3, dtype=torch.float32), T, rtol=1e-3, atol=1e-6) for f in (trained, loaded, copied)
        )
    assert torch.equal(first, second), f"the states differ by {float((first - second).abs().max()):.2g}"
    assert torch.equal(first, third)


@pytest.mark.parametrize(
    ("gradient", "first"),
    cases(GRADIENTS, ["solve", "gradient"]),
)
def test_calls_of_one_function_give_the_same_numbers(gradient: Any, first: str) -> None:
    """Nothing that is measured in the first solve, or in the first backward pass, changes the second."""
    f = small()
    if first == "solve":
        qj.odeint(f, normal(16, 3, dtype=torch.float32), T, gradient=gradient)
    runs = [solve_and_differentiate(f, gradient) for _ in range(4)]
    for run in runs[1:]:
        for a, b in zip(run, runs[0], strict=True):
            assert torch.equal(a, b), f"two calls differ by {relative([a], [b]):.1e}"


@pytest.mark.parametrize("gradient", cases(["auto", "discrete", CHECKPOINTS, "gq"]))
def test_other_solves_of_a_function_leave_no_trace(gradient: Any) -> None:
    """Other intervals, tolerances, shapes and gradients before, and the same numbers after."""
    used, fresh = small(), small()
    for other in GRADIENTS:
        ys = qj.odeint(used, normal(5, 3, dtype=torch.float32), 3 * T, gradient=other, rtol=1e-5)
        ys.sum().backward()
    for a, b in zip(solve_and_differentiate(used, gradient), solve_and_differentiate(fresh, gradient), strict=True):
        assert torch.equal(a, b), f"two calls differ by {relative([a], [b]):.1e}"


@pytest.mark.parametrize("rate", [3.0, 4.0])
def test_a_reversible_solve_that_overflows_backwards_is_an_error(rate: float) -> None:
    """Growth by exp(100 rate): the inverse steps overflow, which no gradient may hide."""
    a = torch.tensor(rate, dtype=torch.float64, requires_grad=True)
    ys = qj.odeint(
        lambda t, y: a * y,
        times(1.0),
        times(0.0, 100.0),
        method="alf",
        gradient="reversible",
        options={"step_size": 0.1},
    )
    with pytest.raises(qj.SolveError, match="reversible"):
        torch.autograd.grad(ys[-1].sum(), a)
