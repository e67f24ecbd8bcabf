"""Peak tensor memory against the number of steps, in vectors of the state's size.

Measured by a dispatch mode that knows every storage which an operation creates, and when it dies; deterministic.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar

import pytest
import torch

import quadjoint as qj
from gradient.helpers import ALL, LiveMemory, Network, normal, times

BATCH, DIM, WIDTH = 512, 2, 32  # as many rows as one chunk of stacked evaluations has
STATE_BYTES = BATCH * DIM * 8


def peak(how: str | qj.Gradient, steps: int, method: str) -> int:
    f, y0 = Network(DIM, WIDTH), normal(BATCH, DIM).requires_grad_()
    with LiveMemory() as memory:
        ys = qj.odeint(f, y0, times(0.0, 1.0), method=method, gradient=how, options={"step_size": 1 / steps})
        ys[-1].square().sum().backward()
    return memory.peak


def growth(how: str | qj.Gradient, method: str = "rk4") -> float:
    """Vectors of the state's size by which the peak grows with every step."""
    return (peak(how, 32, method) - peak(how, 8, method)) / 24 / STATE_BYTES


@pytest.mark.parametrize("how", ["gq-paper", "adjoint", "seminorm", qj.DiscreteAdjoint(max_states=2, mode="joint")])
def test_memory_does_not_grow_with_the_steps(how: str | qj.Gradient) -> None:
    assert growth(how) < 0.05


@pytest.mark.parametrize("how", ["gq-paper", qj.GaussLegendre(max_states=2)])
@pytest.mark.parametrize("dim", [1000, pytest.param(1537, marks=pytest.mark.slow)])
def test_memory_of_a_flat_state_does_not_grow_as_the_tolerance_falls(how: str | qj.Gradient, dim: int) -> None:
    """A vector of any length is one row; what is stacked is bounded by its bytes, not by its rows."""
    w = normal(dim).requires_grad_()
    peaks = []
    for tolerance in (1e-4, 1e-7, 1e-10):
        with LiveMemory() as memory:
            ys = qj.odeint(
                lambda t, y: torch.cos(w * y + 3.0 * t) - y,
                normal(dim, seed=1),
                times(0.0, 6.0),
                gradient=how,
                rtol=tolerance,
                atol=tolerance,
            )
            ys[-1].square().sum().backward()
        peaks.append(memory.peak)
    assert max(peaks) - min(peaks) <= 6 * dim * 8, [p / (dim * 8) for p in peaks]


@pytest.mark.parametrize("max_states", [3, 5, 8])
def test_memory_is_bounded_by_the_states_allowed(max_states: int) -> None:
    how = qj.DiscreteAdjoint(max_states=max_states, mode="joint")
    least = peak(qj.DiscreteAdjoint(max_states=1, mode="joint"), 2, "rk4")
    for steps in (8, 13, 32):
        working = 3  # states on the way from a stored one to the step that is transposed
        assert peak(how, steps, "rk4") <= least + (max_states + working) * STATE_BYTES


def test_memory_of_the_reversible_method_does_not_grow_with_the_steps() -> None:
    assert growth("reversible", "alf") == 0.0


@pytest.mark.parametrize(
    ("how", "vectors"),
    [
        ("gq", 5),
        (qj.DiscreteAdjoint(mode="joint", activations=0), 5),
        (qj.DiscreteAdjoint(mode="stacked", activations=0), 5),
        (qj.GaussLegendre(), 5),
        (qj.DiscreteAdjoint(keep="states", mode="joint"), 1.05),
    ],
)
def test_memory_grows_by_a_few_states_a_step(how: str | qj.Gradient, vectors: float) -> None:
    assert 0.9 < growth(how) < vectors


@pytest.mark.parametrize("mode", ["joint", "stacked"])
@pytest.mark.parametrize("steps", [8, 32])
def test_activations_are_kept_up_to_the_bytes_allowed(mode: str, steps: int) -> None:
    """Peak memory is that without kept activations and the allowance: nearly all of it is used, and no more."""
    least = peak(qj.DiscreteAdjoint(mode=mode, activations=0), steps, "rk4")
    allowance = 20 * BATCH * WIDTH * 8
    extra = peak(qj.DiscreteAdjoint(mode=mode, activations=allowance), steps, "rk4") - least
    assert 0.8 * allowance < extra <= allowance


def test_memory_of_backpropagation_grows_with_the_activations() -> None:
    hidden_layers = 4 * WIDTH / DIM  # the stages of a step, in vectors of the state's size
    assert growth("direct") > hidden_layers


@pytest.mark.parametrize("how", [*ALL, "reversible", qj.GaussLegendre(rtol=1e-4)])
def test_the_forward_solve_is_freed_by_backward(how: str | qj.Gradient) -> None:
    """What a backward pass has used is freed although the result is still alive, and without the garbage collector."""
    f, y0 = Network(DIM, WIDTH), normal(BATCH, DIM).requires_grad_()
    method = "alf" if how == "reversible" else "rk4"
    gc.collect()
    gc.disable()
    try:
        with LiveMemory() as memory:
            ys = qj.odeint(f, y0, times(0.0, 1.0), method=method, gradient=how, options={"step_size": 1 / 16})
            ys.square().sum().backward()
            result = ys.detach()
        assert memory.now < 6 * STATE_BYTES  # two observations, gradients and initial state
        assert result.shape == (2, BATCH, DIM)
        with LiveMemory() as memory:
            ys = qj.odeint(f, y0, times(0.0, 1.0), method=method, gradient=how, options={"step_size": 1 / 16})
            del ys  # never differentiated
        assert memory.now < STATE_BYTES
    finally:
        gc.enable()


class Noted(torch.autograd.Function):
    """The identity, which notes the graphs that are alive."""

    alive: ClassVar[weakref.WeakSet[torch.Tensor]] = weakref.WeakSet()

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
        ctx.kept = torch.zeros(())
        Noted.alive.add(ctx.kept)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


@pytest.mark.parametrize("how", ["gq", "adjoint", "reversible", qj.DiscreteAdjoint(activations=0)])
def test_a_continuous_solution_keeps_no_graph_of_an_evaluation(how: str | qj.Gradient) -> None:
    f, y0 = Network(DIM, WIDTH), normal(BATCH, DIM)
    method = "alf" if how == "reversible" else "rk4"
    Noted.alive.clear()
    sol = qj.solve(lambda t, y: f(t, Noted.apply(y)), y0, times(0.0, 1.0), method=method, gradient=how)
    gc.collect()
    assert not Noted.alive
    assert sol.ys.requires_grad
