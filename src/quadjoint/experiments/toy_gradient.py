"""Errors of the loss and of its gradients where both are known (the paper's section 5.1).

dz/dt = a z with loss L = z(T)² has L = z0² exp(2aT) and gradients 2 z0 exp(2aT), 2 T z0² exp(2aT) and
2 a z0² exp(2aT) in z0, a and T. One run solves for every T of the paper.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.experiments import config as shared
from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.contenders import scheme
from quadjoint.experiments.training import Context, Progress

NAME = "toy-gradient"
METHODS = (*shared.METHODS, "aca", "mali")
QUANTITIES = ("loss", "z0", "a", "T")


@dataclass(frozen=True)
class Config(RunConfig):
    """One method at one tolerance; width has no meaning here and is one."""

    width: int = 1
    a: float = 0.2
    z0: float = 10.0
    first: float = 19.0
    last: float = 29.0
    points: int = 21
    rtol: float = 1e-3
    atol: float = 1e-3
    c: float = 0.1  # for gq-paper


def grid(choice: Choice) -> list[Config]:
    """Each method at the tolerance of the paper's other experiments, and at one a thousand times tighter."""
    base = Config(device=choice.device)
    tight = replace(base, rtol=1e-6, atol=1e-7, c=0.4)
    return [replace(cell, method=m) for cell in (base, tight) for m in choice.pick_methods(METHODS)]


def run(config: Config, context: Context) -> dict[str, Any]:
    times = torch.linspace(config.first, config.last, config.points, dtype=torch.float64).tolist()
    errors: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    evaluations: list[int] = []
    for done, end in enumerate(times, 1):
        start = time.perf_counter()
        found, stats = solve(config, end)
        for name, value in exact(config, end).items():
            errors[name].append(abs(found[name] - value) / abs(value))
        evaluations.append(stats.forward_evaluations + stats.backward_evaluations)
        context.progress(Progress(done, len(times), found["loss"], time.perf_counter() - start))
    final = {f"{name}_error": max(values) for name, values in errors.items()}
    return {"T": times, "errors": errors, "evaluations": evaluations, "final": final}


def exact(config: Config, end: float) -> dict[str, float]:
    """Loss and gradients in closed form."""
    growth = math.exp(2 * config.a * end)
    return {
        "loss": config.z0**2 * growth,
        "z0": 2 * config.z0 * growth,
        "a": 2 * end * config.z0**2 * growth,
        "T": 2 * config.a * config.z0**2 * growth,
    }


class Growth(nn.Module):
    """dz/dt = a z."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.a * z


def solve(config: Config, end: float) -> tuple[dict[str, float], Any]:
    """Loss and gradients by the method, in double precision, and the statistics of the solve."""
    how = scheme(config.method, c=config.c)
    f = Growth(config.a).to(config.device)
    z0 = torch.tensor([config.z0], dtype=torch.float64, device=config.device, requires_grad=True)
    t = torch.tensor([0.0, end], dtype=torch.float64, requires_grad=True)
    solution = qj.solve(f, z0, t, method=how.method, rtol=config.rtol, atol=config.atol, gradient=how.gradient)
    loss = (solution.ys[-1] ** 2).sum()
    in_z0, in_a, in_t = torch.autograd.grad(loss, (z0, f.a, t))
    return {"loss": float(loss.detach()), "z0": float(in_z0), "a": float(in_a), "T": float(in_t[1])}, solution.stats
