"""The automatic choice of a gradient method: measure sizes, predict costs, take the cheapest that fits."""

from __future__ import annotations

from dataclasses import dataclass

from quadjoint.autograd import private
from quadjoint.gradient.base import Gradient, Task
from quadjoint.gradient.choose.cost import TYPICAL_EVALUATIONS, decide, predict
from quadjoint.gradient.choose.measure import memory_bytes, sizes_of
from quadjoint.gradient.collocation.gauss_legendre import GaussLegendre
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.discrete.discrete_adjoint import DiscreteAdjoint
from quadjoint.gradient.first import First
from quadjoint.solver.methods.implicit import ImplicitRungeKutta


@dataclass(frozen=True)
class Choice:
    """A gradient method by its name or mode, and why, as a clause."""

    gradient: Gradient
    name: str
    why: str
    by_cost: bool = False  # whether predicted costs decided, and not what the steps or f allow

    @property
    def reason(self) -> str:
        return f"{self.name}: {self.why}"


@dataclass(frozen=True)
class Auto(Gradient):
    """Choose by measured sizes; the choice is a function of the solve alone, not of solves before it.

    Args:
        memory_limit: bytes that the backward pass may keep; by default a quarter of the memory of the device, or of
            what the process is allowed. What does not fit is recomputed.
        exact: choose among gradients of the solve as it was computed, which agree to rounding. False also considers
            "gq", the gradient of the ODE along the solve, which agrees with them to the tolerance.

    >>> import torch, quadjoint as qj
    >>> w = torch.ones(2, requires_grad=True)
    >>> sol = qj.solve(lambda t, y: -w * y, torch.ones(2), torch.tensor([0.0, 1.0]), gradient=qj.Auto())
    >>> sol.stats.method
    'direct'
    """

    memory_limit: int | None = None
    exact: bool = True
    name = "auto"
    exact_clock = True

    def choose(self, task: Task, first: First) -> Choice:
        """The method to use for a solve whose first evaluation has been made."""
        solver = task.spec.solver
        if not solver.stepper.recordable:
            return Choice(GaussLegendre(), "gq", f"steps of method {solver.name!r} cannot be recorded or transposed")
        if not solver.stepper.transposable:
            return Choice(Direct(), "direct", f"steps of method {solver.name!r} cannot be transposed")
        if any(private.is_sharded(m) for m in task.snapshot.modules):
            return Choice(Direct(), "direct", "parameters are sharded")
        if first.reentrant():
            return Choice(Direct(), "direct", "a reentrant checkpoint inside of f lets no single gradient pass")
        limit = self.memory_limit if self.memory_limit is not None else int(memory_bytes(task.f.device) / 4)
        if private.saved_tensors_are_watched():
            how = DiscreteAdjoint(activations=0, memory_limit=limit)
            return Choice(how, "discrete", "what autograd saves is watched (a checkpoint?)")
        if isinstance(solver.eager, ImplicitRungeKutta):
            return Choice(DiscreteAdjoint(memory_limit=limit), "discrete", "steps are implicit, and transposed at once")
        costs = predict(sizes_of(task, first.activation_bytes), limit // 2)
        if not self.exact:
            costs["gq"] = GaussLegendre().predict(task, first.activation_bytes or 0, evaluations=TYPICAL_EVALUATIONS)
        decision = decide(costs, limit=limit)
        if decision.name == "direct":
            return Choice(Direct(memory_limit=limit), decision.name, decision.why, by_cost=True)
        if decision.name == "gq":
            return Choice(GaussLegendre(memory_limit=limit), decision.name, decision.why, by_cost=True)
        return Choice(
            DiscreteAdjoint(mode=decision.name, memory_limit=limit), decision.name, decision.why, by_cost=True
        )
