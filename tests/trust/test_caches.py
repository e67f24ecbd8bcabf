"""What is kept of functions between solves is bounded, weak and never in the way (20.11, 20.16)."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import Field, normal, times


@pytest.mark.parametrize("recorded", [False, True])
def test_solves_over_ever_new_intervals_leave_nothing_behind(recorded: bool) -> None:
    f, y0, draw = Field(), normal(2, 3), random.Random(0)

    def left_by_a_hundred() -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(100):
            with torch.set_grad_enabled(recorded):
                ys = qj.odeint(f, y0, times(0.0, 0.01 + 0.01 * draw.random()))
            if recorded:
                ys.sum().backward()
        del ys
        gc.collect()
        return sys.getallocatedblocks() - before

    left_by_a_hundred()  # more than are kept of one function
    # The interpreter's own free lists still grow, ever slower; what grows with the solves does so every time.
    assert min(left_by_a_hundred() for _ in range(6)) < 100, "less than one object a solve"


class Unhashable:
    """Equality by value and no hash, as a dataclass has."""

    def __init__(self) -> None:
        self.rate = torch.tensor(0.5, requires_grad=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable) and torch.equal(other.rate, self.rate)

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return -self.rate * y


@pytest.mark.parametrize("gradient", ["auto", "direct", "discrete", "gq"])
def test_a_function_that_cannot_be_hashed_is_solved(gradient: Any) -> None:
    f = Unhashable()
    ys = qj.odeint(f, torch.ones(1), torch.tensor([0.0, 1.0]), gradient=gradient, rtol=1e-5)
    (found,) = torch.autograd.grad(ys[-1].sum(), f.rate)
    assert found.item() == pytest.approx(-(2.718281828**-0.5), rel=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_function_that_cannot_be_hashed_is_compiled() -> None:
    f = Unhashable()
    ys = qj.odeint(f, torch.ones(1), torch.linspace(0, 1, 5), method="euler", compile=True)
    assert ys[-1].item() == pytest.approx((1 - 0.5 / 4) ** 4, rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_module_dies_with_its_last_reference() -> None:
    f = Field(dtype=torch.float32)
    alive = weakref.ref(f)
    qj.odeint(f, torch.ones(1, 3), torch.linspace(0, 1, 5), method="euler", compile=True).sum().backward()
    del f
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("gradient", ["auto", "direct", "discrete", "gq", "adjoint"])
def test_a_module_dies_with_its_last_reference(gradient: Any) -> None:
    f = Field()
    alive = weakref.ref(f)
    qj.odeint(f, normal(2, 3), times(0.0, 1.0), gradient=gradient).sum().backward()
    del f
    gc.collect()
    assert alive() is None
