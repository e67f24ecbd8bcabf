"""Adams methods: steps from the derivatives at earlier points, on grids of any spacing."""

from __future__ import annotations

import copy
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import warn_once
from quadjoint.quadrature import gauss_legendre
from quadjoint.solver.interpolation import HermiteStep
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.sums import combine
from quadjoint.solver.protocols import Clock, Nudge, Stepper, Time, VectorField


@lru_cache(maxsize=512)
def adams_weights(nodes: tuple[float, ...]) -> tuple[float, ...]:
    """Integrals over [0, 1] of the Lagrange polynomials on ``nodes`` (times in units of the step, 0 its start).

    On equidistant nodes these are the Adams-Bashforth (nodes 0, -1, ...) and Adams-Moulton (1, 0, -1, ...) weights;
    other nodes give the methods of variable step (Hairer, Norsett, Wanner, section III.5).
    """
    x, w = gauss_legendre((len(nodes) + 1) // 2)
    points = 0.5 * (x + 1.0)
    weights = []
    for j, node in enumerate(nodes):
        basis = np.ones_like(points)
        for i, other in enumerate(nodes):
            if i != j:
                basis *= (points - other) / (node - other)
        weights.append(float(0.5 * (w @ basis)))
    return tuple(weights)


History = tuple[tuple[float, Tensor], ...]  # (t, f) newest first


class Adams(Stepper):
    """Adams-Bashforth, or with ``implicit`` Adams-Bashforth-Moulton iterated to convergence, on any grid.

    ``max_order`` is that of the corrector; predictor and explicit method have one less (as in torchdiffeq). High
    orders are stable only for very short steps: below 0.0034 / |df/dy| for the explicit method of order eleven.
    The first steps are taken by a Runge-Kutta method of order four.
    """

    order = 4
    min_history = 4

    def __init__(
        self,
        starter: RungeKutta,
        implicit: bool,
        *,
        max_order: int = 12,
        max_iters: int = 4,
        rtol: float | Tensor = 1e-3,
        atol: float | Tensor = 1e-4,
        linear: bool = False,
    ) -> None:
        if not 2 <= max_order <= 12:
            raise ValueError(f"options['max_order'] must be from 2 to 12; got {max_order}.")
        self.starter, self.implicit, self.kept, self.max_iters = starter, implicit, int(max_order) - 1, max_iters
        self.rtol, self.atol, self.linear = rtol, atol, linear

    @property
    def smooth(self) -> Adams:
        """The method with cubic interpolation."""
        out = copy.copy(self)
        out.linear = False
        return out

    def within(self, rtol: float | Tensor, atol: float | Tensor) -> Adams:
        out = copy.copy(self)
        out.rtol, out.atol = rtol, atol
        return out

    def step(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: History | None = None,
        nudge: Nudge = (0, 0),
        clock: Clock | None = None,
    ) -> HermiteStep:
        start, end = clock if clock is not None else (t0, t1)
        f0 = f(start, y, nudge[0])
        history: History = ((t0, f0), *(carry or ()))[: self.kept]
        if len(history) < min(self.min_history, self.kept):
            y1 = self.starter.step(f, t0, t1, y, carry=f0, nudge=nudge, clock=clock).y1
        else:
            h = t1 - t0
            nodes = tuple(round((t - t0) / h, 12) for t, _ in history)
            dt: Time = h if clock is None else end - start
            y1 = combine(y, [k for _, k in history], list(enumerate(adams_weights(nodes))), dt)
            if self.implicit:
                y1 = self._correct(f, end, y, y1=y1, history=history, nodes=nodes, dt=dt, nudge=nudge[1])
        return HermiteStep(f, t0, t1, y0=y, y1=y1, f0=f0, carry=history, clock=clock, nudge=nudge, linear=self.linear)

    def _correct(
        self,
        f: VectorField,
        t1: Time,
        y: Tensor,
        *,
        y1: Tensor,
        history: History,
        nodes: tuple[float, ...],
        dt: Time,
        nudge: int,
    ) -> Tensor:
        last, *past = adams_weights((1.0, *nodes))
        base = combine(y, [k for _, k in history], list(enumerate(past)), dt)
        for _ in range(self.max_iters):
            before, y1 = y1, combine(base, [f(t1, y1, nudge)], [(0, last)], dt)
            with torch.no_grad():
                moved = torch.maximum((y1 - y).abs(), (before - y).abs())
                change = (y1 - before).abs() / (self.atol + self.rtol * moved)
                if not change.numel() or float(change.max()) < 1.0:
                    return y1
        warn_once(
            "implicit_adams",
            f"The iteration of implicit_adams did not converge to rtol, atol in {self.max_iters} evaluations at "
            f"t = {float(t1):.6g}. Use shorter steps, looser tolerances or a larger options['max_iters'].",
        )
        return y1
