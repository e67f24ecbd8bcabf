"""The paper's family: the adjoint equation solved backwards in time, beside the states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quadjoint.gradient.base import Gradient, Gradients, Task
from quadjoint.gradient.continuous.backward_solve import solve_backwards
from quadjoint.gradient.continuous.integral import InState, Quadrature
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.first import First, StartedDynamics
from quadjoint.gradient.products import Products
from quadjoint.gradient.proof import Beginning
from quadjoint.quadrature import Heuristic, NodePolicy
from quadjoint.solver.integrate import Integration
from quadjoint.solver.protocols import Step
from quadjoint.solver.spec import Method, Spec


@dataclass(frozen=True)
class ContinuousAdjoint(Gradient):
    """Solve the adjoint equation backwards in time, and the states with it: memory that does not grow with the steps.

    Args:
        integral: how the gradient of the parameters is computed: ``Quadrature(nodes)`` or ``InState(seminorm)``.
        rtol, atol, method, options: of the backward solve; None takes that of the forward solve.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.ContinuousAdjoint(qj.InState()))
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    integral: Quadrature | InState = Quadrature()  # noqa: RUF009 (frozen)
    rtol: float | None = None
    atol: float | None = None
    method: Method | None = None
    options: dict[str, Any] | None = field(default=None, hash=False)
    name: str = "continuous"  # type: ignore[misc]
    needs_observations = True

    def check(self, spec: Spec) -> None:
        if spec.samples is not None:
            raise ValueError(
                f"gradient={self.name!r} solves backwards in steps that the batch shares; with independent=True use "
                "gradient='discrete', 'gq' or 'direct'."
            )

    def recorder(self, task: Task, first: First | None) -> _Beginning:
        assert first is not None
        return _Beginning(task, first)

    def backward(self, task: Task, run: Integration, memory: Any, cotangents: Cotangents) -> Gradients:
        memory.prove(task)
        products = Products(task)
        if not run.taken:
            return Gradients(cotangents.grads.sum(0), products.sums)
        return solve_backwards(self, task, run, cotangents)


class _Beginning(Beginning):
    """All that is kept of the forward solve."""

    def __init__(self, task: Task, first: First) -> None:
        super().__init__(first)
        self.dynamics = StartedDynamics(task.f, first)

    def __call__(self, step: Step) -> None:
        return


def Adjoint(
    rtol: float | None = None,
    atol: float | None = None,
    method: Method | None = None,
    options: dict[str, Any] | None = None,
) -> ContinuousAdjoint:
    """The adjoint method of Chen et al. (2018): [z, a, a_theta] solved backwards as one ODE.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Adjoint(rtol=1e-6))
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """
    return ContinuousAdjoint(InState(), rtol, atol, method, options, "adjoint")


def Seminorm(
    rtol: float | None = None,
    atol: float | None = None,
    method: Method | None = None,
    options: dict[str, Any] | None = None,
) -> ContinuousAdjoint:
    """The adjoint method with a_theta left out of the error estimate (Kidger et al. 2021).

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Seminorm())
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """
    return ContinuousAdjoint(InState(seminorm=True), rtol, atol, method, options, "seminorm")


def QuadratureAdjoint(
    nodes: NodePolicy | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    method: Method | None = None,
    options: dict[str, Any] | None = None,
) -> ContinuousAdjoint:
    """The quadrature adjoint as Norcliffe and Deisenroth (2023) have it, "gq-paper".

    [y, a] is solved backwards, and the integral of the parameters' gradient is a sum over nodes between observations.
    Nodes are evaluated several at a time.

    >>> import quadjoint as qj
    >>> more_nodes = qj.QuadratureAdjoint(qj.Heuristic(c=1.0))
    """
    integral = Quadrature(Heuristic() if nodes is None else nodes)
    return ContinuousAdjoint(integral, rtol, atol, method, options, "gq-paper")
