"""Whether the steps of an explicit method are limited by its stability, and what to say then.

Two stages at the same time t1 show how fast f changes along the solution: |k_s - k_(s-1)| / |Y_s - Y_(s-1)| estimates
the largest eigenvalue of df/dy. If h times it lies at the border of the domain of stability step after step, accuracy
would allow longer steps (Hairer and Wanner, section IV.2).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from quadjoint.errors import warn_once
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.methods.sums import nonzero, weighted
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.protocols import Step, Stepper, VectorField

EVERY = 500  # accepted steps between two looks
HITS, MISSES = 15, 6  # steps at the border that make a problem stiff, and steps inside that end a look
NEAR = 0.9  # part of the domain of stability from which a step is at its border
ADVICE = "use an implicit method: method='kvaerno5', or 'radauIIA5' for moderate tolerances"


@lru_cache(maxsize=64)
def stability_limit(tableau: ButcherTableau) -> float:
    """How far the domain of stability reaches along the negative real axis."""
    points = np.linspace(0.0, 50.0, 5001)[1:]
    outside = [x for x in points if abs(tableau.stability(-x)) > 1.0 + 1e-9]
    return outside[0] if outside else math.inf


def stiffness(step: Step) -> float | None:
    """h |lambda| over the limit of stability, for an explicit method with two stages at the end of its steps."""
    if not isinstance(step, RungeKuttaStep) or not step.method.tableau.explicit:
        return None
    tableau = step.method.tableau
    s = tableau.stages
    if not tableau.fsal or s < 2 or tableau.c[-2] != 1.0:
        return None
    with torch.no_grad():
        states = weighted(step.ks, nonzero(tableau.a[-1] - tableau.a[-2]), step.t1 - step.t0)
        slopes = (step.ks[s - 1] - step.ks[s - 2]) * (step.t1 - step.t0)
        found = torch.linalg.vector_norm(slopes) / torch.linalg.vector_norm(states)
        return float(found) / stability_limit(tableau)


class StiffnessWatch:
    """Looks at a step now and then, and says once that the problem is stiff."""

    def __init__(self, stepper: Stepper, f: VectorField) -> None:
        self.active = isinstance(stepper, RungeKutta) and stepper.adaptive and stepper.tableau.explicit
        self.name, self.f = stepper.name, f
        self.hits = self.misses = self.count = 0

    def accept(self, step: Step) -> None:
        self.count += 1
        if not self.active or not (self.hits or self.count % EVERY == 0):
            return
        found = stiffness(step)
        if found is None:
            self.active = False
        elif found >= NEAR:
            self.hits, self.misses = self.hits + 1, 0
        elif self.hits:
            self.misses += 1
            if self.misses == MISSES:
                self.hits = 0
        if self.hits == HITS:
            self.active = False
            kind = self.f.dynamics.name
            warn_once(
                f"stiff {kind} {self.name}",
                f"The problem ({kind}) seems to be stiff: around t = {step.t1:.6g} the steps of {self.name}, "
                f"{abs(step.t1 - step.t0):.3g} long, are limited by its stability, and not by the tolerance. To take "
                f"longer ones, {ADVICE}.",
            )
