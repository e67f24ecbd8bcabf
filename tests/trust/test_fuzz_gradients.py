"""Gradients of random solves against backpropagation in float64: any f, state, times, method and gradient setting.

A case is named by its seed: ``pytest tests/trust/test_fuzz_gradients.py -k "exact and 17"``. Many more are drawn with
``-m slow``.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import relative
from trust.random_problems import Case, State, draw_case, parts

FEW, MANY = 60, 1500
ADAPTIVE = ("dopri5", "dopri5", "tsit5", "dopri8", "bosh3", "adaptive_heun")
FIXED = ("rk4", "rk4", "euler", "midpoint", "heun2", "heun3")


def draw_method(draw: random.Random) -> dict[str, Any]:
    """A method with its options and tolerances."""
    if draw.random() < 0.4:
        options: dict[str, Any] = {"step_size": draw.choice([0.05, 0.13, 0.3])}
        if draw.random() < 0.3:
            options["interp"] = "linear"
        return {"method": draw.choice(FIXED), "options": options}
    options = draw.choice([{}, {}, {"controller": "pi"}, {"first_step": 0.05}, {"max_step": 0.1}, {"safety": 0.7}])
    rtol = draw.choice([1e-2, 1e-4, 1e-6])
    method = draw.choice(ADAPTIVE)
    if method in ("bosh3", "adaptive_heun"):
        rtol = max(rtol, 1e-4)
    return {"method": method, "rtol": rtol, "atol": rtol * draw.choice([1.0, 1e-3]), "options": options}


def draw_exact(draw: random.Random) -> Any:
    """A gradient that is exact for the discretised solve."""
    kind = draw.choice(["auto", "limit", "discrete", "discrete"])
    if kind == "auto":
        return "auto"
    if kind == "limit":
        return qj.Auto(memory_limit=draw.choice([1, 10_000, 10**7]))
    return qj.DiscreteAdjoint(
        keep=draw.choice(["stages", "stages", "states"]),
        max_states=draw.choice([None, None, 1, 2, 5]),
        mode=draw.choice(["auto", "joint", "stacked"]),
        activations=draw.choice([0, 2_000, 2**24]),
    )


def draw_continuous(draw: random.Random) -> Any:
    """A gradient that solves the adjoint equation."""
    return draw.choice(
        [
            "gq",
            "gq",
            qj.GaussLegendre(nodes=4, solve="iterate"),
            qj.QuadratureAdjoint(qj.PerStep()),
            qj.ContinuousAdjoint(qj.InState()),
            "adjoint",
            "seminorm",
        ]
    )


def gradients(case: Case, gradient: Any, settings: dict[str, Any], *, scale: float, learn: bool) -> list[Tensor]:
    """States, and gradients in the initial state, the times (if they are learnt) and the parameters."""
    starts = tuple(part.clone().requires_grad_() for part in parts(case.y0))
    y0: State = starts[0] if isinstance(case.y0, Tensor) else starts
    t = case.t.clone().requires_grad_(learn)
    solved = parts(qj.odeint(case.f, y0, t, gradient=gradient, **settings))
    numbers = torch.Generator().manual_seed(0)
    loss = torch.zeros((), dtype=torch.float64)
    for ys in solved:
        weights = torch.randn(ys.shape, generator=numbers, dtype=ys.dtype)
        loss = loss + (weights.conj() * ys).real.sum() + 0.3 * ys.abs().square().sum()
    inputs = [*starts, *([t] if learn else []), *case.params]
    found = torch.autograd.grad(scale * loss, inputs, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
    return [*(ys.detach() for ys in solved), *zeros]


def check_exact(seed: int) -> None:
    draw = random.Random(1_000_003 * seed + 1)
    settings, gradient, scale, learn = (
        draw_method(draw),
        draw_exact(draw),
        10.0 ** draw.randint(-6, 6),
        draw.random() < 0.3,
    )
    # Two draws of one case: what is remembered of a function must not matter.
    wanted = gradients(draw_case(seed), "direct", settings, scale=scale, learn=learn)
    found = gradients(draw_case(seed), gradient, settings, scale=scale, learn=learn)
    for a, b in zip(found, wanted, strict=True):
        assert relative([a], [b]) < 1e-8, f"{draw_case(seed)}; {settings}, {gradient}, learn={learn}"


def check_continuous(seed: int) -> None:
    draw = random.Random(1_000_003 * seed + 2)
    gradient, learn = draw_continuous(draw), draw.random() < 0.3
    settings = {"method": draw.choice(["dopri5", "tsit5", "dopri8"]), "rtol": 1e-9, "atol": 1e-11}
    wanted = gradients(draw_case(seed), "direct", settings, scale=1.0, learn=learn)
    found = gradients(draw_case(seed), gradient, settings, scale=1.0, learn=learn)
    assert relative(found, wanted) < 1e-5, f"{draw_case(seed)}; {settings}, {gradient}, learn={learn}"


@pytest.mark.parametrize("seed", range(FEW))
def test_exact_gradients_of_random_solves(seed: int) -> None:
    check_exact(seed)


@pytest.mark.parametrize("seed", range(FEW // 2))
def test_continuous_gradients_of_random_solves(seed: int) -> None:
    check_continuous(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(FEW, MANY, 100))
def test_exact_gradients_of_many_random_solves(block: int) -> None:
    for seed in range(block, block + 100):
        check_exact(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(FEW, MANY // 3, 50))
def test_continuous_gradients_of_many_random_solves(block: int) -> None:
    for seed in range(block, block + 50):
        check_continuous(seed)
