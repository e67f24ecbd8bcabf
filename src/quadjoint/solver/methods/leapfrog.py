"""The asynchronous leapfrog method, whose steps can be taken back exactly."""

from __future__ import annotations

import math

from torch import Tensor

from quadjoint.solver.interpolation import HermiteStep
from quadjoint.solver.methods.sums import like_state
from quadjoint.solver.protocols import Clock, Nudge, Stepper, VectorField


class AsynchronousLeapfrog(Stepper):
    """The asynchronous leapfrog step on (y, v) with damping ``eta`` (Zhuang et al., MALI, 2021).

    k = z + h/2 v, u = f(t + h/2, k), v' = v + 2 eta (u - v), z' = k + h/2 v'. It has an exact inverse. Its order is two
    for eta = 1 and one for any other: damping leaves the velocity behind the derivative by a multiple of h.
    """

    adaptive = True
    clocked = True

    def __init__(self, eta: float = 1.0) -> None:
        if not 0.0 < eta <= 1.0 or math.isclose(eta, 0.5):
            raise ValueError(
                f"options['eta'] must lie in (0, 1] and not be 0.5, for which the step has no inverse; got {eta}."
            )
        self.eta = eta
        self.order = 2 if eta == 1.0 else 1

    def step(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: Tensor | None = None,
        nudge: Nudge = (0, 0),
        clock: Clock | None = None,
    ) -> HermiteStep:
        start, end = clock if clock is not None else (t0, t1)
        v = f(start, y, nudge[0]) if carry is None else carry
        h = like_state(end - start, y)
        middle = y + v * (0.5 * h)
        u = f(start + 0.5 * h, middle)
        v1 = v + 2.0 * self.eta * (u - v)
        y1 = middle + v1 * (0.5 * h)
        # Of a method of first order the error per unit of time is controlled, which falls as the tolerance does.
        error = (v1 - v).detach() * (0.5 * (t1 - t0) if self.order == 2 else 0.5)
        return HermiteStep(
            f,
            t0,
            t1,
            y0=y,
            y1=y1,
            f0=v,
            f1=v1,
            carry=v1,
            retry=v,
            error=error,
            clock=clock,
            exact_slopes=False,
        )

    def middle(self, y1: Tensor, v1: Tensor, h: float) -> Tensor:
        """The midpoint of the step of length h that ended in (y1, v1)."""
        return y1 - v1 * (0.5 * h)

    def inverse(self, middle: Tensor, u: Tensor, v1: Tensor, h: float) -> tuple[Tensor, Tensor]:
        """Where a step started, from its midpoint, the derivative u there, and the velocity at its end."""
        v = (v1 - 2.0 * self.eta * u) / (1.0 - 2.0 * self.eta)
        return middle - v * (0.5 * h), v
