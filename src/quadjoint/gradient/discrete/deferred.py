"""Weight gradients of linear layers, postponed until those of many evaluations can be computed as one product.

A layer with few rows has a weight gradient of a few rank-one terms, and writing it costs more than computing it. So
backward passes through recorded evaluations only note the pair (input, gradient of the output) of every layer; the
sum of their outer products is then one matrix product of many rows, added to the total in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from quadjoint.autograd import private
from quadjoint.autograd.captured import autocast_dtype
from quadjoint.autograd.recorded import Recording
from quadjoint.gradient.products import CHUNK_ROWS, LEAST_BYTES, Products
from quadjoint.solver.rows import Rows

Layer = tuple[int, int | None]  # indices of weight and bias among the parameters
PLAIN = (Tensor, torch.nn.Parameter)


class DeferredLinear(TorchFunctionMode):
    """Within this context, linear layers on ``params`` record themselves such that their products can be postponed."""

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.params = params
        self.index = {id(p): i for i, p in enumerate(params)}
        self.products: Products | None = None  # where the sums are, while a backward pass of ours runs
        self.task: int | None = None
        self.noted: dict[Layer, Rows] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear and not kwargs and len(args) == 3 and self._is_layer(*args[1:]):
            x, weight, bias = args
            layer = self.index[id(weight)], None if bias is None else self.index[id(bias)]
            if _plain(x):
                return _Linear.apply(x, weight, bias, self, layer)
        return func(*args, **(kwargs or {}))

    def _is_layer(self, weight: Tensor, bias: Tensor | None) -> bool:
        """A matrix and a vector, or none, of real numbers, both parameters of the solve as they are."""
        if id(weight) not in self.index or type(weight) not in PLAIN or weight.ndim != 2 or weight.is_complex():
            return False
        return bias is None or (id(bias) in self.index and type(bias) in PLAIN and bias.ndim == 1)

    def transpose(self, products: Products, recording: Recording, a: Tensor) -> Tensor:
        """As ``Products.transpose``, with the parameter products of linear layers noted.

        Only in this backward pass: if f itself calls autograd, even within it, it wants its gradients at once.
        """
        if not recording.out.requires_grad:
            return torch.zeros_like(recording.y)
        self.products = products
        try:
            with torch.enable_grad():
                out = _Begin.apply(recording.out, self)
            return products.transpose(out, recording.y, a)
        finally:
            self.products, self.task = None, None

    def begins(self) -> None:
        """Called first in a backward pass of ours."""
        self.task = private.backward_pass()

    @property
    def postpones(self) -> bool:
        """Whether the backward pass that is running is ours, and none within it."""
        return self.products is not None and self.task is not None and self.task == private.backward_pass()

    def flush(self, products: Products) -> None:
        """Add what is noted to the sums."""
        for layer in list(self.noted):
            self._add(layer, products)

    def note(self, layer: Layer, x: Tensor, g: Tensor) -> None:
        """Keep one pair of a layer; its product is made once there are enough rows."""
        assert self.products is not None
        rows = self.noted.setdefault(layer, Rows())
        rows.add(x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))
        allowed = max(LEAST_BYTES, self.params[layer[0]].numel() * g.element_size())
        size = (x.shape[-1] + g.shape[-1]) * g.element_size()
        if rows.count >= CHUNK_ROWS or (rows.count + len(rows.parts[0][0])) * size > allowed:
            self._add(layer, self.products)

    def _add(self, layer: Layer, products: Products) -> None:
        (weight, bias), (x, g) = layer, self.noted.pop(layer).take()
        products.stats.vjp_params += 1
        products.add_product(weight, g.T, x)
        if bias is not None:
            products.add_at(bias, g.sum(0))


def _plain(x: Tensor) -> bool:
    """Whether nothing else steps in: autocast, a transform of torch.func, hooks on saved tensors (a checkpoint)."""
    return (
        torch.is_grad_enabled()
        and autocast_dtype(x.device.type) is None
        and not private.inside_transform()
        and not private.saved_tensors_are_watched()
    )


class _Begin(torch.autograd.Function):
    """The identity, which tells a backward pass of ours from others."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, sink: DeferredLinear) -> Tensor:
        ctx.sink = sink
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.sink.begins()
        return grads[0], None


class _Linear(torch.autograd.Function):
    """x W^T + b, whose gradients in W and b are noted in a backward pass of ours, and else returned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sink: DeferredLinear, layer: Layer) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sink, ctx.layer = sink, layer
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (g,) = grads
        x, weight = ctx.saved_tensors
        in_x = g @ weight if ctx.needs_input_grad[0] else None
        if ctx.sink.postpones:
            ctx.sink.note(ctx.layer, x, g)
            return in_x, None, None, None, None
        # f itself differentiates: its own gradients are made at once, and can be differentiated again.
        rows = g.reshape(-1, g.shape[-1])
        in_weight = rows.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        return in_x, in_weight, rows.sum(0) if ctx.needs_input_grad[2] else None, None, None
