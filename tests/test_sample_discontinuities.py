"""Discontinuities of each sample's own, options["jump_t"] of shape (B, J): the k-th of every sample ends a step."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj

NAN = float("nan")
GRADIENTS = ["direct", "discrete", "gq", "adjoint", "seminorm", "gq-paper"]
ROWS = torch.tensor(
    [[0.0, 0.3, 0.9, 1.6], [0.5, 0.6, 0.7, 0.8], [1.0, 1.4, NAN, NAN], [2.0, 1.1, 0.4, NAN], [0.5, NAN, NAN, NAN]],
    dtype=torch.float64,
)
JUMPS = torch.tensor(
    [[0.3, 1.1, 1.3], [0.65, NAN, NAN], [5.0, 1.2, NAN], [1.9, 0.7, 1.1], [0.5, NAN, NAN]], dtype=torch.float64
)


class Switching(nn.Module):
    """dy/dt = r_j y after j of the sample's jumps (and after those on its later end, going backwards)."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.5, -3.0, 2.0, -1.0], dtype=dtype))
        self.jumps = JUMPS.nan_to_num(100.0).to(dtype)
        self.y0 = torch.linspace(0.5, 1.5, 10, dtype=dtype).reshape(5, 2)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.r[(t > self.jumps).sum(1, keepdim=True)] * y

    def exact(self, t: Tensor) -> Tensor:
        """States of shape (K, B, 2): the exponential of an integral of steps."""
        last = (~t.isnan()).sum(1, keepdim=True) - 1
        t = torch.where(t.isnan(), t.gather(1, last), t)
        breaks = self.jumps.sort(dim=1).values
        low = torch.cat([torch.full((5, 1), -100.0).to(t), breaks], dim=1)
        high = torch.cat([breaks, torch.full((5, 1), 100.0).to(t)], dim=1)

        def integral(x: Tensor) -> Tensor:
            return ((x[..., None].clamp(low[:, None], high[:, None]) - low[:, None]) * self.r).sum(-1)

        return torch.exp(integral(t) - integral(t[:, :1])).T[..., None] * self.y0


def gradient_of(ys: Tensor, f: Switching) -> Tensor:
    weights = torch.linspace(-1.0, 1.0, ys.numel(), dtype=ys.dtype).reshape(ys.shape)
    return torch.autograd.grad((weights * ys).sum(), f.r)[0]


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_states_and_gradients_are_those_of_the_closed_form(gradient: str) -> None:
    f = Switching()
    tight = {"rtol": 1e-10, "atol": 1e-10, "options": {"jump_t": JUMPS}}
    sol = qj.solve(f, f.y0, ROWS, gradient=gradient, **tight)
    assert torch.allclose(sol.ys, f.exact(ROWS), rtol=1e-8, atol=1e-9)
    within = 1e-3 if gradient == "gq-paper" else 1e-7
    assert torch.allclose(gradient_of(sol.ys, f), gradient_of(f.exact(ROWS), f), rtol=within, atol=within)


def test_without_their_names_they_have_to_be_found() -> None:
    f = Switching()
    steps = [
        qj.solve(f, f.y0, ROWS, rtol=1e-6, atol=1e-8, options=options).stats for options in ({"jump_t": JUMPS}, None)
    ]
    named, unnamed = (s.accepted_steps + s.rejected_steps for s in steps)
    assert 3 * named < unnamed


def test_single_precision_evaluates_on_the_right_side() -> None:
    """Times of one precision, jumps of another: a stage at a jump never sees the other side."""
    f = Switching(torch.float32)
    ys = qj.odeint(f, f.y0, ROWS, rtol=1e-6, atol=1e-7, options={"jump_t": JUMPS})
    assert torch.allclose(ys.double(), f.exact(ROWS), rtol=2e-5, atol=1e-6)


def test_one_time_for_all_samples() -> None:
    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.where(t < 0.7, 1.0, -2.0) * y

    t = torch.tensor([[0.0, 1.0], [0.5, 2.0], [1.0, 1.5]], dtype=torch.float64)
    y0 = torch.ones(3, 1, dtype=torch.float64)
    ys = qj.odeint(f, y0, t, options={"jump_t": [0.7]}, rtol=1e-9, atol=1e-9)
    exact = torch.tensor([0.7 - 0.6, 0.2 - 2.6, -1.0], dtype=torch.float64).exp()
    assert torch.allclose(ys[-1, :, 0], exact, rtol=1e-7)


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq", "adjoint"])
def test_a_fixed_grid_lands_on_them_too(gradient: str) -> None:
    f = Switching()
    ys = qj.odeint(f, f.y0, ROWS, method="rk4", gradient=gradient, options={"jump_t": JUMPS, "step_size": 0.05})
    assert torch.allclose(ys, f.exact(ROWS), rtol=1e-5, atol=1e-5)
    assert torch.allclose(gradient_of(ys, f), gradient_of(f.exact(ROWS), f), rtol=1e-4, atol=1e-5)


def test_fixed_steps_without_a_size_go_from_one_to_the_next() -> None:
    """From each time of a sample, or discontinuity, to its next: five pieces for the samples that have most of them."""
    f = Switching()
    assert qj.solve(f, f.y0, ROWS, method="rk4", options={"jump_t": JUMPS}).stats.accepted_steps == 5


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("method", ["rk4", "midpoint", "gl4"])
def test_fixed_steps_are_those_of_shared_times(method: str, direction: float) -> None:
    t = direction * torch.tensor([0.0, 0.1, 0.4, 0.5, 1.0], dtype=torch.float64)
    y0 = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    f = lambda t, y: -direction * (5 + t) * y  # noqa: E731
    own = qj.odeint(f, y0, torch.stack([t, torch.cat([t[:3], t.new_full((2,), torch.nan)])]), method=method)
    shared = qj.odeint(f, y0, t, method=method)
    torch.testing.assert_close(own[:, 0], shared[:, 0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(own[:3, 1], shared[:3, 1], rtol=1e-9, atol=1e-12)


def test_a_discontinuity_named_twice_is_one() -> None:
    t = torch.tensor([[0.0, 0.75, 1.0], [0.0, 0.25, 0.5]], dtype=torch.float64)
    y0, jumps = torch.zeros(2, 1, dtype=torch.float64), [0.5, 0.5, 0.25, 0.5]
    sol = qj.solve(lambda t, y: torch.ones_like(y), y0, t, options={"jump_t": jumps})
    torch.testing.assert_close(sol.ys[..., 0], t.T, rtol=0, atol=1e-12)
    once = qj.solve(lambda t, y: torch.ones_like(y), y0, t, options={"jump_t": jumps[1:3]})
    assert sol.stats.accepted_steps == once.stats.accepted_steps


@pytest.mark.parametrize(
    "gradient", [{"method": "rk4", "options": {"step_size": 0.25}}, {"options": {"max_step": 0.3}}]
)
def test_backward_solves_with_settings_of_their_own_end_steps_where_the_clock_of_the_samples_bends(
    gradient: dict[str, Any],
) -> None:
    t = torch.tensor([[0.0, 0.1, 1.0]], dtype=torch.float64)
    y0 = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    ys = qj.odeint(lambda t, y: -y, y0, t, rtol=1e-9, atol=1e-9, gradient=qj.Adjoint(**gradient))
    (found,) = torch.autograd.grad(ys[-1].sum(), y0)
    assert abs(float(found) - math.exp(-1)) < 1e-4


def test_points_of_a_grid_beside_a_discontinuity_are_moved_onto_it() -> None:
    """Those of a float32 path are not those of a grid to the last bit."""
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    jumps = torch.linspace(0, 1, 11)[1:-1].tolist()
    stats = qj.solve(
        lambda t, y: -y, torch.ones(1), t, method="euler", options={"step_size": 0.1, "jump_t": jumps}
    ).stats
    assert stats.accepted_steps == 10


def test_a_fixed_grid_of_shared_times_lands_on_them_too() -> None:
    """Order four across a discontinuity between the points of the grid."""

    def error(step: float) -> float:
        def f(t: Tensor, y: Tensor) -> Tensor:
            return torch.where(t < 0.33, 1.0, -2.0) * y

        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        options = {"step_size": step, "jump_t": [0.33, 7.0]}
        ys = qj.odeint(f, torch.ones(1, dtype=torch.float64), ends, method="rk4", options=options)
        return float((ys[-1] - torch.tensor(0.33 - 1.34, dtype=torch.float64).exp()).abs())

    assert error(0.05) < 1e-6
    assert 12 < error(0.1) / error(0.05) < 20


@pytest.mark.slow
def test_a_compiled_solve_has_the_same_numbers() -> None:
    f = Switching()
    settings = {"rtol": 1e-6, "atol": 1e-8, "options": {"jump_t": JUMPS}}
    plain = qj.odeint(f, f.y0, ROWS, **settings)
    assert torch.allclose(qj.odeint(f, f.y0, ROWS, compile=True, **settings), plain, rtol=1e-9)


def test_a_wrong_shape_is_refused() -> None:
    f = Switching()
    with pytest.raises(ValueError, match=re.escape("options['jump_t'] must have shape (J,), or (B, J) for a batch of")):
        qj.odeint(f, f.y0, ROWS, options={"jump_t": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"event_fn needs an adaptive method"):
        qj.odeint(
            lambda t, y: -y,
            torch.ones(1),
            torch.tensor([0.0, 1.0]),
            method="rk4",
            event_fn=lambda t, y: y - 0.5,
            options={"step_size": 0.1, "jump_t": [0.2]},
        )
