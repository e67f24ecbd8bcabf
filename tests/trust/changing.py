"""Dynamics that hold tensors, flags and numbers, held in turn by all kinds of callables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import TIGHT, Field, normal, times, weigh

Scenario = tuple[Callable[..., Tensor], Sequence[Tensor], Callable[[], Any]]  # f, its parameters, what changes it
T = times(0.0, 0.4, 1.0)


class Conditioned(nn.Module):
    """A field with a condition in a plain attribute, a buffer, a number, and a mode for training."""

    def __init__(self) -> None:
        super().__init__()
        self.field = Field()
        self.condition = normal(3, seed=1)
        self.factor = 1.0
        self.register_buffer("offset", normal(3, seed=2))
        self.eval()

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        rate = self.field(t, y * self.condition + self.offset) * self.factor
        return 3.0 * rate if self.training else rate


class Outer(nn.Module):
    """Dynamics by a method, and by a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Conditioned()

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.inside(t, y)

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self.inside(t, y)


class Holder:
    """A callable that is no module."""

    def __init__(self) -> None:
        self.inside, self.condition = Conditioned(), normal(3, seed=3)

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.inside(t, y) * self.condition


def apply(net: nn.Module, t: Tensor, y: Tensor) -> Tensor:
    return net(t, y)


def other() -> Tensor:
    return normal(3, seed=9)


def with_module(wrap: Callable[[nn.Module], Callable[..., Tensor]], change: Callable[[Conditioned], Any]) -> Scenario:
    net = Conditioned()
    return wrap(net), list(net.parameters()), lambda: change(net)


def itself(net: nn.Module) -> nn.Module:
    return net


def in_closure(net: nn.Module) -> Callable[..., Tensor]:
    return lambda t, y: net(t, y)


def in_partial(net: nn.Module) -> Callable[..., Tensor]:
    return functools.partial(apply, net)


def in_method(net: nn.Module) -> Callable[..., Tensor]:
    outer = Outer()
    outer.inside = net
    return outer.rate


def in_module(net: nn.Module) -> Callable[..., Tensor]:
    outer = Outer()
    outer.inside = net
    return outer


def in_object(net: nn.Module) -> Callable[..., Tensor]:
    holder = Holder()
    holder.inside = net
    return holder


def gradients(scenario: Scenario, gradient: Any, *, changed: bool) -> list[Tensor]:
    f, params, change = scenario
    y0 = normal(4, 3).requires_grad_()
    loss = weigh(qj.odeint(f, y0, T, gradient=gradient, **TIGHT))
    if changed:
        change()
    return list(torch.autograd.grad(loss, [y0, *params]))
