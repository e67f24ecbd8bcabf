"""Every tensor that f depends on gets its gradient, or an error names ``params=``; nothing is silently zero (12.2)."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import (
    DTYPE,
    GRADIENTS,
    TIGHT,
    Field,
    assert_close,
    cases,
    normal,
    right_or_refused,
    times,
    tolerance,
    weigh,
)

Found = tuple[Callable[..., Tensor], Sequence[Tensor]]  # f, and the tensors that it depends on
T = times(0.0, 0.4, 1.0)


def leaf(value: float) -> Tensor:
    return torch.tensor(value, dtype=DTYPE, requires_grad=True)


def grow(early: Tensor, late: Callable[[], Tensor], t: Tensor, y: Tensor) -> Tensor:
    """dy/dt = (early + late (t - 1/2)+) y, which asks for ``late`` only after t = 1/2."""
    rate = early if float(t) <= 0.5 else early + late() * (t - 0.5)
    return rate * y


# What modules reach ---------------------------------------------------------------------------------------------------


def second_order() -> Found:
    net = nn.Linear(4, 2, dtype=DTYPE)
    return qj.nn.SecondOrder(lambda t, y: torch.tanh(net(y))), list(net.parameters())


def list_of_modules() -> Found:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(4, 8, dtype=DTYPE), nn.Linear(8, 4, dtype=DTYPE)]

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.layers[1](torch.tanh(self.layers[0](y)))

    f = Layers()
    return f, [p for layer in f.layers for p in layer.parameters()]


def dictionary_of_tensors() -> Found:
    class Rates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = {"decay": leaf(0.7)}

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return -self.rates["decay"] * y

    f = Rates()
    return f, [f.rates["decay"]]


def buffer() -> Found:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rate", leaf(0.7))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return -self.rate * y

    f = Buffered()
    return f, [f.rate]


def wong_zakai() -> Found:
    drift, diffusion = Field(4), leaf(0.3)
    sde = qj.NeuralSDE(lambda t, y: drift(t, y), lambda t, y: diffusion * y)
    return qj.WongZakai(sde, 0.0, 1.0, terms=3).sample(normal(4, 4), seed=0), [*drift.parameters(), diffusion]


def module_in_function() -> Found:
    late = leaf(3.0)

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early = nn.Parameter(torch.tensor(-0.5, dtype=DTYPE))
            self.more = lambda: late

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return grow(self.early, self.more, t, y)

    f = Late()
    return f, [f.early, late]


REACHED = (second_order, list_of_modules, dictionary_of_tensors, buffer, wong_zakai)


def gradients(found: Found, gradient: Any, **settings: Any) -> list[Tensor | None]:
    f, tensors = found
    ys = qj.odeint(f, normal(4, 4).requires_grad_(), T, gradient=gradient, **{**TIGHT, **settings})
    return list(torch.autograd.grad(weigh(ys), tensors, allow_unused=True))


def same_weights(make: Callable[[], Found]) -> tuple[Found, Found]:
    """Two copies of the dynamics with equal values, so that nothing is remembered of one when the other is solved."""
    first, second = make(), make()
    with torch.no_grad():
        for a, b in zip(first[1], second[1], strict=True):
            b.copy_(a)
    return first, second


@pytest.mark.parametrize(
    ("make", "gradient"),
    cases(REACHED, GRADIENTS),
)
def test_what_a_module_reaches_is_found(make: Any, gradient: Any) -> None:
    one, two = same_weights(make)
    wanted = gradients(one, "direct")
    assert all(g is not None for g in wanted)
    assert_close(gradients(two, gradient), wanted, within=tolerance(gradient))


# What plain callables reach later -------------------------------------------------------------------------------------


def named_tuple() -> Found:
    Weights = namedtuple("Weights", ["early", "late"])
    weights = Weights(leaf(-0.5), leaf(3.0))
    return lambda t, y: grow(weights.early, lambda: weights.late, t, y), list(weights)


def slots() -> Found:
    class Slotted:
        __slots__ = ("early", "late")

        def __init__(self) -> None:
            self.early, self.late = leaf(-0.5), leaf(3.0)

        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            return grow(self.early, lambda: self.late, t, y)

    f = Slotted()
    return f, [f.early, f.late]


def super_call() -> Found:
    class Base:
        def __init__(self) -> None:
            self.early, self.late = leaf(-0.5), leaf(3.0)

        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            return grow(self.early, lambda: self.late, t, y)

    class Derived(Base):
        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            return super().__call__(t, y)

    f = Derived()
    return f, [f.early, f.late]


def class_method() -> Found:
    class Shared:
        early, late = leaf(-0.5), leaf(3.0)

        @classmethod
        def rate(cls, t: Tensor, y: Tensor) -> Tensor:
            return grow(cls.early, lambda: cls.late, t, y)

    return lambda t, y: Shared.rate(t, y), [Shared.early, Shared.late]


def cached_selector() -> Found:
    weights = {"early": leaf(-0.5), "late": leaf(3.0)}

    @functools.cache
    def select(name: str) -> Tensor:
        return weights[name]

    return lambda t, y: grow(select("early"), lambda: select("late"), t, y), list(weights.values())


def long_list() -> Found:
    numbers, weights = [[i] for i in range(20_000)], [leaf(-0.5), leaf(3.0)]
    return lambda t, y: len(numbers) / 20_000 * grow(weights[0], lambda: weights[1], t, y), weights


def computed_name() -> Found:
    class Named:
        def __init__(self) -> None:
            self.w0, self.w1 = leaf(-0.5), leaf(3.0)

        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            return grow(self.w0, lambda: getattr(self, f"w{1}"), t, y)

    f = Named()
    return f, [f.w0, f.w1]


LATE = (
    named_tuple,
    slots,
    super_call,
    class_method,
    cached_selector,
    long_list,
    computed_name,
    module_in_function,
)


@pytest.mark.parametrize(
    ("make", "gradient"),
    cases(LATE, GRADIENTS),
)
def test_a_tensor_that_is_first_used_later_is_found_or_asked_for(make: Any, gradient: Any) -> None:
    """Whatever evaluation of the backward pass reaches a tensor that nobody knew of says so."""
    settings = {"method": "rk4", "options": {"step_size": 0.05}}
    one, two = same_weights(make)
    wanted = gradients(one, "direct", **settings)
    right_or_refused(lambda: gradients(two, gradient, **settings), wanted, within=tolerance(gradient), words="params=")


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_parameters_of_a_module_count_also_if_they_are_used_later(gradient: Any) -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early = nn.Parameter(torch.tensor(-0.5, dtype=DTYPE))
            self.late = nn.Parameter(torch.tensor(3.0, dtype=DTYPE))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return grow(self.early, lambda: self.late, t, y)

    settings = {"method": "rk4", "options": {"step_size": 0.05}}
    wanted, found = (
        gradients((f, list(f.parameters())), g, **settings) for f, g in ((Late(), "direct"), (Late(), gradient))
    )
    assert_close(found, wanted, within=tolerance(gradient))
