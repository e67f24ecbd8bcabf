"""One Runge-Kutta step, and what steps have in common.

A stepper does not decide whether a step is good or how long the next one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.solver.dynamics import Dynamics, Time
from quadjoint.solver.interpolation import hermite_weights
from quadjoint.solver.methods.tableau import ButcherTableau

Clock = tuple[Tensor, Tensor]  # differentiable (t0, t1), where a fixed grid depends on learnable times


def combine(
    y: Tensor, ks: Sequence[Tensor] | dict[int, Tensor], weights: Sequence[tuple[int, float]], dt: Time
) -> Tensor:
    """y + dt * sum of weights[j] * ks[j]."""
    if isinstance(dt, Tensor):
        return y + sum(ks[j] * (w * dt) for j, w in weights)
    if not weights:
        return y
    (j, w), *rest = weights
    if not rest:
        return torch.add(y, ks[j], alpha=w * dt)
    # Summed apart from y, which is then rounded once.
    out = ks[j] * (w * dt)
    try:
        for j, w in rest:
            out.add_(ks[j], alpha=w * dt)
    except RuntimeError:
        if not private.inside_transform():
            raise
        # vmap maps over a later stage and not over the first, into which it cannot be added.
        out = torch.stack([ks[j] * (w * dt) for j, w in weights]).sum(0)
    return y + out


def nonzero(row: np.ndarray) -> list[tuple[int, float]]:
    return [(j, float(w)) for j, w in enumerate(row) if w != 0.0]


class RungeKuttaStep:
    """A step with inputs Y_i, stages k_i = f(t_i, Y_i), and y(t0 + theta h) = y0 + h sum b_i(theta) k_i."""

    __slots__ = (
        "clock",
        "dt",
        "f",
        "first_shared",
        "following",
        "grad",
        "inputs",
        "ks",
        "method",
        "nudge",
        "t0",
        "t1",
        "y0",
        "y1",
    )

    def __init__(self, method: RungeKutta, f: Dynamics, t0: float, t1: float, y0: Tensor, ks: list[Tensor],
                 inputs: list[Tensor], y1: Tensor, dt: Time, nudge: tuple[int, int], clock: Clock | None,
                 first_shared: bool) -> None:  # fmt: skip
        self.method, self.f, self.t0, self.t1 = method, f, t0, t1
        self.y0, self.y1, self.ks, self.inputs = y0, y1, ks, inputs
        self.dt, self.nudge, self.clock = dt, nudge, clock
        self.first_shared = first_shared  # k_0 is the last stage of the step before
        self.following: Tensor | None = None  # f(t1, y1), where another than the step itself evaluated it
        self.grad = torch.is_grad_enabled()

    @property
    def error(self) -> Tensor | None:
        if self.method.error_weights is None:
            return None
        dt = self.t1 - self.t0
        (j, w), *rest = self.method.error_weights
        out = self.ks[j].detach() * (w * dt)
        for j, w in rest:
            out.add_(self.ks[j].detach(), alpha=w * dt)
        return out

    @property
    def next_index(self) -> int | None:
        """Index of the stage that is the first stage of the next step, if it has been evaluated."""
        s = self.method.tableau.stages
        if self.method.fsal:
            return s - 1
        return s if self.method.tableau.first_extra_is_next and len(self.ks) > s else None

    @property
    def carry(self) -> Tensor | None:
        """The first stage of the next step, where it is known already."""
        if self.nudge[1]:
            return None
        return self.following if self.next_index is None else self.ks[self.next_index]

    def smooth(self) -> RungeKuttaStep:
        """The step with its stages for the method's own continuous extension, where it has a straight line."""
        method = self.method.smooth
        if method is self.method:
            self.complete()
            return self
        out = RungeKuttaStep(method, self.f, self.t0, self.t1, self.y0, list(self.ks), list(self.inputs), self.y1,
                             self.dt, self.nudge, self.clock, self.first_shared)  # fmt: skip
        out.complete()
        self.following = out.carry
        return out

    def stage_time(self, i: int) -> Time:
        t0, t1 = self.clock if self.clock is not None else (self.t0, self.t1)
        c = self.method.nodes[i]
        return t1 if c == 1.0 else t0 + c * (t1 - t0)

    def stage_nudge(self, i: int) -> int:
        c = self.method.nodes[i]
        return self.nudge[0] if c == 0.0 else self.nudge[1] if c == 1.0 else 0

    def complete(self) -> None:
        """Evaluate the stages that only the continuous extension needs."""
        tableau = self.method.tableau
        with torch.set_grad_enabled(self.grad):
            for i in range(len(self.ks), tableau.stages + tableau.extra_stages):
                if i == tableau.stages and tableau.first_extra_is_next:
                    y = self.y1
                else:
                    y = combine(self.y0, self.ks, self.method.rows[i], self.dt)
                self.inputs.append(y)
                self.ks.append(self.f(self.stage_time(i), y, self.stage_nudge(i)))

    def theta(self, times: Sequence[float]) -> np.ndarray:
        return (np.asarray(times, dtype=np.float64) - self.t0) / (self.t1 - self.t0)

    def evaluate(self, times: Sequence[float]) -> Tensor:
        self.complete()
        weights = self.method.tableau.dense_weights(self.theta(times)) * (self.t1 - self.t0)
        out = self.blend(torch.as_tensor(weights, dtype=self.y0.dtype, device=self.y0.device))
        if times[-1] == self.t1:
            out = self.y1[None] if len(times) == 1 else torch.cat([out[:-1], self.y1[None]])
        return out

    def evaluate_at(self, times: Tensor) -> Tensor:
        """As ``evaluate``, differentiable in ``times`` and in the ends of the step (fixed grids, learnable times)."""
        self.complete()
        t0, t1 = self.clock if self.clock is not None else (self.t0, self.t1)
        theta = (times - t0) / (t1 - t0)
        dense = torch.tensor(self.method.tableau.dense, dtype=times.dtype, device=times.device)
        powers = torch.stack([theta**d for d in range(1, dense.shape[1] + 1)], dim=-1)
        return self.blend((powers @ dense.T * (t1 - t0)).to(self.y0.dtype))

    def stacked(self) -> Tensor:
        """All stages as one tensor, shape (stages, *state)."""
        return torch.stack(self.ks)

    def blend(self, weights: Tensor) -> Tensor:
        """y0 + weights @ stages for a matrix of weights, shape (m, stages)."""
        k = self.stacked().reshape(len(self.ks), self.y0.numel())
        return (weights @ k).reshape(len(weights), *self.y0.shape) + self.y0

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        """The state of sample ``rows[m]`` at ``times[m]``: one row of the batch each, shape (m, *sample)."""
        self.complete()
        weights = self.method.tableau.dense_weights(self.theta(times)) * (self.t1 - self.t0)  # type: ignore[arg-type]
        w = torch.as_tensor(weights, dtype=self.y0.dtype, device=self.y0.device)
        k = self.stacked()[:, rows].reshape(len(self.ks), len(rows), -1)  # (stages, m, features)
        out = torch.einsum("ms,smd->md", w, k).reshape(len(rows), *self.y0.shape[1:])
        return out + self.y0[rows]


class RungeKutta:
    """Steps of one explicit Runge-Kutta method.

    ``smooth`` is the method with its own continuous extension, for one that interpolates by straight lines.
    """

    transposable = True
    clocked = True  # differentiable in the ends of a step
    keeps_inputs = True  # its steps hold the inputs of their stages

    def __init__(self, tableau: ButcherTableau, smooth: RungeKutta | None = None) -> None:
        self.tableau = tableau
        self.smooth = smooth or self
        self.order = tableau.order
        self.adaptive = tableau.b_error is not None
        s = tableau.stages
        self.rows = [nonzero(row) for row in tableau.a] + [nonzero(row) for row in tableau.a_extra]
        self.nodes = [float(c) for c in tableau.c] + [float(c) for c in tableau.c_extra]
        self.weights = nonzero(tableau.b)
        self.error_weights = None if tableau.b_error is None else nonzero(tableau.b_error)
        self.fsal = tableau.fsal
        self.stages = s

    def step(self, f: Dynamics, t0: float, t1: float, y: Tensor, carry: Tensor | None = None,
             nudge: tuple[int, int] = (0, 0), clock: Clock | None = None) -> RungeKuttaStep:  # fmt: skip
        dt: Time = t1 - t0 if clock is None else clock[1] - clock[0]
        start: Time = t0 if clock is None else clock[0]
        end: Time = t1 if clock is None else clock[1]
        k = f(start, y, nudge[0]) if carry is None else carry
        ks, inputs = [k], [y]
        for i in range(1, self.stages):
            y_i = combine(y, ks, self.rows[i], dt)
            c = self.nodes[i]
            inputs.append(y_i)
            ks.append(f(end, y_i, nudge[1]) if c == 1.0 else f(start + c * dt, y_i))
        y1 = inputs[-1] if self.fsal else combine(y, ks, self.weights, dt)
        return RungeKuttaStep(self, f, t0, t1, y, ks, inputs, y1, dt, nudge, clock, carry is not None)


class HermiteStep:
    """A step known by its ends and the derivatives there; the last derivative is evaluated when it is needed."""

    def __init__(self, f: Dynamics, t0: float, t1: float, y0: Tensor, y1: Tensor, f0: Tensor, f1: Tensor | None,
                 carry: Any, error: Tensor | None = None, linear: bool = False,
                 clock: Clock | None = None, exact_slopes: bool = True) -> None:  # fmt: skip
        self.exact_slopes = exact_slopes  # f0 is f(t0, y0)
        self.f, self.t0, self.t1, self.y0, self.y1, self.f0, self._f1 = f, t0, t1, y0, y1, f0, f1
        self.carry, self.error, self.linear, self.clock = carry, error, linear, clock
        self.grad = torch.is_grad_enabled()

    @property
    def f1(self) -> Tensor:
        if self._f1 is None:
            with torch.set_grad_enabled(self.grad):
                self._f1 = self.f(self.t1 if self.clock is None else self.clock[1], self.y1)
        return self._f1

    def smooth(self) -> HermiteStep:
        """The same step with the cubic through its ends."""
        if not self.linear:
            return self
        return HermiteStep(self.f, self.t0, self.t1, self.y0, self.y1, self.f0, self._f1, self.carry, self.error,
                           clock=self.clock, exact_slopes=self.exact_slopes)  # fmt: skip

    def _blend(self, theta: Any, h: Any) -> Tensor:
        if self.linear:
            return self.y0 + theta * (self.y1 - self.y0)
        w0, w1, v0, v1 = hermite_weights(theta)
        return w0 * self.y0 + w1 * self.y1 + (v0 * h) * self.f0 + (v1 * h) * self.f1

    def evaluate(self, times: Sequence[float]) -> Tensor:
        h = self.t1 - self.t0
        return torch.stack([self.y1 if t == self.t1 else self._blend((t - self.t0) / h, h) for t in times])

    def evaluate_at(self, times: Tensor) -> Tensor:
        t0, t1 = self.clock if self.clock is not None else (self.t0, self.t1)
        h = t1 - t0
        return torch.stack([self._blend(((t - t0) / h).to(self.y0.dtype), h) for t in times])
