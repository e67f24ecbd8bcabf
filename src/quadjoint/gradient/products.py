"""Vector-Jacobian products of the dynamics, one at a time or stacked, and the sums of their parameter parts."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.aliases import Aliases
from quadjoint.autograd.leaves import Frontier
from quadjoint.autograd.recorded import NOTHING, Recording, record
from quadjoint.gradient.base import Task
from quadjoint.solver.dynamics import Dynamics, stack_call
from quadjoint.solver.protocols import Time

# Stacking pays until a product has about this many rows; beyond it the weights are no longer what is waited for.
CHUNK_ROWS = 512
LEAST_BYTES = 2**16  # that a stack may take in any case


class Products:
    """Products a^T df/dy and a^T df/dtheta; the parameter parts are summed in place in ``sums``.

    Graphs are retained, as f may close over tensors that were computed before the solve and share their graph.
    """

    def __init__(self, task: Task, aliases: Aliases | None = None) -> None:
        self.f: Dynamics = task.f
        self.params, self.stats, self.modules = task.params, task.stats, task.snapshot.modules
        self.aliases = Aliases(task.params) if aliases is None else aliases
        self.targets = self.aliases.of(task.params)
        self.sums: list[Tensor | None] = [None] * len(task.params)
        self.frontier = None if task.complete else Frontier([*task.params, *self.targets])
        self.strangers: list[weakref.ref[Tensor]] = []

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
        elif g.layout == total.layout == torch.strided:
            total.add_(g, alpha=factor)
        else:
            self.sums[i] = total + g * factor

    def add_product(self, i: int, a: Tensor, b: Tensor) -> None:
        """Add the matrix product a b to the gradient of parameter i, without another one of its size."""
        total = self.sums[i]
        if total is None:
            self.sums[i] = a @ b
        else:
            total.addmm_(a, b)

    def transpose(self, out: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """a^T df/dy of an evaluation that was recorded; a^T df/dtheta goes to the sums."""
        if not out.requires_grad:
            return torch.zeros_like(y)
        g, *gradients = torch.autograd.grad(out, (y, *self.targets), a, retain_graph=True, allow_unused=True)
        self.stats.vjp_state += 1
        self.stats.vjp_params += any(p is not None for p in gradients)
        self.add(gradients)
        return torch.zeros_like(y) if g is None else g

    def transpose_state(self, out: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """a^T df/dy of an evaluation that was recorded."""
        self.stats.vjp_state += 1
        if not out.requires_grad:
            return torch.zeros_like(y)
        (g,) = torch.autograd.grad(out, y, a, retain_graph=True, allow_unused=True)
        return torch.zeros_like(y) if g is None else g

    def record(self, t: Time, y: Tensor, nudge: int = 0, within: AbstractContextManager[Any] = NOTHING) -> Recording:
        """One recorded evaluation, and the input that it can be differentiated in."""
        self.stats.backward_evaluations += 1
        with self.aliases if self.aliases else NOTHING:
            recording = record(lambda t, y: self.f(t, y, nudge), t, y.detach(), within)
        self.watch(recording.out, recording.y)
        return recording

    def record_stack(self, times: Sequence[float] | Tensor, ys: Tensor) -> Tensor:
        """f at a stack of points, recorded by autograd: one call under vmap if f allows it."""
        self.stats.backward_evaluations += len(ys)
        with torch.enable_grad(), self.aliases if self.aliases else NOTHING:
            out = stack_call(self.f, times, ys, self.modules)
        self.watch(out, ys)
        return out

    def watch(self, out: Tensor, *inputs: Tensor) -> None:
        """Note tensors that an evaluation depends on and that nobody has named; ``inputs`` are the state and times."""
        if self.frontier is None or not out.requires_grad:
            return
        found = self.frontier.strangers(out, inputs)
        if found:
            self.strangers = [ref for ref in self.strangers if ref() is not None]
            self.strangers += [weakref.ref(x) for x in found]

    def finish(self) -> list[Tensor | None]:
        """The sums. Leaves that were met and not named, and that still live, have lost their gradient: an error."""
        found = {id(x): x for ref in self.strangers if (x := ref()) is not None}
        if found:
            shapes = ", ".join(str(tuple(x.shape)) for x in found.values())
            raise ValueError(
                "f depends on tensors that it did not use at the initial time, so their gradients would be lost "
                f"(shapes: {shapes}). Name them: params=[...], or make f a module that holds them; "
                "gradient='direct' needs no names."
            )
        return self.sums

    def add_stack(self, times: Sequence[float] | Tensor, ys: Tensor, a: Tensor) -> None:
        """Add a_i^T df/dtheta of a stack of points to the sums; no state-sized gradient is formed."""
        outs = self.record_stack(times, ys)
        self.stats.vjp_params += 1
        if outs.requires_grad:
            self.add(torch.autograd.grad(outs, self.targets, a, retain_graph=True, allow_unused=True))

    def stack_size(self) -> int:
        """Points in a stack: as many as pay, in no more memory than the gradients of the parameters take anyway."""
        f = self.f
        rows = max(1, f.shape[:-1].numel()) if f.shape else 1
        allowed = max(LEAST_BYTES, sum(p.numel() * p.element_size() for p in self.params))
        # A point is kept with its adjoint; the activations are a few times the state.
        return max(1, min(CHUNK_ROWS // rows, allowed // max(1, 8 * f.shape.numel() * f.dtype.itemsize)))
