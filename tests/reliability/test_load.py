"""Nothing leaks, and large solves are as large as promised."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from reliability.faults import GRADIENTS, method_of
from reliability.load import bad, fresh, good, growth, only_new_objects

MEBIBYTE = 2**20


KINDS = {"solves": (good, 10), "solves of new functions": (fresh, 10), "failing solves": (bad, 4)}
# One evaluation measured by auto's saved-tensor hooks keeps its own outputs alive in a reference cycle.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_tensors_do_not_pile_up(gradient: str, kind: str) -> None:
    """Several solves leave as many tensors as none: anything kept per solve would show."""
    make, count = KINDS[kind]
    tensors, _ = growth(make(gradient), count, warm_up=3)
    assert tensors == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["solves", "failing solves"])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_memory_is_flat_over_200_solves(gradient: str, kind: str) -> None:
    tensors, grown = growth(KINDS[kind][0](gradient), 200, warm_up=20)
    assert tensors == 0
    assert grown < 8 * MEBIBYTE


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_memory_is_flat_over_10_000_solves() -> None:
    tensors, grown = growth(good("discrete"), 10_000, warm_up=100)
    assert tensors == 0
    assert grown < 16 * MEBIBYTE


class Rotation(torch.nn.Module):
    """dy/dt = w J y: the solution turns by the angle w t."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(rate, dtype=torch.float64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.w * torch.stack([-y[..., 1], y[..., 0]], -1)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [g for g in GRADIENTS if g != "reversible"])
def test_one_hundred_thousand_observations(gradient: str) -> None:
    """Methods that restart at every observation are asked for a hundredth of them."""
    continuous = gradient not in ("direct", "discrete", "auto")
    count = 1_000 if continuous else 100_000
    f, t = Rotation(2.0), torch.linspace(0, 1, count, dtype=torch.float64)
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64)
    ys = qj.odeint(f, y0, t, rtol=1e-8, atol=1e-9, gradient=gradient)
    expected = torch.stack([torch.cos(2 * t), torch.sin(2 * t)], -1)
    torch.testing.assert_close(ys.detach(), expected, rtol=0, atol=1e-6)
    ys[:, 1].mean().backward()
    # d/dw of the mean of sin(w t) is the mean of t cos(w t).
    assert f.w.grad is not None
    assert abs(float(f.w.grad) - float((t * torch.cos(2 * t)).mean())) < (1e-4 if gradient == "gq-paper" else 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_state_of_ten_million_numbers(gradient: str) -> None:
    rate = torch.tensor(0.5, requires_grad=True)
    y0 = torch.ones(10_000_000)
    times = torch.tensor([0.0, 1.0])
    method = method_of(gradient) if gradient == "reversible" else "rk4"
    ys = qj.odeint(lambda t, y: -rate * y, y0, times, method=method, options={"step_size": 0.25}, gradient=gradient)
    ys[-1].mean().backward()
    assert rate.grad is not None
    assert abs(float(rate.grad) + float(torch.exp(torch.tensor(-0.5)))) < 1e-2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_ten_thousand_steps(gradient: str) -> None:
    f = Rotation(1.0)
    y0, t = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 10.0], dtype=torch.float64)
    method = "alf" if gradient == "reversible" else "midpoint"
    sol = qj.solve(f, y0, t, method=method, options={"step_size": 1e-3}, gradient=gradient)
    assert sol.stats.accepted_steps == 10_000
    sol.ys[-1, 1].backward()
    assert f.w.grad is not None
    # d/dw sin(10 w) = 10 cos(10 w); second-order methods with h = 1e-3.
    assert abs(float(f.w.grad) - 10 * float(torch.cos(t[1]))) < 1e-3


@pytest.mark.parametrize(("gradient", "per_step"), [("reversible", 0), (qj.DiscreteAdjoint(max_states=4), 0),
                                                    (qj.GaussLegendre(trajectory=qj.Backsolve()), 0),
                                                    ("adjoint", 0), ("seminorm", 0), ("gq-paper", 0),
                                                    (qj.DiscreteAdjoint(keep="states"), 1)], ids=str)  # fmt: skip
def test_the_memory_between_the_passes_is_as_promised(gradient: Any, per_step: int) -> None:
    """State-sized tensors that are alive after the forward solve, for twice as many steps: only so many more."""
    f = Rotation(1.0)
    y0 = torch.ones(50, 2, dtype=torch.float64)
    kept: list[int] = []
    with only_new_objects():
        _between_the_passes(f, y0, gradient, kept)
    assert kept[1] - kept[0] <= 50 * per_step + 4


def _between_the_passes(f: Rotation, y0: Tensor, gradient: Any, kept: list[int]) -> None:
    for steps in (50, 100):
        before = _state_sized(y0)
        method = "alf" if gradient == "reversible" else "rk4"
        options = {"step_size": 1.0 / steps}
        ys = qj.odeint(f, y0, torch.tensor([0.0, 1.0]), gradient=gradient, method=method, options=options)
        kept.append(_state_sized(y0) - before)
        ys.sum().backward()
        del ys


def _state_sized(like: Tensor) -> int:
    gc.collect()
    found = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and x.shape == like.shape]
    return len({x.untyped_storage().data_ptr() for x in found})


def test_the_measurement_notices_a_leak() -> None:
    kept: list[Tensor] = []
    # Tensors of this size get memory of their own from the system, not what was freed before.
    tensors, grown = growth(lambda: kept.append(torch.ones(64 * MEBIBYTE // 4)), 4)
    assert tensors == 4
    assert 200 * MEBIBYTE < grown < 300 * MEBIBYTE
