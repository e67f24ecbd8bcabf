"""What the tests of transforms share: a solve unrolled by hand, and a problem with a closed form."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

import quadjoint as qj
from quadjoint.solver.structure import Structure
from trust.helpers import DTYPE, Field, normal, times

T = times(0.0, 0.4, 1.0)
TIGHT = {"method": "dopri8", "rtol": 1e-9, "atol": 1e-9}
FIXED = {"method": "rk4", "options": {"step_size": 0.13}}
FIELD = Field()
WEIGHTS = {name: p.detach() for name, p in FIELD.named_parameters()}
Y0 = normal(2, 3)


def unrolled(f: Callable[..., Tensor], y: Tensor, t: Tensor, *, name: str = "rk4") -> Tensor:
    """The Runge-Kutta method of that name in plain torch, one step between two times; torch differentiates it."""
    a, b, c = (getattr(qj.TABLEAUS[name], n).tolist() for n in "abc")
    ys = [y]
    for start, end in itertools.pairwise(t):
        h, ks = end - start, []
        for row, node in zip(a, c, strict=True):
            stage = y + h * sum(w * k for w, k in zip(row, ks, strict=False))
            ks.append(f(start + node * h, stage))
        y = y + h * sum(w * k for w, k in zip(b, ks, strict=True))
        ys.append(y)
    return torch.stack(ys)


def network(weights: dict[str, Tensor]) -> Callable[..., Tensor]:
    """Dynamics of time and state with these weights."""
    return lambda t, y: functional_call(FIELD, weights, (t, y)) * (1.0 + 0.5 * torch.sin(3.0 * t))


def logistic(a: Tensor) -> Callable[..., Tensor]:
    """dy/dt = a y (1 - y)."""
    return lambda t, y: a * y * (1.0 - y)


def logistic_solution(a: Tensor, y0: Tensor, t: Tensor) -> Tensor:
    """Its states at ``t``, from y0 at t[0]."""
    growth = torch.exp(a * (t - t[0]).reshape(-1, *(1,) * y0.ndim))
    return y0 * growth / (1.0 + y0 * (growth - 1.0))


def weigh(ys: Tensor) -> Tensor:
    """A smooth function in which every entry counts differently."""
    return (torch.cos(torch.arange(ys.numel(), dtype=DTYPE)).reshape(ys.shape) * ys).sum() + 0.3 * ys.square().sum()


def assert_close(found: Any, wanted: Any, *, within: float) -> None:
    """Equal structures, and every tensor right to ``within`` of the largest entry."""
    structure = Structure.of(wanted)
    assert Structure.of(found) == structure
    for a, b, path in zip(structure.flatten(found), structure.flatten(wanted), structure.paths("result"), strict=True):
        assert a.shape == b.shape, path
        error = float((a - b).abs().max() / b.abs().max().clamp(min=1e-3))
        assert error < within, f"{path}: relative error {error:.3g}"
