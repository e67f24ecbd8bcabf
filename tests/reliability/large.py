"""Solves with many steps, many observations and large states, each in a process of its own so that its peak shows."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import quadjoint as qj
from reliability.load import good, memory

STEPS, OBSERVATIONS, NUMBERS = 10_000, 100_000, 10_000_000


class Rotation(torch.nn.Module):
    """dy/dt = w J y: the solution turns by the angle w t."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(rate, dtype=torch.float64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.w * torch.stack([-y[..., 1], y[..., 0]], -1)


@dataclass(frozen=True)
class Figures:
    """Of one solve with its gradient: the error of dL/dw, seconds, and bytes beyond those before it."""

    count: int
    error: float
    seconds: float = math.nan
    between: int = 0  # after the forward pass
    peak: int = 0


Solve = Callable[[str, Callable[[], None]], tuple[int, float]]


def many_steps(gradient: str, between: Callable[[], None] = lambda: None, rows: int = 1) -> tuple[int, float]:
    """Steps of fixed size, and the error of d/dw sin(10 w) = 10 cos(10 w), for ``rows`` copies of the rotation."""
    f = Rotation(1.0)
    y0, t = torch.tensor([[1.0, 0.0]] * rows, dtype=torch.float64), torch.tensor([0.0, 10.0], dtype=torch.float64)
    method = "alf" if gradient == "reversible" else "midpoint"
    # Not solve, whose dense output keeps every step.
    ys = qj.odeint(f, y0, t, method=method, options={"step_size": 10.0 / STEPS}, gradient=gradient)
    between()
    ys[-1, :, 1].mean().backward()
    assert f.w.grad is not None
    return STEPS, abs(float(f.w.grad) - 10 * math.cos(10))


def many_steps_of_a_larger_state(gradient: str, between: Callable[[], None]) -> tuple[int, float]:
    return many_steps(gradient, between, rows=250)


def many_observations(gradient: str, between: Callable[[], None] = lambda: None) -> tuple[int, float]:
    """Times observed, and the error of d/dw mean sin(w t) = mean t cos(w t).

    Backward solves that stop at every observation get a hundredth of them.
    """
    count = OBSERVATIONS if gradient in ("direct", "discrete", "gq", "auto") else OBSERVATIONS // 100
    f, t = Rotation(2.0), torch.linspace(0, 1, count, dtype=torch.float64)
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64)
    method = "alf" if gradient == "reversible" else "dopri5"
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if method == "alf" else {"rtol": 1e-8, "atol": 1e-9}
    ys = qj.odeint(f, y0, t, method=method, gradient=gradient, **tolerance)
    between()
    ys[:, 1].mean().backward()
    assert f.w.grad is not None
    return len(ys), abs(float(f.w.grad) - float((t * torch.cos(2 * t)).mean()))


def large_state(gradient: str, between: Callable[[], None] = lambda: None) -> tuple[int, float]:
    """Numbers in the state, and the error of d/dr mean y(1) = -exp(-r) for y' = -r y in steps of 1/4."""
    rate = torch.tensor(0.5, requires_grad=True)
    y0, times = torch.ones(NUMBERS), torch.tensor([0.0, 1.0])
    method = "alf" if gradient == "reversible" else "rk4"
    ys = qj.odeint(lambda t, y: -rate * y, y0, times, method=method, options={"step_size": 0.25}, gradient=gradient)
    between()
    ys[-1].mean().backward()
    assert rate.grad is not None
    return y0.numel(), abs(float(rate.grad) + math.exp(-0.5))


def in_a_child(solve: Solve, gradient: str) -> Figures:
    """Run in a forked process: memory that it takes is not there before, and its peak is its own."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, json.dumps(asdict(_measured(solve, gradient))).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive) as file:
        text = file.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"{solve.__name__} with gradient={gradient!r} failed; its words are above")
    return Figures(**json.loads(text))


def _measured(solve: Solve, gradient: str) -> Figures:
    good(gradient)()  # the pages of libraries that every solve needs come into memory before
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak so far is forgotten
    kept: list[int] = []
    before, clock = memory("VmRSS"), time.perf_counter()
    count, error = solve(gradient, lambda: kept.append(memory("VmRSS")))
    seconds = time.perf_counter() - clock
    return Figures(count, error, seconds, kept[0] - before, memory("VmHWM") - before)
