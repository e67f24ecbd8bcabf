"""The asynchronous leapfrog method run backwards by its exact inverse: memory that does not grow with the steps."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import QuadjointWarning, SolveError
from quadjoint.gradient.base import Gradient, Gradients, Task
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.first import First, StartedDynamics
from quadjoint.gradient.products import Products
from quadjoint.solver.integrate import Integration
from quadjoint.solver.methods.leapfrog import AsynchronousLeapfrog
from quadjoint.solver.protocols import Step
from quadjoint.solver.spec import Spec
from quadjoint.solver.state import rms_norm


@dataclass(frozen=True)
class Reversible(Gradient):
    """MALI (Zhuang et al. 2021), with ``method="alf"``: states are reconstructed, not stored; the gradient is exact.

    Steps end on the observations, so that only the final (y, v) and the step sizes are kept.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Reversible(), method="alf")
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    name = "reversible"

    def check(self, spec: Spec) -> None:
        solver = spec.solver
        if not isinstance(solver.stepper, AsynchronousLeapfrog):
            raise ValueError(
                f"gradient='reversible' needs method='alf', the one with an inverse; got method={solver.name!r}."
            )
        if spec.event is not None:
            raise ValueError("gradient='reversible' does not support events; use gradient='direct'.")
        if solver.grid is not None and not set(spec.times()) <= set(solver.grid):
            raise ValueError(
                "gradient='reversible' with options['step_size'] needs every observation time on the grid."
            )

    def adapt(self, spec: Spec) -> Spec:
        """Land on every observation: interpolated ones would need states inside steps."""
        solver = spec.solver
        if not isinstance(solver.stepper, AsynchronousLeapfrog) or solver.grid is not None or spec.event is not None:
            return spec
        return replace(spec, solver=solver.with_settings(step_t=(*solver.settings.step_t, *spec.times())))

    def recorder(self, task: Task, first: First | None) -> _Ending:
        assert first is not None
        return _Ending(StartedDynamics(task.f, first), first.recording.y.detach())

    def backward(self, task: Task, run: Integration, memory: Any, cotangents: Cotangents) -> Gradients:
        cotangents.check_finite()
        products, stepper = Products(task), task.spec.solver.stepper
        assert isinstance(stepper, AsynchronousLeapfrog)
        if not run.taken:
            return Gradients(cotangents.grads.sum(0), products.sums)
        if not set(cotangents.times.tolist()) <= {run.taken[0].t0, *(taken.t1 for taken in run.taken)}:
            raise ValueError(
                "gradient='reversible' keeps no state inside of steps, so the continuous solution has no gradient "
                "between observations; name these times in t, or use gradient='direct'."
            )
        y, v, eta = memory.y, memory.v, stepper.eta
        a, a_v = torch.zeros_like(y), torch.zeros_like(y)
        for index in range(len(run.taken) - 1, -1, -1):
            taken = run.taken[index]
            t0, h = taken.t0, taken.t1 - taken.t0
            first, last = cotangents.range_in_step(index)
            a = a + cotangents.grads[first:last].sum(0)
            middle = stepper.middle(y, v, h)
            out, point = products.record(t0 + 0.5 * h, middle)
            a_v = a_v + a * (0.5 * h)
            found = products.transpose(out, point, 2.0 * eta * a_v)
            y, v = stepper.inverse(middle, out.detach(), v, h)
            a = a + found
            a_v = (1.0 - 2.0 * eta) * a_v + a * (0.5 * h)
            if index == 0 or index in memory.restarts:  # v was f(t0, y) here
                out, point = products.record(t0, y, taken.nudge[0])
                a = a + products.transpose(out, point, a_v)
                v, a_v = memory.restarts.get(index, v), torch.zeros_like(y)
        _check_reconstruction(task.spec, y, memory.y0, memory.y)
        if not all(bool(torch.isfinite(g).all()) for g in (a, *products.sums) if g is not None):
            raise SolveError(_LOST)
        return Gradients(cotangents.at_start(a), products.finish())


class _Ending:
    """What the inverse steps start from, and the velocities that a discontinuity has interrupted."""

    def __init__(self, dynamics: StartedDynamics, y0: Tensor) -> None:
        self.dynamics, self.y0 = dynamics, y0
        self.y = self.v = y0
        self.count = 0
        self.restarts: dict[int, Tensor] = {}

    def __call__(self, step: Step) -> None:
        if self.count and step.retry is not self.v:
            self.restarts[self.count] = self.v
        self.count += 1
        self.y, self.v = step.y1, step.carry


_LOST = (
    "The gradient or the states that gradient='reversible' reconstructed are not finite: rounding has grown without "
    "bound backwards in time. Use gradient='discrete' or 'direct', or a shorter interval."
)


def _check_reconstruction(spec: Spec, found: Tensor, y0: Tensor, end: Tensor) -> None:
    """Warn if the inverse steps did not lead back to the initial state, and refuse to go on if they led nowhere.

    The inverse is exact but for rounding, which grows backwards in time as fast as the dynamics contract forwards, and
    by 1 / |1 - 2 eta| a step. The gradient is then that of another trajectory.
    """
    settings = spec.solver.settings
    rtol, atol = (float(x.max()) if isinstance(x, Tensor) else x for x in (settings.rtol, settings.atol))
    size = max(float(rms_norm(y0)), float(rms_norm(end)))
    allowed = max(rtol, 100 * torch.finfo(y0.dtype).eps) * size + atol
    distance = float(rms_norm(found - y0))
    if not math.isfinite(distance):
        raise SolveError(_LOST)
    if not distance <= allowed:
        warnings.warn(
            f"The states that gradient='reversible' reconstructed end {distance:.1e} away from y0, more than the "
            f"tolerance of {allowed:.1e}: rounding grows backwards in time if the dynamics contract, and the "
            "gradient is not to be trusted. Use gradient='discrete' or 'direct', a shorter interval, or float64.",
            QuadjointWarning,
            stacklevel=2,
        )
