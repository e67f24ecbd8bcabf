"""One Runge-Kutta step, and what steps have in common.

A stepper does not decide whether a step is good or how long the next one is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.protocols import Clock, Nudge, Stepper, Time, VectorField


def combine(
    y: Tensor, ks: Sequence[Tensor] | dict[int, Tensor], weights: Sequence[tuple[int, float]], dt: Time
) -> Tensor:
    """y + dt * sum of weights[j] * ks[j]; ``dt`` may be a tensor with one length for each sample."""
    if not weights:
        return y
    (j, w), *rest = weights
    if isinstance(dt, Tensor):
        if not rest:
            return torch.addcmul(y, ks[j], dt, value=w)
        out = ks[j] * w
        for j, w in rest:
            out.add_(ks[j], alpha=w)
        return torch.addcmul(y, out, dt)
    if not rest:
        return torch.add(y, ks[j], alpha=w * dt)
    # Summed apart from y, which is then rounded once.
    out = ks[j] * (w * dt)
    for j, w in rest:
        out.add_(ks[j], alpha=w * dt)
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
        "onward",
        "t0",
        "t1",
        "y0",
        "y1",
    )

    ratio: Tensor | None = None

    def __init__(
        self,
        method: RungeKutta,
        f: VectorField,
        *,
        t0: float,
        t1: float,
        y0: Tensor,
        y1: Tensor,
        ks: list[Tensor],
        inputs: list[Tensor],
        dt: Time,
        nudge: Nudge,
        clock: Clock | None,
        first_shared: bool,
    ) -> None:
        self.method, self.f, self.t0, self.t1 = method, f, t0, t1
        self.y0, self.y1, self.ks, self.inputs = y0, y1, ks, inputs
        self.dt, self.nudge, self.clock = dt, nudge, clock
        self.first_shared = first_shared  # k_0 is the last stage of the step before
        self.following: Tensor | None = None  # f(t1, y1), if another than the step itself evaluated it
        self.onward: Tensor | None = None  # the first stage of the next step, if samples at rest have another one
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
        return out if self.lengths is None else out.mul_(self.lengths)

    @property
    def lengths(self) -> Tensor | None:
        """The length of every sample's own step, shaped to broadcast; such a step has t1 = t0 + 1."""
        return self.dt if isinstance(self.dt, Tensor) and self.dt.ndim else None

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
        if self.onward is not None:
            return self.onward
        if self.nudge[1]:
            return None
        return self.following if self.next_index is None else self.ks[self.next_index]

    @property
    def retry(self) -> Tensor:
        """The first stage, which another attempt from t0 has too."""
        return self.ks[0]

    def smooth(self) -> RungeKuttaStep:
        """The step with its stages for the method's own continuous extension, if it has a straight line."""
        method = self.method.smooth
        if method is self.method:
            self.complete()
            return self
        out = RungeKuttaStep(
            method,
            self.f,
            t0=self.t0,
            t1=self.t1,
            y0=self.y0,
            y1=self.y1,
            ks=list(self.ks),
            inputs=list(self.inputs),
            dt=self.dt,
            nudge=self.nudge,
            clock=self.clock,
            first_shared=self.first_shared,
        )
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
        out = (weights @ k).reshape(len(weights), *self.y0.shape)
        return (out if self.lengths is None else out * self.lengths) + self.y0

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        """The state of sample ``rows[m]`` at ``times[m]``: one row of the batch each, shape (m, *sample)."""
        theta = self.theta(times)  # type: ignore[arg-type]
        return self._scatter(rows, self.method.tableau.dense_weights(theta) * (self.t1 - self.t0))

    def scatter_at(self, rows: Tensor, theta: Tensor) -> Tensor:
        """As ``scatter``, at fractions ``theta`` of the samples' own steps."""
        return self._scatter(rows, self._weights(theta))

    def spread(self, theta: Tensor) -> Tensor:
        """The states of all samples at fractions ``theta`` of their own steps, shape (m, *state)."""
        self.complete()
        return self.blend(self._weights(theta).to(self.y0.dtype))

    def _scatter(self, rows: Tensor, weights: Tensor | np.ndarray) -> Tensor:
        self.complete()
        w = torch.as_tensor(weights, dtype=self.y0.dtype, device=self.y0.device)
        k = self.stacked()[:, rows].flatten(2)  # (stages, m, features)
        out = torch.einsum("ms,smd->md", w, k).reshape(len(rows), *self.y0.shape[1:])
        return (out if self.lengths is None else out * self.lengths[rows]) + self.y0[rows]

    def _weights(self, theta: Tensor) -> Tensor:
        """The weights of the stages in units of the step's length, on the device, shape (m, stages)."""
        dense = torch.tensor(self.method.tableau.dense, dtype=theta.dtype, device=theta.device)
        powers = theta[:, None].expand(-1, dense.shape[1]).cumprod(1)
        return powers @ dense.T

    def at_rest(self, moving: Tensor) -> RungeKuttaStep:
        """The step with the samples that are not ``moving`` left where they were, in a step of length zero."""
        assert self.clock is not None and self.lengths is not None
        t0, t1 = self.clock
        out = RungeKuttaStep(
            self.method,
            self.f,
            t0=self.t0,
            t1=self.t1,
            y0=self.y0,
            y1=torch.where(moving, self.y1, self.y0),
            ks=self.ks,
            inputs=self.inputs,
            dt=torch.where(moving, self.lengths, 0.0),
            nudge=self.nudge,
            clock=(t0, torch.where(moving, t1, t0)),
            first_shared=self.first_shared,
        )
        if self.method.fsal:
            out.onward = torch.where(moving, self.ks[self.method.stages - 1], self.ks[0])
        return out


class RungeKutta(Stepper):
    """Steps of one explicit Runge-Kutta method.

    ``smooth`` is the method with its own continuous extension, for one that interpolates by straight lines.
    """

    transposable = True
    clocked = True
    keeps_inputs = True

    def __init__(self, tableau: ButcherTableau, smooth: RungeKutta | None = None) -> None:
        self.tableau = tableau
        self._smooth = smooth
        self.order, self.dense_order = tableau.order, tableau.dense_order
        self.adaptive = tableau.b_error is not None
        s = tableau.stages
        self.rows = [nonzero(row) for row in tableau.a] + [nonzero(row) for row in tableau.a_extra]
        self.nodes = [float(c) for c in tableau.c] + [float(c) for c in tableau.c_extra]
        self.weights = nonzero(tableau.b)
        self.error_weights = None if tableau.b_error is None else nonzero(tableau.b_error)
        self.fsal = tableau.fsal
        self.stages = s
        self._constants: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def name(self) -> str:
        return self.tableau.name

    @property
    def eager(self) -> RungeKutta:
        return self

    @property
    def smooth(self) -> RungeKutta:
        return self._smooth or self

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
    ) -> RungeKuttaStep:
        dt, times = self._lay_out(t0, t1, y) if clock is None else self._lay_out(*clock, y)
        k = f(times[0], y, nudge[0]) if carry is None else carry
        ks, inputs = [k], [y]
        for i in range(1, self.stages):
            y_i = combine(y, ks, self.rows[i], dt)
            inputs.append(y_i)
            ks.append(f(times[i], y_i, nudge[1] if self.nodes[i] == 1.0 else 0))
        return RungeKuttaStep(
            self,
            f,
            t0=t0,
            t1=t1,
            y0=y,
            y1=inputs[-1] if self.fsal else combine(y, ks, self.weights, dt),
            ks=ks,
            inputs=inputs,
            dt=dt,
            nudge=nudge,
            clock=clock,
            first_shared=carry is not None,
        )

    def _lay_out(self, start: Time, end: Time, y: Tensor) -> tuple[Time, Sequence[Time]]:
        """The length of a step, and the times of its stages.

        Those of the samples' own steps are added up in the precision of times, and rounded for f last.
        """
        span = end - start
        if not isinstance(span, Tensor) or span.ndim == 0:
            return span, [end if c == 1.0 else start + c * span if c else start for c in self.nodes[: self.stages]]
        assert isinstance(end, Tensor)
        real = y.dtype.to_real()
        times = (start + self._nodes_like(span) * span).to(real).unbind()
        if end.dtype != real:
            return span.to(real), times
        return span, [end if c == 1.0 else times[i] for i, c in enumerate(self.nodes[: self.stages])]

    def _nodes_like(self, t: Tensor) -> Tensor:
        """The nodes of the stages, shaped to be multiplied by times of samples."""
        key = (t.dtype, t.device)
        if key not in self._constants:
            self._constants[key] = torch.tensor(self.nodes[: self.stages], dtype=t.dtype, device=t.device)
        return self._constants[key].view(-1, *(1,) * t.ndim)
