"""Vector-Jacobian products of the dynamics, one at a time or stacked, and the sums of their parameter parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.tape import NOTHING, Graph, record
from quadjoint.solver.dynamics import Dynamics, Time, stack_call
from quadjoint.solver.problem import Problem

# Stacking pays until a product has about this many rows; beyond it the weights are no longer what is waited for.
CHUNK_ROWS = 512


class Products:
    """Products a^T df/dy and a^T df/dtheta; the parameter parts are summed in place in ``sums``.

    Graphs are retained, as f may close over tensors that were computed before the solve and share their graph.
    """

    def __init__(self, problem: Problem) -> None:
        self.f: Dynamics = problem.f
        self.params, self.stats = problem.params, problem.stats
        self.sums: list[Tensor | None] = [None] * len(problem.params)

    def add(self, gradients: Sequence[Tensor | None], factor: float = 1.0) -> None:
        for i, g in enumerate(gradients):
            if g is not None:
                self.add_at(i, g, factor)

    def add_at(self, i: int, g: Tensor, factor: float = 1.0) -> None:
        """Add to the gradient of parameter i."""
        total = self.sums[i]
        if total is None:
            # autograd may hand out views or tensors that it still uses; own the memory once.
            self.sums[i] = g * factor if factor != 1.0 else g.clone()
        else:
            total.add_(g, alpha=factor)

    def add_product(self, i: int, a: Tensor, b: Tensor) -> None:
        """Add the matrix product a b to the gradient of parameter i, without another one of its size."""
        total = self.sums[i]
        if total is None:
            self.sums[i] = a @ b
        else:
            total.addmm_(a, b)

    def joint(self, t: Time, y: Tensor, a: Tensor, nudge: int = 0) -> Tensor:
        """a^T df/dy at one point; a^T df/dtheta goes to the sums."""
        out, y = self.record(t, y, nudge)
        return self.transpose(out, y, a)

    def transpose(self, out: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """a^T df/dy of an evaluation that was recorded; a^T df/dtheta goes to the sums."""
        if not out.requires_grad:
            return torch.zeros_like(y)
        g, *gradients = torch.autograd.grad(out, (y, *self.params), a, retain_graph=True, allow_unused=True)
        self.stats.vjp_state += 1
        self.stats.vjp_params += any(p is not None for p in gradients)
        self.add(gradients)
        return torch.zeros_like(y) if g is None else g

    def value_and_state(self, t: Time, y: Tensor, a: Tensor, nudge: int = 0) -> tuple[Tensor, Tensor]:
        """f and a^T df/dy at one point."""
        out, y = self.record(t, y, nudge)
        return out.detach(), self.transpose_state(out, y, a)

    def transpose_state(self, out: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """a^T df/dy of an evaluation that was recorded."""
        self.stats.vjp_state += 1
        if not out.requires_grad:
            return torch.zeros_like(y)
        (g,) = torch.autograd.grad(out, y, a, retain_graph=True, allow_unused=True)
        return torch.zeros_like(y) if g is None else g

    def record(self, t: Time, y: Tensor, nudge: int = 0, within: AbstractContextManager[Any] = NOTHING) -> Graph:
        """One recorded evaluation, and the input that it can be differentiated in."""
        self.stats.backward_evaluations += 1
        return record(lambda t, y: self.f(t, y, nudge), t, y, within)

    def stacked(self, times: Sequence[float] | Tensor, ys: Tensor, a: Tensor) -> None:
        """Sum of a_i^T df/dtheta over a stack of points, in chunks of one evaluation each."""
        if not self.params:
            return
        rows = max(1, math.prod(ys.shape[1:-1]))
        size = max(1, CHUNK_ROWS // rows)
        for first in range(0, len(ys), size):
            part = slice(first, first + size)
            self.add(self.stacked_gradients(times[part], ys[part], a[part]))

    def stacked_gradients(self, times: Sequence[float] | Tensor, ys: Tensor, a: Tensor) -> Sequence[Tensor | None]:
        """a^T df/dtheta summed over one stack; no state-sized gradient is formed."""
        outs = self.record_stack(times, ys)
        self.stats.vjp_params += 1
        if not outs.requires_grad:
            return [None] * len(self.params)
        return torch.autograd.grad(outs, self.params, a, retain_graph=True, allow_unused=True)

    def record_stack(self, times: Sequence[float] | Tensor, ys: Tensor) -> Tensor:
        """f at a stack of points, recorded by autograd: one call under vmap where f allows it."""
        self.stats.backward_evaluations += len(ys)
        with torch.enable_grad():
            return stack_call(self.f, times, ys)
