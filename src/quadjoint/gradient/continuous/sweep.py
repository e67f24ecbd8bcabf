"""The continuous adjoint: one backward sweep over the observations, whatever z(t) and the integral are made of.

The adjoint a = dL/dz obeys da/dt = -a^T df/dz and jumps by dL/dz(t_k) at every observation;
dL/dtheta = int a^T df/dtheta dt. The sweep is one solve backwards in time that lands on the observations, applies the
jump and goes on with the step size it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import SolveError
from quadjoint.gradient.base import Gradient, Gradients
from quadjoint.gradient.continuous.integral import InState, Quadrature, QuadratureSum
from quadjoint.gradient.continuous.trajectory import Backsolve, Stored, TrajectoryRecorder
from quadjoint.gradient.products import Products
from quadjoint.gradient.quadrature import NodePolicy, PerStep
from quadjoint.solver.control import GridControl
from quadjoint.solver.dynamics import Dynamics, Time
from quadjoint.solver.integrate import Hooks, Observer, integrate
from quadjoint.solver.methods.catalogue import make_solver
from quadjoint.solver.problem import Problem, Solver
from quadjoint.solver.state import Layout, mixed_norm, rms_norm


@dataclass(frozen=True)
class ContinuousAdjoint(Gradient):
    """Solve the adjoint equation backwards in time.

    Args:
        trajectory: ``Stored()`` keeps z from the forward solve, ``Backsolve()`` solves it again backwards.
        integral: ``Quadrature(nodes)`` or ``InState(seminorm)``.
        normalise: scale the adjoint to unit size, so that the relative error does not depend on the loss's scale.
        rtol, atol, method, options: of the backward solve; those of the forward solve where None.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.ContinuousAdjoint(qj.Stored(), qj.InState()))
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    trajectory: Stored | Backsolve = Stored()  # noqa: RUF009 (frozen)
    integral: Quadrature | InState = Quadrature()  # noqa: RUF009 (frozen)
    normalise: bool = True
    rtol: float | None = None
    atol: float | None = None
    method: str | None = None
    options: dict[str, Any] | None = field(default=None, hash=False)
    name: str = "continuous"  # type: ignore[misc]

    def forward(self, problem: Problem, y0: Tensor) -> tuple[Tensor, Any]:
        recorder = TrajectoryRecorder() if isinstance(self.trajectory, Stored) else None
        ys = problem.run(y0, accepted=recorder)
        # With times per sample the solve passes observations at which the clock rates of the samples change.
        return ys, (recorder, None if recorder is not None else ys.detach())

    def backward(self, problem: Problem, memory: Any, grad_ys: Tensor) -> Gradients:
        recorder, ys = memory
        times = problem.times
        products = Products(problem)
        if len(times) < 2:
            return Gradients(grad_ys.sum(0), products.sums)
        largest = float(torch.stack([rms_norm(g) for g in grad_ys]).max())
        if not math.isfinite(largest):
            raise SolveError("The gradient of the loss has entries that are NaN or infinite; check the loss.")
        scale = largest if self.normalise and largest > 0.0 else 1.0
        sweep = _Sweep(self, problem, products, recorder, ys, grad_ys / scale)
        a = sweep.run()
        sums = [None if s is None else s * scale for s in products.sums]
        return Gradients(a * scale, sums)


def Adjoint(rtol: float | None = None, atol: float | None = None, method: str | None = None,
            options: dict[str, Any] | None = None) -> ContinuousAdjoint:  # fmt: skip
    """The adjoint method of Chen et al. (2018): [z, a, a_theta] solved backwards as one ODE.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Adjoint(rtol=1e-6))
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """
    return ContinuousAdjoint(Backsolve(), InState(), False, rtol, atol, method, options, "adjoint")


def Seminorm(rtol: float | None = None, atol: float | None = None, method: str | None = None,
             options: dict[str, Any] | None = None) -> ContinuousAdjoint:  # fmt: skip
    """The adjoint method with a_theta left out of the error estimate (Kidger et al. 2021).

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Seminorm())
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """
    return ContinuousAdjoint(Backsolve(), InState(seminorm=True), False, rtol, atol, method, options, "seminorm")


def GaussLegendre(nodes: NodePolicy | None = None, trajectory: Stored | Backsolve | None = None, *,
                  normalise: bool = True, rtol: float | None = None, atol: float | None = None,
                  method: str | None = None, options: dict[str, Any] | None = None,
                  name: str = "gq") -> ContinuousAdjoint:  # fmt: skip
    """The quadrature adjoint (Norcliffe and Deisenroth 2023), by default with stored states and nodes in every step.

    >>> import quadjoint as qj
    >>> paper = qj.GaussLegendre(nodes=qj.Heuristic(c=0.1), trajectory=qj.Backsolve())
    """
    integral = Quadrature(PerStep() if nodes is None else nodes)
    return ContinuousAdjoint(trajectory or Stored(), integral, normalise, rtol, atol, method, options, name)


class _BackwardDynamics(Dynamics):
    """Remembers the side of a discontinuity on which it is asked, so that f is asked there in its own times."""

    side = 0

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor:
        self.side = nudge
        return super().__call__(t, y)


class _Sweep:
    """One backward solve: its state, its dynamics, its jumps."""

    def __init__(self, how: ContinuousAdjoint, problem: Problem, products: Products, recorder: Any, ys: Tensor | None,
                 grads: Tensor) -> None:  # fmt: skip
        self.how, self.problem, self.products, self.ys, self.grads = how, problem, products, ys, grads
        self.dense = None if recorder is None else recorder.dense()
        self.in_state = isinstance(how.integral, InState)
        parts: list[torch.Size] = [] if self.dense is not None else [problem.f.shape]
        parts.append(problem.f.shape)
        if self.in_state:
            parts += [p.shape for p in problem.params]
        self.layout = Layout(tuple(parts))
        self.a_index = 0 if self.dense is not None else 1
        self.dynamics: _BackwardDynamics | None = None

    def split(self, t: float, state: Tensor) -> tuple[Tensor, Tensor]:
        """(z, a) from the state of the backward solve."""
        parts = self.layout.unpack(state)
        return (self.dense(t) if self.dense is not None else parts[0]), parts[self.a_index]

    def rate(self, t: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Time derivative of the backward state."""
        now = float(t)
        a = parts[self.a_index]
        z = self.dense(now) if self.dense is not None else parts[0]
        nudge = 0 if self.dynamics is None else self.dynamics.side
        if not self.in_state:
            flow, product = self.products.value_and_state(now, z, a, nudge)
            return (-product,) if self.dense is not None else (flow, -product)
        out, point = self.products.record(now, z, nudge)
        found = self._all_products(out, point, a)
        head = (out.detach(),) if self.dense is None else ()
        return (*head, *(-g for g in found))

    def _all_products(self, out: Tensor, point: Tensor, a: Tensor) -> list[Tensor]:
        inputs = (point, *self.problem.params)
        self.products.stats.vjp_state += 1
        self.products.stats.vjp_params += 1
        if not out.requires_grad:
            return [torch.zeros_like(x, dtype=a.dtype) for x in inputs]
        found = torch.autograd.grad(out, inputs, a, retain_graph=True, allow_unused=True)
        # Real parameters of a complex state, or of another precision, are carried in the dtype of the state.
        return [(torch.zeros_like(x) if g is None else g).to(a.dtype) for g, x in zip(found, inputs, strict=True)]

    def jump(self, k: int) -> Callable[[Tensor], Tensor]:
        """Apply observation k: add its gradient, and put a backsolved z back on the forward solution."""

        def apply(state: Tensor) -> Tensor:
            parts = list(self.layout.unpack(state))
            parts[self.a_index] = parts[self.a_index] + self.grads[k]
            if self.ys is not None:
                parts[0] = self.ys[k]
            return self.layout.pack(tuple(parts))

        return apply

    def run(self) -> Tensor:
        """Solve from the last observation to the first; returns dL/dy0."""
        problem, times = self.problem, self.problem.times
        first = self.grads[0]
        zeros = [torch.zeros(s, dtype=first.dtype, device=first.device) for s in self.layout.shapes or ()]
        for i, p in enumerate(problem.params if self.in_state else ()):
            zeros[self.a_index + 1 + i] = torch.zeros_like(p, dtype=first.dtype)
        state = self.layout.pack(tuple(zeros))
        self.dynamics = dynamics = _BackwardDynamics(self.rate, state, self.layout)
        dynamics.time_dtype = torch.float64 if first.device.type != "mps" else torch.float32
        solver = self._solver(times, state)
        total = None
        if isinstance(self.how.integral, Quadrature):
            total = QuadratureSum(self.how.integral.nodes, problem, self.products, self.split, solver.order)
        jumps = {times[k]: self.jump(k) for k in range(len(times))}
        out = integrate(
            dynamics, state, solver.stepper, solver.make_control(), Observer([times[-1], times[0]]),
            jumps=jumps, hooks=Hooks(accepted=total.observe if total and problem.params else None),
        )  # fmt: skip
        self.dynamics = None  # a cycle of references would keep the trajectory until the next garbage collection
        problem.stats.backward_accepted_steps += out.accepted_steps
        problem.stats.backward_rejected_steps += out.rejected_steps
        if total is not None and problem.params:
            total.finish()
        parts = self.layout.unpack(out.ys[-1])
        if self.in_state:
            carried = zip(parts[self.a_index + 1 :], problem.params, strict=True)
            self.products.add([(g if p.is_complex() else g.real).to(p.dtype) for g, p in carried])
        return parts[self.a_index] + self.grads[0]

    def _solver(self, times: list[float], state: Tensor) -> Solver:
        """The solver of the backward pass: the forward one's method and tolerances unless told otherwise."""
        how, forward = self.how, self.problem.solver
        rtol = forward.settings.rtol if how.rtol is None else how.rtol
        atol = forward.settings.atol if how.atol is None else how.atol
        rtol, atol = (float(x.min()) if isinstance(x, Tensor) else x for x in (rtol, atol))
        method = how.method or forward.method
        options = dict(how.options or {})
        options.setdefault("norm", self.norm)
        span = torch.tensor([times[-1], times[0]], dtype=torch.float64)
        if forward.grid is not None and how.method is None and "step_size" not in options:
            grid = self._backward_grid(forward.grid, times)
            perturb = forward.make_control().perturb or self.problem.f.time_map is not None
            control = partial(GridControl, grid, None, perturb)
            return Solver(method, forward.smooth, control, forward.settings, grid)
        if how.method is None and how.options is None and forward.grid is None and method != "scipy_solver":
            kept = ("safety", "ifactor", "dfactor", "min_step", "max_step", "controller", "max_num_steps")
            options.update({n: getattr(forward.settings, n) for n in kept})
            # With times per sample, the clock rates of the samples change at every observation.
            changes = times[1:-1] if self.problem.f.time_map is not None else ()
            options["jump_t"] = [*{*forward.settings.jump_t, *changes}]
            options["first_step"] = self._last_forward_step(times)
        solver = make_solver(method, options, rtol, atol, self.layout, span, span.tolist(), state, self.rate)
        if method == "scipy_solver":
            solver.stepper = forward.stepper
        return replace(solver, stepper=solver.smooth)

    def _backward_grid(self, grid: list[float], times: list[float]) -> list[float]:
        """The steps of the forward solve, backwards; observations between grid points are landed on as well."""
        sign = math.copysign(1.0, times[-1] - times[0])
        if self.problem.event is not None:  # the forward solve went on with its first step size up to the event
            grid = list(grid)
            while sign * grid[-1] < sign * times[-1]:
                grid.append(grid[-1] + (grid[1] - grid[0]))
        taken = {s for s in (*grid, *times) if sign * s <= sign * times[-1]}
        return sorted(taken, reverse=sign > 0)

    def _last_forward_step(self, times: list[float]) -> float:
        """The backward solve starts with a step like the forward solve's average one: no search is needed."""
        return abs(times[-1] - times[0]) / max(1, self.problem.stats.accepted_steps)

    def norm(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Mixed norm over z, a and each parameter; the seminorm leaves the parameters out."""
        integral = self.how.integral
        if isinstance(integral, InState) and integral.seminorm:
            parts = parts[: self.a_index + 1]
        return mixed_norm(parts)
