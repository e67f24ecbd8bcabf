"""The Gauss-Legendre adjoint: the paper's quadrature, with the adjoint falling out of the same nodes.

The paper integrates dL/dtheta = int a^T df/dtheta dt at Gauss-Legendre nodes, and solves for a(t) with an adaptive
solver that restarts at every observation. Here q nodes c_i lie in every accepted step (t0, h) of the forward solve, z_i
comes from its dense output, and a follows from the collocation equations of the variational problem, transposed:

    kappa_j = h b_j a1 + h sum_k b_j(s_k) g_k + h sum_i a_ij J_i^T kappa_i        (j = 1..q)
    a0      = a1 + sum_k g_k + sum_i J_i^T kappa_i
    dL/dtheta += sum_i kappa_i^T df/dtheta(t_i, z_i)

with the adjoint a1 at the end of the step, the gradients g_k of observations inside it at fractions s_k, and
J_i = df/dy(t_i, z_i). There is no backward tolerance, no rejected step, and no restart at an observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import nearest
from quadjoint.gradient.base import Gradient, Gradients, Task
from quadjoint.gradient.choose.cost import Estimate, decide, predict_collocation
from quadjoint.gradient.choose.measure import sample_size, samples, sizes_of
from quadjoint.gradient.collocation.accuracy import refine
from quadjoint.gradient.collocation.collocate import Sweep
from quadjoint.gradient.collocation.rule import collocation_rule
from quadjoint.gradient.collocation.trajectory import Trajectory
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.first import First
from quadjoint.gradient.products import Products
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.integrate import Integration
from quadjoint.solver.spec import Spec

SOLVES = ("auto", "iterate", "dense")
SMALL = 8  # numbers in the state of a sample up to which its equations may be solved densely
ROWS = 2048  # of one stacked evaluation, beyond which the weights are no longer what is waited for
CHUNK_BYTES = 2**24  # of activations, for panels solved together


@dataclass(frozen=True)
class GaussLegendre(Gradient):
    """The gradient of the ODE itself, by Gauss-Legendre collocation on the steps of the forward solve.

    Args:
        nodes: in every accepted step; by default as many as the order p of the method needs, ceil((p + 1) / 2). Inside
            of a step collocation is less accurate than at its end: observations there get a few nodes more at
            tolerances below 1e-5.
        rtol: halve the panels, at first the accepted steps, until that changes the gradient by less than this part of
            it. None trusts the steps of the forward solve.
        solve: "iterate" solves the equations of a step by products alone, for any state; "dense" all steps at once,
            for small samples that do not influence each other (which is checked); "auto" chooses.
        max_states: keep at most so many states of the forward solve, and compute the others again.
        chunk: bytes of activations that may be kept for steps that are solved together.
        memory_limit: bytes that may be kept of the forward solve; as they are used up, steps are given up for states,
            and states for checkpoints. None sets no limit, and steps that cannot be taken again are all kept.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.GaussLegendre())
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 3)  # -exp(-w)
    -0.607
    """

    nodes: int | None = None
    rtol: float | None = None
    solve: str = "auto"
    max_states: int | None = None
    chunk: int = CHUNK_BYTES
    memory_limit: int | None = None
    name = "gq"

    def __post_init__(self) -> None:
        if self.nodes is not None and not (isinstance(self.nodes, int) and self.nodes >= 1):
            raise ValueError(f"GaussLegendre needs a number of nodes a step, at least one; got nodes = {self.nodes}.")
        if self.rtol is not None and not self.rtol > 0:
            raise ValueError(f"GaussLegendre needs rtol > 0; got {self.rtol}.")
        if self.solve not in SOLVES:
            raise ValueError(f"solve = {self.solve!r} is not known.{nearest(self.solve, SOLVES)}")
        if self.max_states is not None and self.max_states < 1:
            raise ValueError(f"max_states must be at least 1; got {self.max_states}.")

    def check(self, spec: Spec) -> None:
        if self.max_states is not None and not spec.solver.stepper.transposable:
            raise ValueError(
                f"GaussLegendre(max_states=...) takes Runge-Kutta steps again; method {spec.solver.name!r} takes none."
            )

    def recorder(self, task: Task, first: First | None) -> Trajectory:
        assert first is not None
        again = task.spec.solver.stepper.transposable
        return Trajectory(task, first, self.max_states, self.memory_limit if again else None)

    def backward(self, task: Task, run: Integration, memory: Any, cotangents: Cotangents) -> Gradients:
        cotangents.check_finite()
        task = replace(task, spec=task.spec.on_step_clock(run))
        rule = collocation_rule(self.nodes or _nodes(task.spec, cotangents))
        event, steps = run.event_time, max(1, run.accepted_steps)
        together = self._steps_at_once(task.f, memory.activation_bytes, rule.q)
        dense = self._solution(task, memory.activation_bytes, steps=steps, nodes=rule.q) == "dense"

        def sweep(depth: int) -> tuple[Tensor, list[Tensor | None]]:
            products = Products(task)
            going = Sweep(task, products, cotangents, rule, _tolerance(task.spec, self.rtol, depth))
            panels = memory.panels(task, event, cotangents, depth)
            if dense:
                right = going.solve_dense(panels, size=together)
                task.say("small systems, solved at once" if right else "small systems were wrong, so it was iterated")
            else:
                going.iterate(panels)
                task.say("iterated")
            task.stats.gradient_error = going.estimate.relative()
            return cotangents.at_start(going.a.view(task.f.shape)), products.finish()

        if self.rtol is None:
            return Gradients(*sweep(0))
        a, sums, task.stats.gradient_error = refine(sweep, self.rtol, rule.q)
        return Gradients(a, sums)

    def predict(self, task: Task, activation_bytes: int, *, evaluations: int) -> Estimate:
        """What this gradient would cost after a forward solve of so many evaluations of f."""
        stepper = task.spec.solver.stepper
        steps = max(1, evaluations // stepper.evaluations)
        nodes = self.nodes or math.ceil((stepper.order + 1) / 2)
        sizes = sizes_of(task, activation_bytes, evaluations)
        together = self._steps_at_once(task.f, activation_bytes, nodes)
        costs = predict_collocation(sizes, steps=steps, nodes=nodes, together=together)
        return costs[self._solution(task, activation_bytes, steps=steps, nodes=nodes)]

    def _solution(self, task: Task, activation_bytes: int, *, steps: int, nodes: int) -> str:
        """How to solve the equations of a step: the way that is predicted to be faster of those that can be tried."""
        f = task.f
        if self.solve != "auto":
            return self.solve
        if sample_size(f.shape) > SMALL or f.dtype.is_complex or f.shape.numel() == 0:
            return "iterate"
        together = self._steps_at_once(f, activation_bytes, nodes)
        costs = predict_collocation(sizes_of(task, activation_bytes), steps=steps, nodes=nodes, together=together)
        return decide(costs).name

    def _steps_at_once(self, f: Dynamics, activation_bytes: int, nodes: int) -> int:
        """How many steps are solved at once."""
        by_bytes = self.chunk // max(1, nodes * activation_bytes)
        return max(1, min(by_bytes, ROWS // (samples(f.shape) * nodes)))


def _nodes(spec: Spec, cotangents: Cotangents) -> int:
    """Nodes a step: of order 2 q at its end, of order q + 1 inside of it."""
    q = math.ceil((spec.solver.order + 1) / 2)
    inside = not np.isin(cotangents.keys, cotangents.ends).all()
    if not inside or _asked(spec) >= 1e-5:
        return q
    return max(q, spec.solver.smooth.dense_order or q + 1)


def _asked(spec: Spec) -> float:
    """The relative tolerance of the forward solve; a fixed grid has none, and is taken for a fine one."""
    rtol = spec.solver.settings.rtol
    return (float(rtol.min()) if isinstance(rtol, Tensor) else float(rtol)) if spec.adaptive else 1e-9


def _tolerance(spec: Spec, rtol: float | None, depth: int) -> float:
    """To which relative error the equations of a panel are iterated: well below that of the forward solve.

    With ``rtol`` also below that; the errors of 2**depth panels a step add up.
    """
    wanted = 0.03 * min(_asked(spec), 1e-2)
    if rtol is not None:
        wanted = min(wanted, 0.01 * rtol) * 0.5**depth
    return max(10 * torch.finfo(spec.f.dtype).eps, wanted)
