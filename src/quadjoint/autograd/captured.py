"""Autograd's graph: inputs that depend on each other, and modules whose tensors are exchanged for a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.dynamics import Dynamics


class Gate(torch.autograd.Function):
    """The identity; while ``gates`` are closed, no gradient passes."""

    @staticmethod
    def forward(ctx: Any, gates: Gates, x: Tensor) -> Tensor:
        ctx.gates = gates
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None if ctx.gates.closed else grads[0]


class Gates:
    """Tensors to differentiate in separately although some depend on others, as y0 may on a parameter of f.

    A gradient in the tensors behind closed gates is a partial one; once the gates are open again, derivatives of
    that gradient are total ones.
    """

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, x: Tensor) -> Tensor:
        return Gate.apply(self, x) if x.requires_grad else x

    def gradients(self, out: Tensor, inputs: Sequence[Tensor | None], seed: Tensor) -> list[Tensor | None]:
        """Partial gradients, themselves differentiable; None for inputs that are None or not differentiated in."""
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        self.closed = True
        try:
            found = iter(torch.autograd.grad(out, wanted, seed, create_graph=True, allow_unused=True))
        finally:
            self.closed = False
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
