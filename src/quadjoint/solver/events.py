"""Where an event function changes sign."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import NonFiniteStateError, SolveError
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.protocols import Step, Time
from quadjoint.solver.state import is_finite

EventFunction = Callable[[Tensor, Tensor], Tensor]


class EventWatch:
    """Finds the first change of sign of an event function (any of its entries), to ``tolerance`` of a step's length.

    With an ``open_end`` the solve goes on until there is one.
    """

    def __init__(
        self, event: EventFunction, f: Dynamics, t0: float, y0: Tensor, *, tolerance: float, open_end: bool = True
    ) -> None:
        self.event, self.f, self.tolerance, self.open_end = event, f, tolerance, open_end
        with torch.no_grad():
            self.signs = torch.sign(event(f.time(t0), y0.detach()))
        if bool((self.signs == 0).any()):
            raise SolveError(
                f"The event function is zero at the initial time t = {t0:.6g} already; start past the event."
            )

    def least(self, t: Time, y: Tensor) -> Tensor:
        """Positive before the event; entries are combined by their minimum."""
        return (self.event(self.f.time(t), y) * self.signs).min()

    def entry(self, t: Tensor, y: Tensor) -> tuple[int, ...]:
        """Index of the entry that changed its sign first, at the event."""
        with torch.no_grad():
            values = self.event(self.f.time(t), y.detach()) * self.signs
        return tuple(int(i) for i in np.unravel_index(int(values.argmin()), values.shape))

    def value(self, t: float, y: Tensor) -> float:
        with torch.no_grad():
            return float(self.least(t, y.detach()))

    def crossed(self, step: Step) -> bool:
        value = self.value(step.t1, step.y1)
        if not math.isfinite(value) and not is_finite(step.y1):
            raise NonFiniteStateError(
                f"The state is not finite at t = {step.t1:.6g}, before the event: the solution blows up, or fixed "
                "steps are too long for this problem (try a smaller options['step_size'] or an adaptive method)."
            )
        return value <= 0.0

    def locate(self, step: Step) -> float:
        """The end of a bracket at which the event has happened, on the continuous extension of the step.

        Chandrupatla's method (1997): inverse quadratic interpolation if it is safe, else bisection.
        """
        a, b = step.t1, step.t0
        value_a, value_b = self.value(a, step.y1), self._value_inside(step, b)
        c, value_c = b, value_b
        resolution = max(self.tolerance * abs(a - b), 2 * math.ulp(max(abs(a), abs(b))))
        fraction = 0.5
        while abs(b - a) > resolution and value_a != 0.0:
            middle = a + fraction * (b - a)
            value = self._value_inside(step, middle)
            if (value > 0.0) == (value_a > 0.0):
                c, value_c = a, value_a
            else:
                c, value_c, b, value_b = b, value_b, a, value_a
            a, value_a = middle, value
            limit = 0.5 * resolution / abs(b - a)
            fraction = min(1.0 - limit, max(limit, _next_fraction(a, b, c, value_a, value_b, value_c)))
        return a if value_a <= 0.0 else b

    def _value_inside(self, step: Step, t: float) -> float:
        with torch.no_grad():
            return self.value(t, step.y0 if t == step.t0 else step.evaluate([t])[0])


def _next_fraction(a: float, b: float, c: float, fa: float, fb: float, fc: float) -> float:
    """Where between a (0) and b (1) the next point lies."""
    xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb) if fc != fb else math.inf
    if not (phi * phi < xi and (1.0 - phi) ** 2 < 1.0 - xi):
        return 0.5
    return fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
