"""Threads share parameters with hooks, which no backward pass may touch (20.13)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import GRADIENTS, Field, cases, normal, relative, times, weigh


@pytest.fixture
def _busy_switching() -> Iterator[None]:
    """Threads take turns often, as on a machine with many cores."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_busy_switching")
@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_hooks_of_shared_parameters_are_called_in_every_thread(gradient: Any) -> None:
    """Hooks that double the gradient, two threads, twenty gradients each: all are doubled."""
    f, starts = Field(), [normal(4, 3), normal(4, 3, seed=1)]

    def differentiate(y0: Tensor) -> list[Tensor]:
        ys = qj.odeint(f, y0, times(0.0, 1.0), gradient=gradient, method="rk4", options={"step_size": 0.1})
        return list(torch.autograd.grad(weigh(ys), list(f.parameters())))

    wanted = [[2.0 * g for g in differentiate(y0)] for y0 in starts]
    for p in f.parameters():
        p.register_hook(lambda g: 2.0 * g)
    wrong: list[float] = []
    failures: list[BaseException] = []

    def work(y0: Tensor, right: list[Tensor]) -> None:
        try:
            for _ in range(20):
                error = relative(differentiate(y0), right)
                if error > 1e-6:
                    wrong.append(error)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(starts, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not wrong, f"{len(wrong)} of 40 gradients are wrong, by up to {max(wrong):.2g}"


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_hooks_are_there_while_the_backward_pass_runs(gradient: Any) -> None:
    """What f sees of its parameters' hooks is what the user put there."""
    seen: list[int] = []

    class Looking(Field):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():  # f may compute with an alias of the weight; this asks for the weight
                seen.append(len(self.inner.weight._backward_hooks or ()))
            return super().forward(t, y)

    f = Looking()
    f.inner.weight.register_hook(lambda g: g)
    ys = qj.odeint(f, normal(4, 3), times(0.0, 1.0), gradient=gradient)
    ys.sum().backward()
    assert set(seen) == {1}
