"""Samples that cannot be solved, and those that can beside them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from independent.helpers import DTYPE
from quadjoint.errors import NonFiniteStateError, StepSizeUnderflowError, TooManyStepsError

TIMES = torch.tensor([0.0, 0.5, 1.5, 2.0], dtype=DTYPE)
GRADIENTS: dict[str, Any] = {
    "direct": "direct",
    "discrete": "discrete",
    "recomputed": qj.DiscreteAdjoint(activations=0),
    "checkpoints": qj.DiscreteAdjoint(max_states=3),
    "gq": "gq",
    "auto": "auto",
}


class Mixed(torch.nn.Module):
    """y' = w y^2, which blows up at 1 / (w y0); the third sample has no derivative at all, nor has its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(1.0, dtype=DTYPE))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.w * y * y * torch.sqrt(y / self.w) / torch.sqrt(y)


STARTS = torch.tensor([[1.0], [0.25], [-0.5], [0.3]], dtype=DTYPE)
FAIL = torch.tensor([True, False, True, False])


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("how", ["nan", "stop"])
def test_one_bad_sample_does_not_end_a_training_run(how: str, gradient: str) -> None:
    """The others are as right as without it, in values and in gradients; its own gradients are zero."""
    f, y0 = Mixed(), STARTS.clone().requires_grad_()
    options: dict[str, Any] = {"on_failure": how}
    settings: dict[str, Any] = {"independent": True, "gradient": GRADIENTS[gradient], "rtol": 1e-6, "atol": 1e-8}
    sol = qj.solve(f, y0, TIMES, options=options, **settings)
    assert sol.status.failed.tolist() == FAIL.tolist()
    assert [sol.status[b].name for b in (0, 2)] == ["STEP_TOO_SMALL", "NOT_FINITE"]
    assert float(sol.status.t[0]) == pytest.approx(1.0, abs=1e-3) and float(sol.status.t[2]) == 0.0
    if how == "nan":
        assert torch.isnan(sol.ys[:, FAIL]).all()
        found = torch.autograd.grad((sol.ys**2).nansum(), [y0, *f.parameters()])
    else:
        found = torch.autograd.grad((sol.ys[:, ~FAIL] ** 2).sum(), [y0, *f.parameters()])
    well = STARTS[~FAIL].clone().requires_grad_()
    ys = qj.odeint(f, well, TIMES, **settings)
    torch.testing.assert_close(sol.ys[:, ~FAIL], ys, rtol=1e-12, atol=1e-12)
    exact = torch.autograd.grad((ys**2).sum(), [well, *f.parameters()])
    torch.testing.assert_close(found[0][~FAIL], exact[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found[1], exact[1], rtol=1e-11, atol=1e-11)
    assert found[0][FAIL].tolist() == [[0.0], [0.0]]


def test_stop_keeps_what_was_reached() -> None:
    """States at the times before, then NaN, and last the state where it stopped; that of one that never began is y0."""
    with torch.no_grad():
        sol = qj.solve(Mixed(), STARTS, TIMES, independent=True, options={"on_failure": "stop"}, rtol=1e-6)
    assert torch.isnan(sol.ys[:, 0, 0]).tolist() == [False, False, True, False]
    assert float(sol.ys[1, 0]) == pytest.approx(2.0, abs=1e-4) and float(sol.ys[-1, 0]) > 100.0
    assert sol.ys[[0, 3], 2, 0].tolist() == [-0.5, -0.5] and torch.isnan(sol.ys[1:3, 2]).all()
    assert sol.ts[0, -1] == sol.status.t[0] and sol.ts[1, -1] == 2.0


def test_steps_that_run_out() -> None:
    """What is kept up to there can be differentiated: y = exp(int cos) at the time that was reached."""
    rates = torch.tensor([[1.0], [200.0]], dtype=DTYPE)
    y0 = torch.ones(2, 1, dtype=DTYPE, requires_grad=True)
    sol = qj.solve(
        lambda t, y: torch.cos(rates * t) * y,
        y0,
        TIMES,
        independent=True,
        rtol=1e-7,
        atol=1e-9,
        options={"on_failure": "stop", "max_num_steps": 40},
    )
    assert [sol.status[b].name for b in range(2)] == ["LAST_TIME", "TOO_MANY_STEPS"]
    reached = sol.status.t[1]
    assert 0.0 < float(reached) < 0.5
    exact = torch.exp(torch.sin(200.0 * reached) / 200.0)
    torch.testing.assert_close(sol.ys[-1, 1, 0], exact, rtol=1e-6, atol=1e-6)
    (found,) = torch.autograd.grad(sol.ys[-1, 1, 0], y0)
    torch.testing.assert_close(found[:, 0], torch.stack([torch.zeros_like(exact), exact]), rtol=1e-6, atol=1e-6)


CASES: dict[str, tuple[Any, Tensor, dict[str, Any], type[Exception], str]] = {
    "start": (
        lambda t, y: torch.sqrt(y),
        STARTS,
        {},
        NonFiniteStateError,
        r"1 of 4 samples could not be solved. sample 2 at t = 0: the dynamics are not finite there",
    ),
    "singularity": (
        lambda t, y: y * y,
        STARTS.clamp(min=0.1),
        {},
        StepSizeUnderflowError,
        r"1 of 4 samples could not be solved. sample 0 at t = 0.9999\d* \(step size .*\): the step size fell below",
    ),
    "steps": (
        lambda t, y: -y,
        STARTS,
        {"max_num_steps": 2},
        TooManyStepsError,
        r"4 of 4 samples .* sample 0 at t = .*max_num_steps were not enough; sample 1 at .*on_failure",
    ),
    "later": (
        lambda t, y: torch.log(1.0 - t) * y,
        STARTS,
        {},
        NonFiniteStateError,
        r"of 4 samples could not be solved. sample \d at t = (1|0.9999\d*) .*the dynamics are not finite there",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_the_samples(case: str) -> None:
    f, y0, options, kind, message = CASES[case]
    with pytest.raises(kind, match=message):
        qj.odeint(f, y0, TIMES, independent=True, options=options)


def test_many_samples_are_not_all_named() -> None:
    with pytest.raises(NonFiniteStateError, match=r"100 of 100 samples .* sample 4 at t = 0: [^;]*; and 95 more\."):
        qj.odeint(lambda t, y: torch.log(y), -torch.ones(100, 1), TIMES.float(), independent=True)


def test_all_samples_may_fail() -> None:
    y0 = torch.full((3, 2), -1.0, dtype=DTYPE, requires_grad=True)
    w = torch.tensor(1.0, dtype=DTYPE, requires_grad=True)
    sol = qj.solve(lambda t, y: w * torch.log(y), y0, TIMES, independent=True, options={"on_failure": "nan"})
    assert bool(sol.status.failed.all()) and bool(torch.isnan(sol.ys).all())
    found = torch.autograd.grad(sol.ys.nansum(), (y0, w), allow_unused=True)
    assert all(g is None or not g.any() for g in found)
    assert str(sol.status) == "NOT_FINITE: 3"


def test_failures_beside_events() -> None:
    """Of three samples one falls to the ground, one fails, one flies on."""
    push = torch.tensor([[-1.0], [0.0], [1.0]], dtype=DTYPE)

    def f(t: Tensor, y: Tensor) -> Tensor:
        bad = torch.tensor([[0.0], [1.0], [0.0]], dtype=DTYPE) / (1.0 - t)
        return push + torch.where(bad == 0.0, 0.0, bad * y)

    y0 = torch.ones(3, 1, dtype=DTYPE)
    sol = qj.solve(f, y0, TIMES, independent=True, event_fn=lambda t, y: y, options={"on_failure": "nan"})
    assert [sol.status[b].name for b in (0, 2)] == ["EVENT", "LAST_TIME"] and bool(sol.status.failed[1])
    assert torch.isnan(sol.ys[:, 1]).all() and not torch.isnan(sol.ys[-1, [0, 2]]).any()
    torch.testing.assert_close(sol.event_time[[0, 2]], torch.tensor([1.0, 2.0], dtype=DTYPE), rtol=1e-6, atol=1e-6)


def test_one_that_never_began_stops_at_its_initial_state_also_in_a_solve_that_was_paused() -> None:
    w = torch.tensor(1.0, dtype=DTYPE, requires_grad=True)
    sol = qj.solve(
        lambda t, y: -w * y + 0 * y.sqrt(),
        torch.tensor([[1.0], [-1.0]], dtype=DTYPE),
        TIMES,
        independent=True,
        gradient=qj.Direct(memory_limit=200),
        options={"on_failure": "stop"},
    )
    assert "from step" in sol.stats.reason
    assert sol.ys[[0, -1], 1, 0].tolist() == [-1.0, -1.0]


def test_the_continuous_solution_of_a_sample_that_never_began_is_nan_backwards_in_time_too() -> None:
    y0 = torch.tensor([[1.0], [-1.0]], dtype=DTYPE)
    for times in (TIMES, TIMES.flip(0)):
        sol = qj.solve(
            lambda t, y: -y + 0 * y.sqrt(), y0, times, independent=True, options={"on_failure": "nan"}, rtol=1e-6
        )
        well, bad = sol(0.5)[:, 0].tolist()
        assert well == pytest.approx(math.exp(float(times[0]) - 0.5), rel=1e-4) and math.isnan(bad)
        with pytest.raises(ValueError, match="outside the solved interval of sample 0"):
            sol(2.0 * float(times[0]) - 0.5)
