"""Plain backpropagation through the operations of the solver."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quadjoint.gradient.base import Gradient
from quadjoint.problem import Problem


@dataclass(frozen=True)
class Direct(Gradient):
    """Backpropagate through every operation of the solve: exact, and as memory-hungry as all activations together."""

    name = "direct"
    exact_clock = True
    sample_times = "interpolate"

    def apply(self, problem: Problem, y0: Tensor) -> Tensor:
        problem.stats.method = problem.stats.method or self.name
        return problem.run(y0)
