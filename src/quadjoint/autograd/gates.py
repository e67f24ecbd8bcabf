"""Partial derivatives in tensors that depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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

    def gradients(
        self, outs: Sequence[Tensor], inputs: Sequence[Tensor | None], seeds: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Partial gradients, themselves differentiable; None for inputs that are None or not differentiated in."""
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        self.closed = True
        try:
            found = iter(torch.autograd.grad(outs, wanted, seeds, create_graph=True, allow_unused=True))
        finally:
            self.closed = False
        return [next(found) if x is not None and x.requires_grad else None for x in inputs]
