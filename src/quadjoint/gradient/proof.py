"""Whether f is in the backward pass the function that it was in the forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from quadjoint.gradient.base import Task
from quadjoint.gradient.first import First
from quadjoint.solver.methods.implicit import ImplicitRungeKutta

ROUNDING = 1e3  # units in the last place by which two evaluations of one function may differ


class Proof:
    """Compares what the backward pass computes with what the forward solve has stored; the host looks once."""

    def __init__(self, task: Task) -> None:
        low = task.f.precision
        eps = torch.finfo(task.f.dtype).eps
        self.eps, self.relative = eps, min(0.1, ROUNDING * eps if low is None else 16 * torch.finfo(low).eps)
        self.worst: Tensor | None = None
        # Stages that are solved for again differ by what the iteration may leave.
        stepper = task.spec.solver.eager
        self.slack = stepper.newton.slack(eps) if isinstance(stepper, ImplicitRungeKutta) else (0.0, 0.0)

    def compare(self, found: Tensor, stored: Tensor, change: Tensor, *, steps: int = 1) -> None:
        """Two states that should be equal up to the rounding of a ``change`` that led to them.

        If so many ``steps`` were taken again since the last state that was kept, each may have left something.
        """
        gap = _largest(found - stored)
        relative, absolute = (steps * part for part in self.slack)
        allowed = self.relative * _largest(change) + (64 * self.eps + relative) * _largest(stored) + absolute
        ratio = gap / (allowed + torch.finfo(gap.dtype).tiny)
        self.worst = ratio if self.worst is None else torch.maximum(self.worst, ratio)

    def conclude(self) -> None:
        """Refuse the gradient of another function."""
        worst, self.worst = self.worst, None
        if worst is not None and not float(worst) <= 1.0:
            raise ValueError(
                "f gives other values in the backward pass than in the forward pass, so the gradient would be that of "
                "another function. Something that it uses has changed since: a tensor that was changed in place, a "
                "variable of a closure that now has another value (write lambda t, y, c=c: ...), a hook that was "
                "removed. Keep it until backward() has run, or use gradient='direct'. Or f draws random numbers: draw "
                "them once, before the solve."
            )


class Beginning:
    """The first evaluation of a solve, against which f is held in the backward pass."""

    def __init__(self, first: First) -> None:
        self.t, self.nudge, self.y0, self.value = first.t, first.nudge, first.recording.y.detach(), first.value

    def compare(self, task: Task, proof: Proof) -> None:
        """Compare f at the initial point; samples for which it is not finite there were not solved."""
        task.stats.backward_evaluations += 1
        known = self.value.isfinite()
        found, stored = (torch.where(known, x, 0.0) for x in (task.f(self.t, self.y0, self.nudge), self.value))
        proof.compare(found, stored, stored)

    def prove(self, task: Task) -> None:
        """Refuse to differentiate another function than was solved, as far as the initial point shows it."""
        proof = Proof(task)
        self.compare(task, proof)
        proof.conclude()


def _largest(x: Tensor) -> Tensor:
    """The largest modulus; a NaN, which proves nothing, is passed on."""
    return x.detach().abs().max() if x.numel() else x.new_zeros((), dtype=x.dtype.to_real())
