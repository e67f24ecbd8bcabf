"""The automatic choice of a gradient method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.gradient.base import Gradient
from quadjoint.gradient.continuous import GaussLegendre
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.discrete import DiscreteAdjoint
from quadjoint.problem import Problem


@dataclass(frozen=True)
class Auto(Gradient):
    """Choose by measured sizes; ``memory_limit`` in bytes, by default a quarter of what is free on the device."""

    memory_limit: int | None = None
    name = "auto"
    exact_clock = True
    sample_times = "interpolate"

    def choose(self, problem: Problem, f: Callable[..., Any], y0: Tensor, params: Any) -> Gradient:
        if not torch.is_grad_enabled():
            return Direct()
        if problem.solver.method == "scipy_solver":
            return GaussLegendre()
        if not problem.solver.stepper.transposable:
            return Direct()
        return DiscreteAdjoint()
