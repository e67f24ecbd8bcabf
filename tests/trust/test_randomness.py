"""Dynamics that draw random numbers meet one behaviour, whatever the gradient (12.16)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import DTYPE, GRADIENTS, assert_close, cases, normal, right_or_refused, times

WORDS = "draws random numbers"


class Dropped(nn.Module):
    """dy/dt = w m y with a mask m of dropout, another one in every evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.3, dtype=DTYPE))
        self.dropout = nn.Dropout(0.1)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.w * self.dropout(torch.ones_like(y)) * y


@pytest.fixture(autouse=True)
def _reproducible() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def as_module() -> Any:
    return Dropped()


def as_function() -> Any:
    f = Dropped()
    return lambda t, y: f(t, y)


@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
@pytest.mark.parametrize(
    ("make", "gradient"),
    cases([as_module, as_function], GRADIENTS),
)
def test_adaptive_steps_with_dropout_are_refused(make: Any, gradient: Any, method: str) -> None:
    with pytest.raises(ValueError, match=WORDS):
        qj.odeint(make(), normal(4, 3), times(0.0, 1.0), method=method, gradient=gradient, rtol=0.1, atol=0.1)


def test_the_refusal_is_the_same_for_every_gradient() -> None:
    messages = set()
    for gradient in ("discrete", "gq", "gq-paper", "adjoint", "seminorm"):
        with pytest.raises(ValueError, match=WORDS) as error:
            qj.odeint(Dropped(), normal(4, 3), times(0.0, 1.0), gradient=gradient, rtol=0.1, atol=0.1)
        messages.add(str(error.value))
    assert len(messages) == 1


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_evaluation_mode_is_not_random(gradient: Any) -> None:
    f = Dropped().eval()
    ys = qj.odeint(f, torch.ones(1, dtype=DTYPE), times(0.0, 1.0), gradient=gradient, rtol=1e-6, atol=1e-6)
    assert_close(torch.autograd.grad(ys[-1].sum(), f.w), [torch.tensor(0.3, dtype=DTYPE).exp()], within=1e-3)


@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_fixed_steps_with_dropout_are_right_or_refused(gradient: Any) -> None:
    """Euler's steps multiply by 1 + w r, so that the derivative in w follows from the states."""
    f = Dropped()

    def compute() -> tuple[Tensor, ...]:
        ys = qj.odeint(f, torch.ones(4, 3, dtype=DTYPE), torch.linspace(0, 1, 11), method="euler", gradient=gradient)
        ratio = (ys[1:] / ys[:-1]).detach()
        wanted = (ys[-1].detach() * ((1.0 - 1.0 / ratio) / f.w.detach()).sum(0)).sum()
        (found,) = torch.autograd.grad(ys[-1].sum(), f.w)
        return (found / wanted,)

    if gradient == "direct":
        assert_close(compute(), [torch.ones((), dtype=DTYPE)], within=1e-9)
    else:
        right_or_refused(compute, [torch.ones((), dtype=DTYPE)], within=1e-9, words=WORDS)
