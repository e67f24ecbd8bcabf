"""Plain backpropagation through the operations of the solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.captured import capture
from quadjoint.autograd.leaves import leaves
from quadjoint.gradient.base import Gradient, differentiable, graph_is_kept, hooks_aside
from quadjoint.solver.methods.compiled import CompiledRungeKutta, reusable
from quadjoint.solver.problem import Problem


@dataclass(frozen=True)
class Direct(Gradient):
    """Backpropagate through every operation of the solve: exact, and as memory-hungry as all activations together.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Direct())
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    name = "direct"
    exact_clock = True
    sample_times = "interpolate"

    def apply(self, problem: Problem, y0: Tensor) -> Tensor:
        problem.stats.method = problem.stats.method or self.name
        if not (torch.is_grad_enabled() and isinstance(problem.solver.stepper, CompiledRungeKutta)):
            return problem.run(y0)
        if problem.dense or problem.solver.points is not None:
            return _Once.apply(problem.run(y0))
        start = y0.detach().requires_grad_()
        ys = problem.run(start)
        params = [x for x in leaves(ys) if x is not start]
        return _Recorded.apply(problem, (start, ys), capture(problem.f.f), y0, *params)


class _Recorded(torch.autograd.Function):
    """A solve that was recorded in compiled graphs, which cannot be differentiated twice.

    For a gradient that will be differentiated again, the solve is repeated without compilation.
    """

    @staticmethod
    def forward(ctx: Any, problem: Problem, recorded: tuple[Tensor, Tensor], tensors: dict[str, Tensor] | None,
                y0: Tensor, *params: Tensor) -> Tensor:  # fmt: skip
        ctx.problem, ctx.tensors, ctx.memory = replace(problem, params=params), tensors, recorded
        ctx.save_for_backward(y0, *params)
        return recorded[1].detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        y0, *params = ctx.saved_tensors
        if torch.is_grad_enabled():
            if any(x.requires_grad and not x.is_leaf for x in (ctx.tensors or {}).values()):
                raise ValueError(_ADVICE)
            in_y0, _, _, *found = differentiable(ctx.problem, ctx.tensors, y0, None, None, grads[0])
            return None, None, None, in_y0, *found
        start, ys = ctx.memory
        # The graph of tensors that f closes over is used by others as well.
        with reusable(), hooks_aside(params):
            out = torch.autograd.grad(ys, (start, *params), grads[0], retain_graph=True, allow_unused=True)
        if not graph_is_kept():
            ctx.memory = None
        return None, None, None, *out


_ADVICE = (
    "Steps recorded with compile=True cannot be differentiated twice here (create_graph=True with solve, with weights "
    "put in by functional_call, or with a grid of learnable times); use gradient='discrete' or compile=False."
)


class _Once(torch.autograd.Function):
    """The identity, which refuses gradients that are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise ValueError(_ADVICE)
        return grads[0]
