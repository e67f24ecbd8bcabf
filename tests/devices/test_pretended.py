"""Solves and gradients on a device that only pretends to compute: everything is where it belongs, and as wide as y0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from devices.pretended import META, PretendedDevice, WrongTensor

WIDER = (torch.float64, torch.complex128)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        assert t.device == y.device and t.dtype == y.dtype
        return self.layers(y) * torch.cos(t)


def gradient_of(how: Any, t: Tensor, **options: Any) -> tuple[PretendedDevice, PretendedDevice, qj.Solution]:
    """What was seen in the forward and in the backward pass."""
    f, y0 = Net().to(META), torch.ones(4, 3, device=META)
    with PretendedDevice(WIDER) as forward:
        sol = qj.solve(f, y0, t, gradient=how, **options)
    assert isinstance(sol.ys, Tensor) and sol.ys.device == META and sol.ys.dtype == torch.float32
    with PretendedDevice(WIDER) as backward:
        sol.ys.sum().backward()
    assert all(p.grad is not None and p.grad.device == META for p in f.parameters())
    return forward, backward, sol


TIMES = {"host": torch.linspace(0, 1, 5, dtype=torch.float64), "host, float32": torch.linspace(0, 1, 5)}


@pytest.mark.parametrize("t", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3", "dopri8", "rk4", "euler"])
@pytest.mark.parametrize("how", ["direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm"])
def test_gradients(how: str, method: str, t: Tensor) -> None:
    gradient_of(how, t, method=method)


def test_a_tensor_of_the_host_is_found_out() -> None:
    offset = torch.ones(3)
    with PretendedDevice(), pytest.raises((WrongTensor, RuntimeError)):
        qj.odeint(lambda t, y: y + offset, torch.ones(4, 3, device=META), torch.tensor([0.0, 1.0]))


def test_double_precision_is_found_out() -> None:
    with PretendedDevice(WIDER), pytest.raises(WrongTensor, match="float64"):
        qj.odeint(lambda t, y: (y.double() * 2.0).float(), torch.ones(4, 3, device=META), torch.tensor([0.0, 1.0]))
