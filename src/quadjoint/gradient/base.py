"""What a gradient method is, and the one autograd function behind all that are not direct."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from quadjoint.autograd.captured import Gates, as_captured, capture
from quadjoint.solver.control import GridControl
from quadjoint.solver.methods.compiled import reusable
from quadjoint.solver.problem import Problem


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
        points = problem.solver.points if self.exact_clock else None
        observed = problem.make_observer().points if self.exact_clock else None
        if not torch.is_grad_enabled() or not (y0.requires_grad or problem.params or points is not None):
            with torch.no_grad():
                return problem.run(y0)
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
        y0, points, observed, *_ = ctx.saved_tensors  # which autograd refuses if one was changed in place
        (grad_ys,) = grads
        problem: Problem = ctx.problem
        if torch.is_grad_enabled():
            return None, None, *differentiable(problem, ctx.tensors, y0, points, observed, grad_ys)
        detached = _captured(problem, ctx.tensors, lambda x: x.detach().requires_grad_(x.requires_grad))
        with detached as same, reusable(), hooks_aside(same.params):
            out = ctx.method.backward(same, ctx.memory, grad_ys)
        if not graph_is_kept():
            ctx.memory = None  # as autograd frees what it saved, also while the result of the solve lives on
        return None, None, out.y0, out.points, out.observed, *out.params


@contextmanager
def hooks_aside(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Take off the hooks of tensors: they are for the gradient of the whole solve, not for those of its parts."""
    held = [(hooks, dict(hooks)) for x in tensors if (hooks := x._backward_hooks)]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in held:
            hooks.update(own)


def graph_is_kept() -> bool:
    """Whether the running backward pass was asked to retain its graph; taken for granted where torch does not say."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


def differentiable(problem: Problem, tensors: dict[str, Tensor] | None, y0: Tensor, points: Tensor | None,
                    observed: Tensor | None, grad_ys: Tensor) -> list[Tensor | None]:  # fmt: skip
    """Gradients that can be differentiated again (``create_graph=True``): solve once more, recorded by autograd."""
    gates = Gates()
    y0, points, observed = gates(y0), _through(gates, points), _through(gates, observed)

    def make_control() -> Any:
        control = problem.solver.make_control()
        assert isinstance(control, GridControl)
        control.points = points
        return control

    def make_observer() -> Any:
        observer = problem.make_observer()
        observer.points = observed
        return observer

    with _captured(problem, tensors, gates) as same:
        again = same.again()
        again.solver = replace(again.solver, stepper=again.solver.eager, points=points)
        if points is not None:
            again.solver.make_control = make_control
        if observed is not None:
            again.make_observer = make_observer
        ys = again.run(y0)
        return gates.gradients(ys, [y0, points, observed, *same.params], grad_ys)


def _through(gates: Gates, x: Tensor | None) -> Tensor | None:
    return None if x is None else gates(x)


@contextmanager
def _captured(
    problem: Problem, tensors: dict[str, Tensor] | None, copy: Callable[[Tensor], Tensor]
) -> Iterator[Problem]:
    """The problem with the tensors of the forward pass, where the module has others by now, as copies."""
    if tensors is None or all(now is tensors.get(name) for name, now in (capture(problem.f.f) or {}).items()):
        yield problem
        return
    copies = {id(x): copy(x) for x in tensors.values()}
    params = tuple(copies.get(id(p), p) for p in problem.params)
    with as_captured(problem.f, {name: copies[id(x)] for name, x in tensors.items()}):
        # A compiled graph computes with the tensors that the module has now.
        yield replace(problem, params=params, solver=replace(problem.solver, stepper=problem.solver.eager))
