"""One step of every method. Nothing here decides whether a step is good or how long the next one is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.dynamics import Dynamics, Time
from quadjoint.errors import warn_once
from quadjoint.interpolation import hermite_weights
from quadjoint.quadrature import gauss_legendre
from quadjoint.tableau import ButcherTableau

Clock = tuple[Tensor, Tensor]  # differentiable (t0, t1), where a fixed grid depends on learnable times


def combine(y: Tensor, ks: Sequence[Tensor], weights: Sequence[tuple[int, float]], dt: Time) -> Tensor:
    """y + dt * sum of weights[j] * ks[j]."""
    if isinstance(dt, Tensor):
        return y + sum(ks[j] * (w * dt) for j, w in weights)
    if not weights:
        return y
    (j, w), *rest = weights
    out = torch.add(y, ks[j], alpha=w * dt)
    for j, w in rest:
        out.add_(ks[j], alpha=w * dt)
    return out


def nonzero(row: np.ndarray) -> list[tuple[int, float]]:
    return [(j, float(w)) for j, w in enumerate(row) if w != 0.0]


class RungeKuttaStep:
    """A step with inputs Y_i, stages k_i = f(t_i, Y_i), and y(t0 + theta h) = y0 + h sum b_i(theta) k_i."""

    __slots__ = (
        "clock",
        "dt",
        "f",
        "first_shared",
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
        if self.nudge[1] or self.next_index is None:
            return None
        return self.ks[self.next_index]

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
        k = self.stacked().reshape(len(self.ks), -1)
        return (weights @ k).reshape(-1, *self.y0.shape) + self.y0

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        """The state of sample ``rows[m]`` at ``times[m]``: one row of the batch each, shape (m, *sample)."""
        self.complete()
        weights = self.method.tableau.dense_weights(self.theta(times)) * (self.t1 - self.t0)  # type: ignore[arg-type]
        w = torch.as_tensor(weights, dtype=self.y0.dtype, device=self.y0.device)
        k = self.stacked()[:, rows].flatten(2)  # (stages, m, features)
        out = torch.einsum("ms,smd->md", w, k).reshape(len(rows), *self.y0.shape[1:])
        return out + self.y0[rows]


class RungeKutta:
    """Steps of one explicit Runge-Kutta method."""

    transposable = True
    clocked = True  # differentiable in the ends of a step

    def __init__(self, tableau: ButcherTableau) -> None:
        self.tableau = tableau
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
                 clock: Clock | None = None) -> None:  # fmt: skip
        self.f, self.t0, self.t1, self.y0, self.y1, self.f0, self._f1 = f, t0, t1, y0, y1, f0, f1
        self.carry, self.error, self.linear, self.clock = carry, error, linear, clock
        self.grad = torch.is_grad_enabled()

    @property
    def f1(self) -> Tensor:
        if self._f1 is None:
            with torch.set_grad_enabled(self.grad):
                self._f1 = self.f(self.t1 if self.clock is None else self.clock[1], self.y1)
        return self._f1

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


class Adams:
    """Adams-Bashforth, or with ``implicit`` Adams-Bashforth-Moulton iterated to convergence, on any grid.

    ``max_order`` is that of the corrector; predictor and explicit method have one less (as in torchdiffeq). High
    orders are stable only for very short steps: below 0.0034 / |df/dy| for the explicit method of order eleven.
    The first steps are taken by a Runge-Kutta method of order four.
    """

    adaptive = False
    transposable = False
    clocked = False  # the weights depend on the times of the history
    order = 4
    min_history = 4

    def __init__(self, starter: RungeKutta, implicit: bool, max_order: int = 12, max_iters: int = 4,
                 rtol: float = 1e-3, atol: float = 1e-4, linear: bool = False) -> None:  # fmt: skip
        if not 2 <= max_order <= 12:
            raise ValueError(f"options['max_order'] must be from 2 to 12; got {max_order}.")
        self.starter, self.implicit, self.kept, self.max_iters = starter, implicit, int(max_order) - 1, max_iters
        self.rtol, self.atol, self.linear = rtol, atol, linear

    def step(self, f: Dynamics, t0: float, t1: float, y: Tensor, carry: History | None = None,
             nudge: tuple[int, int] = (0, 0), clock: Clock | None = None) -> HermiteStep:  # fmt: skip
        start, end = clock if clock is not None else (t0, t1)
        f0 = f(start, y, nudge[0])
        history: History = ((t0, f0), *(carry or ()))[: self.kept]
        if len(history) < min(self.min_history, self.kept):
            y1 = self.starter.step(f, t0, t1, y, f0, nudge, clock).y1
        else:
            h = t1 - t0
            nodes = tuple(round((t - t0) / h, 12) for t, _ in history)
            dt: Time = h if clock is None else end - start
            y1 = combine(y, [k for _, k in history], list(enumerate(adams_weights(nodes))), dt)
            if self.implicit:
                y1 = self._correct(f, end, y, y1, history, nodes, dt, nudge[1])
        return HermiteStep(f, t0, t1, y, y1, f0, None, history, linear=self.linear, clock=clock)

    def _correct(self, f: Dynamics, t1: Time, y: Tensor, y1: Tensor, history: History, nodes: tuple[float, ...],
                 dt: Time, nudge: int) -> Tensor:  # fmt: skip
        last, *past = adams_weights((1.0, *nodes))
        base = combine(y, [k for _, k in history], list(enumerate(past)), dt)
        for _ in range(self.max_iters):
            before, y1 = y1, combine(base, [f(t1, y1, nudge)], [(0, last)], dt)
            with torch.no_grad():
                moved = torch.maximum((y1 - y).abs(), (before - y).abs())
                change = (y1 - before).abs() / (self.atol + self.rtol * moved)
                if float(change.max()) < 1.0:
                    return y1
        warn_once(
            "implicit_adams",
            f"The iteration of implicit_adams did not converge to rtol, atol in {self.max_iters} evaluations at "
            f"t = {float(t1):.6g}. Use shorter steps, looser tolerances or a larger options['max_iters'].",
        )
        return y1


class AsynchronousLeapfrog:
    """The asynchronous leapfrog step on (z, v), of order two, with damping ``eta`` (Zhuang et al., MALI, 2021).

    k = z + h/2 v, u = f(t + h/2, k), v' = v + 2 eta (u - v), z' = k + h/2 v'. It has an exact inverse.
    """

    adaptive = True
    transposable = False
    clocked = True
    order = 2

    def __init__(self, eta: float = 1.0) -> None:
        if not 0.0 < eta <= 1.0 or math.isclose(eta, 0.5):
            raise ValueError(
                f"options['eta'] must lie in (0, 1] and not be 0.5, where the step has no inverse; got {eta}."
            )
        self.eta = eta

    def step(self, f: Dynamics, t0: float, t1: float, y: Tensor, carry: Tensor | None = None,
             nudge: tuple[int, int] = (0, 0), clock: Clock | None = None) -> HermiteStep:  # fmt: skip
        start, end = clock if clock is not None else (t0, t1)
        v = f(start, y, nudge[0]) if carry is None else carry
        h: Time = end - start
        middle = y + v * (0.5 * h)
        u = f(start + 0.5 * h, middle)
        v1 = v + 2.0 * self.eta * (u - v)
        y1 = middle + v1 * (0.5 * h)
        error = (v1 - v).detach() * (0.5 * (t1 - t0))
        return HermiteStep(f, t0, t1, y, y1, v, v1, v1, error=error, clock=clock)

    def inverse(self, f: Dynamics, t0: float, t1: float, y1: Tensor, v1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(y, v, middle) of the step from t0 to t1 that ended in (y1, v1)."""
        h = t1 - t0
        middle = y1 - v1 * (0.5 * h)
        u = f(t0 + 0.5 * h, middle)
        v = (v1 - 2.0 * self.eta * u) / (1.0 - 2.0 * self.eta)
        return middle - v * (0.5 * h), v, middle


class ScipyStep:
    """A step that SciPy took."""

    error = None
    grad = False

    def __init__(self, solver: Any, y0: Tensor, y1: Tensor) -> None:
        self.t0, self.t1, self.y0, self.y1 = float(solver.t_old), float(solver.t), y0, y1
        self.carry, self._dense = solver, solver.dense_output()

    def evaluate(self, times: Sequence[float]) -> Tensor:
        values = self._dense(np.asarray(times)).T.reshape(len(times), *self.y0.shape)
        return torch.as_tensor(values).to(self.y0)


class Scipy:
    """Steps of SciPy's solvers (``solve_ivp`` methods, also implicit ones), each chosen and accepted by SciPy."""

    adaptive = False  # SciPy controls the step size
    transposable = False
    clocked = False

    def __init__(self, solver: str, rtol: Any, atol: Any, **options: Any) -> None:
        try:
            from scipy import integrate
        except ImportError as error:
            raise ImportError("method='scipy_solver' needs SciPy: pip install scipy") from error
        known = {"RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA"}
        if solver not in known:
            from quadjoint.errors import nearest

            raise ValueError(f"options['solver'] = {solver!r} is not a SciPy method.{nearest(solver, known)}")
        self.kind = getattr(integrate, solver)
        self.order = {"RK23": 3, "DOP853": 8}.get(solver, 5)
        self.rtol, self.atol, self.options = rtol, atol, options

    def step(self, f: Dynamics, t0: float, t1: float, y: Tensor, carry: Any = None,
             nudge: tuple[int, int] = (0, 0), clock: Clock | None = None) -> ScipyStep:  # fmt: skip
        from quadjoint.errors import StepSizeUnderflowError

        if carry is None or carry.status != "running" or carry.t_bound != t1:
            wide = torch.complex128 if y.is_complex() else torch.float64

            def numpy_f(t: float, flat: np.ndarray) -> np.ndarray:
                out = f(float(t), torch.as_tensor(flat).to(y).reshape(y.shape))
                return out.detach().cpu().reshape(-1).to(wide).numpy()

            flat = y.detach().cpu().reshape(-1).to(wide).numpy()
            carry = self.kind(numpy_f, t0, flat, t1, rtol=self.rtol, atol=self.atol, **self.options)
        message = carry.step()
        if carry.status == "failed":
            raise StepSizeUnderflowError(f"SciPy's {self.kind.__name__} stopped at t = {carry.t:.6g}: {message}")
        return ScipyStep(carry, y, torch.as_tensor(carry.y.copy()).to(y).reshape(y.shape))
