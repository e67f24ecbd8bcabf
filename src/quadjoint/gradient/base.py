"""What a gradient method is, and the one autograd function behind all that are not direct."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from quadjoint.dynamics import Dynamics
from quadjoint.problem import Problem


class Gradient:
    """How a solve is differentiated. Subclasses are frozen dataclasses that hold only their settings."""

    name: ClassVar[str]
    exact_clock: ClassVar[bool] = False  # differentiates a fixed grid exactly in its times
    # Times per sample: "interpolate" one smooth solve, or go from "observation" to observation together.
    sample_times: ClassVar[str] = "observation"

    def choose(self, problem: Problem, f: Callable[..., Any], y0: Tensor, params: Any) -> Gradient:
        """The method to use for this problem: itself, unless it is one that chooses."""
        return self

    def apply(self, problem: Problem, y0: Tensor) -> Tensor:
        """Solve ``problem`` from ``y0`` such that the result can be differentiated."""
        problem.stats.method = problem.stats.method or self.name
        if not torch.is_grad_enabled() or not (y0.requires_grad or problem.params):
            return problem.run(y0)
        points = problem.solver.points if self.exact_clock else None
        observed = problem.make_observer().points if self.exact_clock else None
        return _Solve.apply(self, problem, y0, points, observed, *problem.params)

    def forward(self, problem: Problem, y0: Tensor) -> tuple[Tensor, Any]:
        """Solve without grad; returns the observations and whatever ``backward`` needs."""
        raise NotImplementedError

    def backward(self, problem: Problem, memory: Any, grad_ys: Tensor) -> Gradients:
        raise NotImplementedError


class Gradients:
    """Gradients in the initial state, the parameters and, on a differentiable grid, the times."""

    def __init__(self, y0: Tensor, params: list[Tensor | None], points: Tensor | None = None,
                 observed: Tensor | None = None) -> None:  # fmt: skip
        self.y0, self.params, self.points, self.observed = y0, params, points, observed


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, method: Gradient, problem: Problem, y0: Tensor, points: Tensor | None,
                observed: Tensor | None, *params: Tensor) -> Tensor:  # fmt: skip
        ctx.method, ctx.problem = method, problem
        ctx.tensors = capture(problem.f.f)
        ys, ctx.memory = method.forward(problem, y0.detach())
        ctx.save_for_backward(y0, points, observed, *params)
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        y0, points, observed, *params = ctx.saved_tensors
        (grad_ys,) = grads
        problem: Problem = ctx.problem
        with as_captured(problem.f, ctx.tensors):
            if torch.is_grad_enabled():
                return None, None, *_differentiable(problem, y0, points, observed, params, grad_ys)
            out = ctx.method.backward(problem, ctx.memory, grad_ys)
        if not _graph_is_kept():
            ctx.memory = None  # as autograd frees what it saved, also while the result of the solve lives on
        return None, None, out.y0, out.points, out.observed, *out.params


def _graph_is_kept() -> bool:
    """Whether the running backward pass was asked to retain its graph; taken for granted where torch does not say."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


def _differentiable(problem: Problem, y0: Tensor, points: Tensor | None, observed: Tensor | None,
                    params: list[Tensor], grad_ys: Tensor) -> list[Tensor | None]:  # fmt: skip
    """Gradients that can be differentiated again (``create_graph=True``): solve once more, recorded by autograd."""
    ys = problem.again().run(y0)
    inputs = [y0, points, observed, *params]
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(ys, wanted, grad_ys, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]


def capture(f: Callable[..., Any]) -> dict[str, Tensor] | None:
    """The tensors that a module computes with now; ``functional_call`` may put others back before backward runs."""
    if not isinstance(f, torch.nn.Module):
        return None
    return {**dict(f.named_parameters()), **dict(f.named_buffers())}


@contextmanager
def as_captured(dynamics: Dynamics, tensors: dict[str, Tensor] | None) -> Iterator[None]:
    """Evaluate the dynamics with the tensors they had in the forward pass."""
    module = dynamics.f
    if tensors is None or all(now is tensors.get(name) for name, now in (capture(module) or {}).items()):
        yield
        return
    held = tensors
    dynamics.f = lambda t, y: torch.func.functional_call(module, held, (t, y))  # type: ignore[arg-type]
    try:
        yield
    finally:
        dynamics.f = module
