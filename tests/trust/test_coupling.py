"""Samples that influence each other only where the adjoint is small are noticed by every shortcut (12.3)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import DTYPE, assert_close, normal

DENSE = qj.GaussLegendre(solve="dense")
SHORTCUTS: tuple[Any, ...] = ("auto", "discrete", "gq", DENSE)


class Late(nn.Module):
    """dy/dt = (1 - w) a y + 3 w (mean(y) - y) with w = sigmoid(100 (t - 0.8)): growth first, then coupling."""

    def __init__(self, growth: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.growth = nn.Parameter(torch.tensor(growth, dtype=dtype))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        w = torch.sigmoid(100.0 * (t - 0.8))
        return (1 - w) * self.growth * y + 3 * w * (y.mean(0, keepdim=True) - y)


def gradients(f: nn.Module, y0: Tensor, gradient: Any, weights: Tensor) -> list[Tensor]:
    y0 = y0.clone().requires_grad_()
    ys = qj.odeint(f, y0, torch.tensor([0.0, 1.0]), gradient=gradient, rtol=1e-4, atol=1e-6)
    return list(torch.autograd.grad((ys[-1] * weights).sum(), [y0, *f.parameters()]))


@pytest.mark.parametrize("gradient", SHORTCUTS)
@pytest.mark.parametrize("dtype", [torch.float32, DTYPE])
@pytest.mark.parametrize("growth", [12.0, 40.0])
def test_coupling_where_the_adjoint_is_small(growth: float, dtype: torch.dtype, gradient: Any) -> None:
    """Before the coupling the adjoint is exp(0.8 growth) times as large as during it."""
    y0, weights = 0.01 * normal(4, 2, dtype=dtype), torch.eye(4, dtype=dtype)[:, :1]
    wanted = gradients(Late(growth, dtype), y0, "direct", weights)
    for found, right in zip(gradients(Late(growth, dtype), y0, gradient, weights), wanted, strict=True):
        assert_close([found], [right], within=1e-2 if gradient in ("gq", DENSE) else 1e-4)


class Pair(nn.Module):
    """The last samples are coupled, the first is on its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5, dtype=dtype))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        others = y[1:]
        return self.rate * torch.cat([-y[:1], others.mean(0, keepdim=True) - 2 * others])


@pytest.mark.parametrize("gradient", SHORTCUTS)
@pytest.mark.parametrize("dtype", [torch.float32, DTYPE])
def test_coupling_of_samples_that_count_little(dtype: torch.dtype, gradient: Any) -> None:
    """One sample counts 1e12 times as much as the others, whose gradients are right nevertheless."""
    weights = torch.tensor([[1e12], [1.0], [0.0], [0.0]], dtype=dtype)
    wanted, *_ = gradients(Pair(dtype), normal(4, 2, dtype=dtype), "direct", weights)
    found, *_ = gradients(Pair(dtype), normal(4, 2, dtype=dtype), gradient, weights)
    assert_close([found[1:]], [wanted[1:]], within=1e-2 if gradient in ("gq", DENSE) else 1e-4)
