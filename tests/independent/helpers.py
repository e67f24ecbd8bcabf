"""Batches of problems that want very different steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import quadjoint as qj

DTYPE = torch.float64
ALONE: dict[str, Any] = {"controller": qj.PIDController()}  # of shared steps that are as those of a sample


class Relaxing(nn.Module):
    """A small network beside a relaxation towards sin(t) with a rate of each sample's own."""

    def __init__(self, rates: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).to(DTYPE)
        self.rates = rates

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        assert t.shape in ((), (len(y), 1))
        return self.net(y) - self.rates * (y - torch.sin(t))

    def alone(self, b: int) -> Relaxing:
        """The same function for one sample of the batch."""
        out = Relaxing(self.rates[b : b + 1])
        out.load_state_dict(self.state_dict())
        return out


def relaxing(*rates: float) -> tuple[Relaxing, Tensor]:
    """The function and initial states."""
    generator = torch.Generator().manual_seed(1)
    return Relaxing(torch.tensor(rates, dtype=DTYPE)[:, None]), torch.randn(
        len(rates), 2, dtype=DTYPE, generator=generator
    )


def oscillators(count: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Tensor]:
    """Van der Pol oscillators with mu from 1 to 24, started at (1, 1)."""
    mu = torch.linspace(1.0, 24.0, count, dtype=dtype)[:, None]

    def f(t: Tensor, y: Tensor) -> Tensor:
        x, v = y[:, :1], y[:, 1:]
        return torch.cat([v, mu * (1 - x * x) * v - x], dim=1)

    return f, torch.ones(count, 2, dtype=dtype)
