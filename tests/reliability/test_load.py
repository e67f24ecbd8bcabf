"""Nothing leaks, and large solves are as large as promised."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from reliability.faults import GRADIENTS
from reliability.large import STEPS, Rotation, large_state, many_observations, many_steps
from reliability.load import bad, fresh, good, growth, light, only_new_objects

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
@pytest.mark.timeout(600)
def test_memory_is_flat_over_10_000_solves() -> None:
    tensors, grown = growth(light("discrete"), 10_000, warm_up=100)
    assert tensors == 0
    assert grown < 16 * MEBIBYTE


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("solve", [many_steps, many_observations, large_state])
def test_large_solves_find_the_gradient(solve: Any, gradient: str) -> None:
    """Ten thousand steps, a hundred thousand observations (or a thousand), a state of ten million numbers."""
    _, error = solve(gradient)
    rough = solve is large_state or gradient in ("gq-paper", "reversible")  # large steps; orders two and four
    assert error < (1e-2 if rough else 1e-4)


@pytest.mark.slow
def test_the_steps_are_as_many_as_said() -> None:
    y0, t = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 10.0], dtype=torch.float64)
    sol = qj.solve(Rotation(1.0), y0, t, method="midpoint", options={"step_size": 10.0 / STEPS})
    assert sol.stats.accepted_steps == STEPS == 10_000


@pytest.mark.parametrize(
    ("gradient", "per_step"),
    [
        ("reversible", 0),
        (qj.DiscreteAdjoint(max_states=4), 0),
        (qj.QuadratureAdjoint(qj.PerStep()), 0),
        ("adjoint", 0),
        ("seminorm", 0),
        ("gq-paper", 0),
        (qj.DiscreteAdjoint(keep="states"), 1),
    ],
    ids=str,
)
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
