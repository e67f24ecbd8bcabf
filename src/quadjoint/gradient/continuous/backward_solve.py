"""One backward solve over the observations, whatever the parameter integral is made of.

The adjoint a = dL/dz obeys da/dt = -a^T df/dz and jumps by dL/dz(t_k) at every observation;
dL/dtheta = int a^T df/dtheta dt. The sweep is one solve backwards in time that lands on the observations, applies the
jump and goes on with the step size it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.gradient.base import Gradients, Task
from quadjoint.gradient.continuous.augmented import AugmentedJacobian
from quadjoint.gradient.continuous.integral import InState, Quadrature, QuadratureSum
from quadjoint.gradient.cotangents import Cotangents, Query
from quadjoint.gradient.products import Products
from quadjoint.solver.clocks import LinearMap, PiecewiseMap
from quadjoint.solver.control import GridControl
from quadjoint.solver.integrate import Hooks, Integration, Integrator
from quadjoint.solver.methods.catalogue import known_options, make_solver
from quadjoint.solver.methods.scipy_solvers import Scipy
from quadjoint.solver.observe import Observer, SampleObserver
from quadjoint.solver.protocols import Time, VectorField
from quadjoint.solver.spec import InitialValue, Solver
from quadjoint.solver.state import Layout, mixed_norm

if TYPE_CHECKING:
    from quadjoint.gradient.continuous.family import ContinuousAdjoint


def solve_backwards(how: ContinuousAdjoint, task: Task, run: Integration, cotangents: Cotangents) -> Gradients:
    """Gradients by the adjoint equation."""
    cotangents.check_finite()
    observer = task.spec.make_observer()
    positions = None
    if isinstance(observer, SampleObserver):
        task, jumps, positions = _common_clock(task, run, cotangents, observer)
    else:
        jumps = _jumps(task.spec.times(run.event_time), run.ys, cotangents)
    return _BackwardSolve(how, task, run, jumps, positions).run()


# Time to the gradient of the loss there, the state observed, and which samples observe it (all of them if None).
Jumps = dict[float, tuple[Tensor, Tensor | None, Tensor | None]]


def _jumps(times: list[float], ys: Tensor, cotangents: Cotangents) -> Jumps:
    """Gradients of the observations by time; states asked for later have none that z could be put back on."""
    jumps: Jumps = {}
    for t, g in zip(cotangents.times.tolist(), cotangents.grads, strict=True):
        jumps[t] = (g if t not in jumps else jumps[t][0] + g, None, None)
    for t, y in zip(times, ys, strict=True):
        jumps[t] = (jumps[t][0], y, None)
    return jumps


def _common_clock(
    task: Task, run: Integration, cotangents: Cotangents, observer: SampleObserver
) -> tuple[Task, Jumps, np.ndarray]:
    """Times per sample: a clock in which all samples have their k-th observation, or discontinuity of f, at k.

    Returns also where the samples are at k on the clock of the forward solve, shape (B, n).
    """
    clock = task.f.time_map
    assert isinstance(clock, LinearMap | PiecewiseMap)
    own, asked = cotangents.apart(len(observer.rows))
    s = observer.times  # shape: (B, K)
    kinks, count = np.minimum(np.arange(1.0, clock.end), s[:, -1:]), s.shape[1]
    grads, ys = observer.arrange(own), observer.arrange(run.ys)
    if asked is not None:
        queries, more = _by_sample(asked, s[:, -1])
        s, grads = np.concatenate([s, queries], axis=1), torch.cat([grads, more])
        ys = torch.cat([ys, torch.zeros_like(more)])  # nothing that z could be put back on
    positions = np.concatenate([kinks, s], axis=1)  # an observation comes after a discontinuity at the same time
    order = np.argsort(positions, axis=1, kind="stable")
    positions = np.take_along_axis(positions, order, axis=1)
    y = run.ys[:1].expand(len(s), *run.ys.shape[1:])
    f = task.f.remapped(y, PiecewiseMap(torch.as_tensor(clock.times(positions)), y))
    # Column k of a row is an observation of the sample, a state asked for later, or a discontinuity without either.
    number = order - kinks.shape[1]
    observed = (number >= 0) & (number < count)  # on the host
    which = torch.as_tensor(number, device=y.device).T  # shape: (n, B)
    rows, shape = torch.arange(len(s), device=y.device), (-1, *(1,) * (y.ndim - 1))
    seen, known = which >= 0, torch.as_tensor(observed, device=y.device).T
    jumps: Jumps = {}
    for k, index in enumerate(which.clamp(min=0)):
        g = grads[index, rows] * seen[k].reshape(shape)
        jumps[float(k)] = (g, ys[index, rows], None if observed[:, k].all() else known[k].reshape(shape))
    return replace(task, spec=replace(task.spec, f=f)), jumps, positions


def _by_sample(asked: Query, last: np.ndarray) -> tuple[np.ndarray, Tensor]:
    """Times and gradients of states asked for later, as rows of the samples: shapes (B, m) and (m, B, *sample).

    Samples of which fewer were asked for are asked for their ``last`` time with a gradient of zero.
    """
    assert asked.rows is not None
    sample, batch = asked.rows.cpu().numpy(), len(last)
    counts = np.bincount(sample, minlength=batch)
    place = np.empty_like(sample)
    place[np.argsort(sample, kind="stable")] = np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)
    times = np.repeat(last[:, None], int(place.max()) + 1, axis=1)
    times[sample, place] = asked.times
    grads = asked.grads.new_zeros(times.shape[1], batch, *asked.grads.shape[1:])
    grads[torch.as_tensor(place, device=grads.device), asked.rows] = asked.grads
    return times, grads


class _BackwardSolve(VectorField):
    """One backward solve: its state [y, a] or [y, a, a_theta], its dynamics, its jumps."""

    def __init__(
        self, how: ContinuousAdjoint, task: Task, run: Integration, jumps: Jumps, positions: np.ndarray | None
    ) -> None:
        self.how, self.task, self.accepted_steps, self.jumps = how, task, len(run.taken), jumps
        self.positions = positions  # of times per sample, on the clock of the forward solve
        self.products = Products(task)
        self.event = run.event_time is not None
        sign = 1.0 if task.f.time_map is not None else math.copysign(1.0, run.taken[0].t1 - run.taken[0].t0)
        self.times = sorted(jumps, key=lambda t: sign * t)
        self.params = task.params if isinstance(how.integral, InState) else ()
        self.complex = task.f.dtype.is_complex
        shapes = [task.f.shape, task.f.shape, *(self._carried(p).shape for p in self.params)]
        self.layout = Layout(tuple(shapes))

    def _carried(self, g: Tensor) -> Tensor:
        """The gradient of a parameter in the numbers of the state: a complex one of a real state as pairs."""
        if g.layout != torch.strided:
            g = g.to_dense()
        return torch.view_as_real(g) if g.is_complex() and not self.complex else g

    def _parameter(self, g: Tensor, p: Tensor) -> Tensor:
        """Undo ``_carried``."""
        if p.is_complex():
            if not self.complex:  # in a copy, as pairs need not begin at an even place of the state
                g = torch.view_as_complex(g.clone(memory_format=torch.contiguous_format))
            return g.to(p.dtype)
        return (g.real if self.complex else g).to(p.dtype)

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor:
        """Time derivative of the backward state."""
        z, a, *_ = self.layout.unpack(y)
        out, point = self.products.record(t, z, nudge)
        if not self.params:
            return self.layout.pack((out.detach(), -self.products.transpose_state(out, point, a)))
        inputs, stats = (point, *self.products.targets), self.products.stats
        stats.vjp_state += 1
        stats.vjp_params += 1
        found: Any = [None] * len(inputs)
        if out.requires_grad:
            found = torch.autograd.grad(out, inputs, -a, retain_graph=True, allow_unused=True)
        # Real parameters of a complex state, or of another precision, are carried in the dtype of the state.
        rates = [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
        return self.layout.pack((out.detach(), *(self._carried(g).to(a.dtype) for g in rates)))

    def as_tensors(self, times: Sequence[float]) -> Sequence[Tensor]:
        return self.task.f.as_tensors(times)

    def own_jacobian(self, t: Time, y: Tensor, nudge: int) -> AugmentedJacobian:
        """For implicit methods."""
        z = self.layout.unpack(y)[0]
        return AugmentedJacobian(self.task.f, t, z, nudge)

    def _jump(self, t: float) -> Callable[[Tensor], Tensor]:
        """Apply an observation: add its gradient, and put z back on the forward solution."""
        g, y, here = self.jumps[t]

        def apply(state: Tensor) -> Tensor:
            z, a, *rest = self.layout.unpack(state)
            if y is not None:
                z = y if here is None else torch.where(here, y, z)
            return self.layout.pack((z, a + g, *rest))

        return apply

    def run(self) -> Gradients:
        """Solve from the last observation to the first."""
        times, task = self.times, self.task
        like = self.jumps[times[-1]][0]
        zeros = [torch.zeros(s, dtype=like.dtype, device=like.device) for s in self.layout.shapes or ()]
        state = self.layout.pack(tuple(zeros))
        solver = self._solver(state)
        total = None
        if isinstance(self.how.integral, Quadrature) and task.params:
            total = self._quadrature(self.how.integral, solver.order)
        integrator = Integrator(
            self,
            state,
            stepper=solver.stepper,
            control=solver.make_control(),
            observer=Observer([times[-1], times[0]]),
            jumps={t: self._jump(t) for t in times[1:]},
            hooks=Hooks(accepted=None if total is None else total.observe),
        )
        out = integrator.run()
        task.stats.backward_accepted_steps += out.accepted_steps
        task.stats.backward_rejected_steps += out.rejected_steps
        if total is not None:
            total.flush()
        _, a, *carried = self.layout.unpack(out.ys[-1])
        self.products.add([self._parameter(g, p) for g, p in zip(carried, self.params, strict=True)])
        return Gradients(a + self.jumps[times[0]][0], self.products.finish())

    def _quadrature(self, integral: Quadrature, order: int) -> QuadratureSum:
        breaks = {*self.times, *(t for t in self._discontinuities() if self.times[0] != t != self.times[-1])}
        low, high = sorted((self.times[0], self.times[-1]))
        ordered = sorted((t for t in breaks if low <= t <= high), reverse=self.times[-1] > self.times[0])
        return QuadratureSum(
            integral.nodes,
            self.task,
            self.products,
            split=lambda states: self.layout.unpack(states, leading=1)[:2],
            order=order,
            breaks=ordered,
        )

    def _discontinuities(self) -> tuple[float, ...]:
        """Times at which the dynamics jump: as named, and as the clocks of the samples change their rates."""
        if self.task.f.time_map is not None:
            return tuple(self.times[1:-1])
        return self.task.spec.solver.settings.jump_t

    def _solver(self, state: Tensor) -> Solver:
        """The solver of the backward pass: the forward one's method and tolerances unless others are given."""
        how, forward, times = self.how, self.task.spec.solver, self.times
        rtol = forward.settings.rtol if how.rtol is None else how.rtol
        atol = forward.settings.atol if how.atol is None else how.atol
        rtol, atol = (float(x.min()) if isinstance(x, Tensor) else x for x in (rtol, atol))
        method, options = how.method or forward.method, dict(how.options or {})
        if forward.grid is not None and how.method is None and "step_size" not in options:
            perturb = forward.make_control().perturb or self.task.f.time_map is not None
            grid = self._backward_grid(forward.grid)
            stepper = forward.smooth.within(rtol, atol)
            return Solver(method, stepper, partial(GridControl, grid, perturb=perturb), forward.settings, grid)
        options.setdefault("norm", self.norm)
        if method == "scipy_solver" and isinstance(forward.stepper, Scipy):
            options = {**forward.stepper.given, **options}
        elif how.method is None and how.options is None and forward.grid is None:
            kept = ("safety", "ifactor", "dfactor", "min_step", "max_step", "controller", "max_num_steps")
            options.update({n: getattr(forward.settings, n) for n in kept})
            # A step like the forward solve's average one: no search is needed.
            options["first_step"] = abs(times[-1] - times[0]) / max(1, self.accepted_steps)
        if method != "scipy_solver" and "jump_t" in known_options(method):
            options.setdefault("jump_t", list(self._discontinuities()))
        span = torch.tensor([times[-1], times[0]], dtype=torch.float64)
        problem = InitialValue(self, state, span, self.layout)
        solver = make_solver(method, options, problem, rtol=rtol, atol=atol)
        return replace(solver, stepper=solver.smooth)

    def _backward_grid(self, grid: list[float]) -> list[float]:
        """The steps of the forward solve, backwards; observations between grid points are landed on as well."""
        times = self.times
        if self.task.f.time_map is not None:
            return self._common_grid(grid)
        sign = math.copysign(1.0, times[-1] - times[0])
        if self.event:  # the forward solve went on with its first step size up to the event
            grid = list(grid)
            while sign * grid[-1] < sign * times[-1]:
                grid.append(grid[-1] + (grid[1] - grid[0]))
        taken = {s for s in (*grid, *times) if sign * s <= sign * times[-1]}
        return sorted(taken, reverse=sign > 0)

    def _common_grid(self, grid: list[float]) -> list[float]:
        """As many steps between two times as the forward solve took there at most, for any sample."""
        assert self.positions is not None
        index = np.interp(self.positions, grid, np.arange(len(grid)))
        share = np.diff(index, axis=1).max(axis=0)
        points = [np.linspace(k + 1.0, k, max(1, math.ceil(n - 1e-9)) + 1)[:-1] for k, n in enumerate(share)]
        return [*np.concatenate(points[::-1]).tolist(), 0.0]

    def norm(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Mixed norm over z, a and each parameter; the seminorm leaves the parameters out."""
        integral = self.how.integral
        return mixed_norm(parts[:2] if isinstance(integral, InState) and integral.seminorm else parts)
