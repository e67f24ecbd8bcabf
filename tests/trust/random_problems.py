"""Random initial value problems, each drawn from one seed so that a case can be named and drawn again.

Dynamics are small networks with different ways of holding their weights, of depending on time and of coupling samples
or parts of a tuple. All of them turn weakly inwards, so that a solve neither explodes nor forgets its start.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trust.helpers import DTYPE

State = Tensor | tuple[Tensor, ...]
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (5, 2), (4, 3), (2, 3, 2), (3, 9), (17, 2), (1, 4))
PATTERNS = ("two", "regular", "irregular", "clustered", "many")


def parts(y: State) -> tuple[Tensor, ...]:
    return (y,) if isinstance(y, Tensor) else y


class Net(nn.Module):
    """dy/dt = s V tanh(U y + b + c sin(t)) - y / 2 on the last dimension, coupled as ``coupling`` says."""

    def __init__(self, features: int, width: int, draw: torch.Generator, *, coupling: str, dtype: torch.dtype) -> None:
        super().__init__()

        def weights(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=draw, dtype=dtype) / shape[-1] ** 0.5)

        self.u, self.v = weights(width, features), weights(features, width)
        self.b, self.c = weights(width), weights(width)
        self.s = nn.Parameter(torch.tensor(1.0, dtype=DTYPE))
        self.coupling = coupling

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        flat = y.reshape(1) if y.ndim == 0 else y
        t = t if t.ndim == 0 else t.reshape(t.shape + (1,) * (flat.ndim - t.ndim))
        inside = flat @ self.u.T + self.b + self.c * torch.sin(t)
        return (self.s * torch.tanh(inside) @ self.v.T - 0.5 * flat).reshape(y.shape)

    def forward(self, t: Tensor, y: State) -> State:
        if not isinstance(y, Tensor):
            shared = torch.stack([part.mean() for part in y]).mean()
            return tuple(self.rate(t, part) + 0.2 * shared for part in y)
        if self.coupling == "mean" and y.ndim > 1:
            return self.rate(t, y - 0.5 * y.mean(0, keepdim=True))
        if self.coupling == "late" and y.ndim > 1:
            return self.rate(t, y) + 0.3 * torch.sigmoid(20.0 * (t - 0.5)) * (y.roll(1, 0) - y)
        return self.rate(t, y)


class Potential(nn.Module):
    """dy/dt = - grad of a potential, by autograd inside of f."""

    def __init__(self, features: int, width: int, draw: torch.Generator) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.randn(width, features, generator=draw, dtype=DTYPE))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        height = torch.log(torch.cosh(y @ self.u.T)).sum() / self.u.shape[0] + 0.1 * y.square().sum()
        (slope,) = torch.autograd.grad(height, y, create_graph=True)
        return -slope


@dataclass
class Case:
    """A problem: its dynamics and their parameters, the initial state, the times."""

    f: Callable[..., Any]
    params: Sequence[Tensor]
    y0: State
    t: Tensor
    words: str

    def __str__(self) -> str:
        return self.words


def hold(net: nn.Module, kind: str) -> Callable[..., Any]:
    """The same dynamics as another kind of callable."""
    if kind == "closure":
        return lambda t, y: net(t, y)
    if kind == "partial":
        return functools.partial(lambda inner, t, y: inner(t, y), net)
    if kind == "method":
        return net.forward
    return net


def draw_times(draw: random.Random, pattern: str, *, backwards: bool) -> Tensor:
    inside = {
        "two": [],
        "regular": [i / 8 for i in range(1, 8)],
        "irregular": sorted(draw.uniform(0.02, 0.98) for _ in range(5)),
        "clustered": [0.5 + 1e-6 * i for i in range(4)],
        "many": sorted(draw.uniform(0.001, 0.999) for _ in range(60)),
    }[pattern]
    start, length = draw.choice([0.0, -0.4, 3.0]), draw.choice([0.3, 1.0, 2.0])
    t = torch.tensor([start + length * x for x in (0.0, *inside, 1.0)], dtype=DTYPE)
    return t.flip(0) if backwards else t


def draw_case(seed: int, *, complex_states: bool = True) -> Case:
    """The problem of a seed."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    kind = draw.choice(["module", "module", "closure", "partial", "method"])
    shape = draw.choice(SHAPES)
    pattern, backwards = draw.choice(PATTERNS), draw.random() < 0.25
    structure = draw.choice(["tensor"] * 5 + ["tuple", "complex", "potential"])
    coupling = draw.choice(["none", "none", "mean", "late"])
    per_sample = structure == "tensor" and len(shape) > 1 and draw.random() < 0.25
    features = shape[-1] if shape else 1
    if structure == "complex" and not complex_states:
        structure = "tensor"
    dtype = torch.complex128 if structure == "complex" else DTYPE
    net: nn.Module
    if structure == "potential":
        net = Potential(features, draw.randint(1, 6), numbers)
    else:
        net = Net(features, draw.randint(1, 8), numbers, coupling=coupling, dtype=dtype)
    y0: State = torch.randn(shape, generator=numbers, dtype=dtype)
    if structure == "tuple":
        y0 = (y0, torch.randn(2, features, generator=numbers, dtype=DTYPE))
    elif structure == "potential" and not shape:
        y0 = y0.reshape(1)
    t = draw_times(draw, pattern, backwards=backwards)
    if per_sample:
        speeds = torch.rand(shape[0], 1, generator=numbers, dtype=DTYPE) + 0.5
        t = speeds * (t - t[0]) + speeds
    words = (
        f"seed {seed}: {kind} of {structure} {shape}, coupling {coupling}, times {pattern}"
        f"{' per sample' if per_sample else ''}{' backwards' if backwards else ''}"
    )
    return Case(hold(net, kind), list(net.parameters()), y0, t, words)
