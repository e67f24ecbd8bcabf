"""One Runge-Kutta step: its end, its error, and the states inside of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.interpolation import Polynomial, powers
from quadjoint.solver.methods.sums import combine, stage_nudge, stage_time, weighted
from quadjoint.solver.protocols import Clock, Nudge, Time, VectorField

if TYPE_CHECKING:
    from quadjoint.solver.methods.runge_kutta import RungeKutta


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
        lengths = self.lengths
        scale = self.t1 - self.t0 if lengths is None else lengths
        if known is not None:
            return known * scale
        if lengths is None:
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
        weights = powers(theta, dense.shape[1]) @ dense.T * (t1 - t0)
        return self.blend(weights.to(self.y0.device, self.y0.dtype))

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
