"""One Runge-Kutta step, and what steps have in common.

A stepper does not decide whether a step is good or how long the next one is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.interpolation import Polynomial, powers
from quadjoint.solver.methods.explicit_stages import sum_columns, sums_pay, take_stages
from quadjoint.solver.methods.sums import combine, nonzero, stage_nudge, stage_time, weighted
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.protocols import Clock, Nudge, Stepper, Time, VectorField


class RungeKuttaStep:
    """A step with inputs Y_i, stages k_i = f(t_i, Y_i), and y(t0 + theta h) = y0 + h sum b_i(theta) k_i."""

    __slots__ = (
        "clock",
        "dt",
        "error_sum",
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

    ratio: Tensor | float | None = None
    lost: Tensor | None = None  # samples for which the step has failed
    exact_start = True  # the first stage is f(t0, y0), to rounding

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
        error_sum: Tensor | None = None,
    ) -> None:
        self.method, self.f, self.t0, self.t1 = method, f, t0, t1
        self.y0, self.y1, self.ks, self.inputs = y0, y1, ks, inputs
        self.dt, self.nudge, self.clock = dt, nudge, clock
        self.first_shared = first_shared  # k_0 is the last stage of the step before
        self.following: Tensor | None = None  # f(t1, y1), if another than the step itself evaluated it
        self.error_sum = error_sum  # the error in units of the step's length, until it is asked for
        self.onward: Tensor | None = None  # the first stage of the next step, if samples at rest have another one
        self.grad = torch.is_grad_enabled()

    @property
    def error(self) -> Tensor | None:
        if self.method.error_weights is None:
            return None
        known, self.error_sum = self.error_sum, None  # steps may be kept, this need not be
        with torch.no_grad():
            scale = self.t1 - self.t0 if self.lengths is None else self.lengths
            if known is not None:
                return known * scale
            if self.lengths is None:
                return weighted(self.ks, self.method.error_weights, scale)
            return weighted(self.ks, self.method.error_weights, 1.0).mul_(scale)

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
    def carry(self) -> Any:
        """The first stage of the next step, if it is known already."""
        if self.onward is not None:
            return self.onward
        if self.nudge[1]:
            return None
        return self.following if self.next_index is None else self.ks[self.next_index]

    @property
    def slope(self) -> Tensor | None:
        return self.ks[0]

    @property
    def settled(self) -> bool:
        return False

    @property
    def retry(self) -> Any:
        """The first stage, which another attempt from t0 has too."""
        return self.ks[0]

    def smooth(self) -> RungeKuttaStep:
        """The step with its stages for the method's own continuous extension, if it has a straight line."""
        method = self.method.smooth
        if method is self.method:
            self.complete()
            return self
        out = copy.copy(self)
        out.method, out.ks, out.inputs = method, list(self.ks), list(self.inputs)
        out.complete()
        self.following = out.carry
        return out

    def complete(self) -> None:
        """Evaluate the stages that only the continuous extension needs."""
        tableau, ends = self.method.tableau, self.clock or (self.t0, self.t1)
        with torch.set_grad_enabled(self.grad):
            for i in range(len(self.ks), tableau.stages + tableau.extra_stages):
                if i == tableau.stages and tableau.first_extra_is_next:
                    y = self.y1
                else:
                    y = combine(self.y0, self.ks, self.method.rows[i], self.dt)
                c = self.method.nodes[i]
                self.inputs.append(y)
                self.ks.append(self.f(stage_time(c, ends, ends[1] - ends[0]), y, stage_nudge(c, self.nudge)))

    def theta(self, times: Sequence[float] | np.ndarray) -> np.ndarray:
        return (np.asarray(times, dtype=np.float64) - self.t0) / (self.t1 - self.t0)

    def dense_weights(self, times: Sequence[float] | np.ndarray) -> Tensor:
        """Weights of the stages in the states at ``times``, shape (len(times), stages)."""
        self.complete()
        weights = self.method.tableau.dense_weights(self.theta(times)) * (self.t1 - self.t0)
        return torch.as_tensor(weights, dtype=self.y0.dtype, device=self.y0.device)

    def polynomial(self) -> Polynomial:
        self.complete()
        table = self.method.tableau.dense
        dense = torch.as_tensor(table.T * (self.t1 - self.t0), dtype=self.y0.dtype, device=self.y0.device)
        slope = self.exact_start and table[0, 0] == 1.0 and not table[1:, 0].any()
        coefficients = dense @ self.stacked().reshape(len(self.ks), self.y0.numel())
        if self.lengths is not None:
            coefficients = (coefficients.view(-1, *self.y0.shape) * self.lengths).reshape(coefficients.shape)
        return Polynomial(self, coefficients, slope=slope, nudge=self.nudge)

    def evaluate(self, times: Sequence[float]) -> Tensor:
        out = self.blend(self.dense_weights(times))
        if times[-1] == self.t1:
            out = self.y1[None] if len(times) == 1 else torch.cat([out[:-1], self.y1[None]])
        return out

    def evaluate_at(self, times: Tensor) -> Tensor:
        """As ``evaluate``, differentiable in ``times`` and in the ends of the step (fixed grids, learnable times)."""
        self.complete()
        t0, t1 = self.clock if self.clock is not None else (self.t0, self.t1)
        theta = (times - t0) / (t1 - t0)
        dense = torch.tensor(self.method.tableau.dense, dtype=times.dtype, device=times.device)
        return self.blend((powers(theta, dense.shape[1]) @ dense.T * (t1 - t0)).to(self.y0.dtype))

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
        return self._scatter(rows, self.dense_weights(times))

    def scatter_at(self, rows: Tensor, theta: Tensor) -> Tensor:
        """As ``scatter``, at fractions ``theta`` of the samples' own steps."""
        return self._scatter(rows, self._weights(theta))

    def spread(self, theta: Tensor) -> Tensor:
        """The states of all samples at fractions ``theta`` of their own steps, shape (m, *state)."""
        return self.blend(self._weights(theta))

    def _scatter(self, rows: Tensor, w: Tensor) -> Tensor:
        k = self.stacked()[:, rows].reshape(len(self.ks), len(rows), -1)  # (stages, m, features)
        out = torch.einsum("ms,smd->md", w, k).reshape(len(rows), *self.y0.shape[1:])
        return (out if self.lengths is None else out * self.lengths[rows]) + self.y0[rows]

    def _weights(self, theta: Tensor) -> Tensor:
        """As ``dense_weights`` at fractions of the samples' own steps, in units of their lengths."""
        self.complete()
        dense = torch.tensor(self.method.tableau.dense, dtype=theta.dtype, device=theta.device)
        return (theta[:, None].expand(-1, dense.shape[1]).cumprod(1) @ dense.T).to(self.y0.dtype)

    def at_rest(self, moving: Tensor) -> RungeKuttaStep:
        """The step with the samples that are not ``moving`` left where they were, in a step of length zero."""
        assert self.clock is not None and self.lengths is not None
        t0, t1 = self.clock
        out = copy.copy(self)
        out.y1, out.dt = torch.where(moving, self.y1, self.y0), torch.where(moving, self.lengths, 0.0)
        out.clock = (t0, torch.where(moving, t1, t0))
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
        self.evaluations = s - 1 if self.fsal else s
        self.pays_to_sum = sums_pay(self)
        self._columns: dict[Any, list[Tensor]] = {}
        self._constants: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def name(self) -> str:
        return self.tableau.name

    def columns(self, y: Tensor) -> list[Tensor]:
        """The columns of ``sum_columns``, made once for all states alike."""
        key = y.dtype, y.device, y.ndim
        if key not in self._columns:
            made = sum_columns(self, y)
            if type(made[0]) is not Tensor:  # of a mode that only pretends to compute
                return made
            self._columns[key] = made
        return self._columns[key]

    @property
    def estimate_order(self) -> int:
        return self.tableau.estimate_order

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
        ends: tuple[Time, Time] = clock or (t0, t1)
        dt = length = ends[1] - ends[0]
        times = None
        if isinstance(length, Tensor) and length.ndim:
            dt, times = self._own_times(*ends, y)
        k = f(ends[0] if times is None else times[0], y, nudge[0]) if carry is None else carry
        taken = take_stages(self, f, ends, y, k, dt=dt, length=length, nudge=nudge, times=times)
        return RungeKuttaStep(
            self,
            f,
            t0=t0,
            t1=t1,
            y0=y,
            y1=taken.y1,
            ks=taken.ks,
            inputs=taken.inputs,
            dt=dt,
            nudge=nudge,
            clock=clock,
            first_shared=carry is not None,
            error_sum=taken.error_sum,
        )

    def _own_times(self, start: Any, end: Any, y: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The lengths of the samples' own steps in the precision of the state, and the times of their stages.

        Times are added up in their own precision, and rounded for f last.
        """
        length, real = end - start, y.dtype.to_real()
        times = (start + self._nodes_like(length) * length).to(real).unbind()
        if end.dtype != real:
            return length.to(real), times
        return length, [end if c == 1.0 else times[i] for i, c in enumerate(self.nodes[: self.stages])]

    def _nodes_like(self, t: Tensor) -> Tensor:
        """The nodes of the stages, shaped to be multiplied by times of samples."""
        key = (t.dtype, t.device)
        if key not in self._constants:
            self._constants[key] = torch.tensor(self.nodes[: self.stages], dtype=t.dtype, device=t.device)
        return self._constants[key].view(-1, *(1,) * t.ndim)
