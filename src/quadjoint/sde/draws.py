"""The coefficients ξ of a smooth Wiener path: kept, or drawn again from their seed in every evaluation.

Both stores draw block by block from the same stream and sum the blocks in the same order with the same
products, so that they agree to the bit. A block is one vectorised product over `BLOCK` terms: up to that
many terms, an evaluation is a single product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from quadjoint.autograd.captured import without_autocast

BLOCK = 16


def seed_and_device(seed: int | None, generator: torch.Generator | None) -> tuple[int, torch.device]:
    """The seed of a path and the device on which its numbers are drawn; a generator moves on by one draw."""
    if (seed is None) == (generator is None):
        raise ValueError(
            "give either seed= (an integer) or generator= (a torch.Generator); the global one is never used."
        )
    if generator is None:
        assert seed is not None
        return int(seed), torch.device("cpu")
    number = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return int(number), generator.device


class Coefficients:
    """ξ_1 … ξ_m, independent standard normal tensors of one shape, determined by a seed."""

    def __init__(
        self,
        shape: torch.Size,
        terms: int,
        seed: int,
        source: torch.device,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape, self.terms = shape, terms
        self.seed, self.source = seed, source
        self.dtype, self.device = dtype, device

    def draw(self) -> Iterator[Tensor]:
        """Blocks of at most `BLOCK` coefficients: (block, *shape). Term by term, so that m is open-ended."""
        generator = torch.Generator(self.source).manual_seed(self.seed)
        for start in range(0, self.terms, BLOCK):
            size = min(BLOCK, self.terms - start)
            block = torch.empty(size, *self.shape, dtype=self.dtype, device=self.device)
            for xi in block:
                xi.copy_(torch.randn(self.shape, generator=generator, dtype=torch.float32, device=self.source))
            yield block

    def aligned(self, weights: Tensor) -> Tensor:
        """Weights (terms, *s) as (terms, *stack, *s') in the dtype of ξ, s' with as many dimensions as ξ.

        Times of fewer dimensions than ξ belong to its first ones (the batch), those of more are a stack.
        """
        missing = max(len(self.shape) + 1 - weights.dim(), 0)
        return weights.to(self.dtype).reshape(*weights.shape, *[1] * missing)


class Kept(Coefficients):
    """All of ξ in memory."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.blocks = tuple(self.draw())

    def combine(self, weights: Tensor) -> Tensor:
        """Σ_i weights_i ξ_i."""
        return weighted_sum(self.aligned(weights), self.blocks, self.shape)


class Regenerated(Coefficients):
    """Only the seed in memory; works under autograd and ``torch.func.vmap``, where drawing is not allowed."""

    def combine(self, weights: Tensor) -> Tensor:
        """Σ_i weights_i ξ_i, by a running sum over freshly drawn blocks."""
        return cast(Tensor, _RunningSum.apply(self.aligned(weights), self))


def weighted_sum(weights: Tensor, blocks: Iterable[Tensor], shape: torch.Size) -> Tensor:
    """Σ_i weights_i ξ_i over blocks of ξ, for aligned weights."""
    total, start = None, 0
    for block in blocks:
        part = _block_sum(weights[start : start + len(block)], block, shape)
        total = part if total is None else total + part
        start += len(block)
    return weights.new_zeros(torch.broadcast_shapes(weights.shape[1:], shape)) if total is None else total


def _block_sum(weights: Tensor, block: Tensor, shape: torch.Size) -> Tensor:
    split = weights.dim() - len(shape)
    stack = weights.shape[1:split]
    if weights.shape[split:].numel() == 1:  # one time for all of ξ: a matrix product over the stack
        rows = weights.reshape(len(block), -1).T if stack else weights.reshape(len(block))
        # Contiguous rows, also within vmap's view: its stack is then the same matrix product as an explicit
        # one.
        rows = rows.clone(memory_format=torch.contiguous_format)
        with without_autocast(block.device.type):  # the path is the same, whatever the precision of drift and diffusion
            return (rows @ block.reshape(len(block), -1)).reshape(*stack, *shape)
    return (weights * block.reshape(len(block), *[1] * len(stack), *shape)).sum(0)


class _RunningSum(torch.autograd.Function):
    """`weighted_sum` over blocks that are drawn on the way; linear, so its derivatives need no values."""

    @staticmethod
    def forward(weights: Tensor, xi: Regenerated) -> Tensor:
        return weighted_sum(weights, xi.draw(), xi.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Regenerated], output: Tensor) -> None:
        ctx.xi, ctx.size = inputs[1], inputs[0].shape[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _RunningProducts.apply(grad, ctx.xi, ctx.size), None

    @staticmethod
    def jvp(ctx: Any, weights: Tensor, _: None) -> Tensor:
        return cast(Tensor, _RunningSum.apply(weights, ctx.xi))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], weights: Tensor, xi: Regenerated) -> tuple[Tensor, int]:
        return cast(Tensor, _RunningSum.apply(weights.movedim(in_dims[0], 1), xi)), 0


class _RunningProducts(torch.autograd.Function):
    """The transpose of `_RunningSum`: ⟨grad, ξ_i⟩ for all i, over what weights_i was spread over."""

    @staticmethod
    def forward(grad: Tensor, xi: Regenerated, size: torch.Size) -> Tensor:
        rows = [(grad * term).sum_to_size(size) for block in xi.draw() for term in block]
        return torch.stack(rows) if rows else grad.new_zeros((0, *size))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Regenerated, torch.Size], output: Tensor) -> None:
        ctx.xi = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return cast(Tensor, _RunningSum.apply(grad, ctx.xi)), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], grad: Tensor, xi: Regenerated, size: torch.Size
    ) -> tuple[Tensor, int]:
        stacked = torch.Size((info.batch_size, *size))
        return cast(Tensor, _RunningProducts.apply(grad.movedim(in_dims[0], 0), xi, stacked)), 1
