"""Peak memory against tolerance on the exponential of the gradient study, T = 15 (the paper's section 5.2).

A tighter tolerance means more steps; a method is lean if its memory does not grow with them. ``width`` is the number
of copies of the equation that are solved together: 1 as in the paper, where a few bytes of bookkeeping are
most of what is held, and more, where the state is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import quadjoint as qj
from quadjoint.experiments import config as shared
from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.contenders import scheme
from quadjoint.experiments.timing import peak_memory
from quadjoint.experiments.toy_gradient import Growth
from quadjoint.experiments.training import Context, Progress

NAME = "memory"
METHODS = (*shared.METHODS, "aca", "mali")
TOLERANCES = tuple(10.0**-k for k in range(2, 11))


@dataclass(frozen=True)
class Config(RunConfig):
    """One method over all tolerances."""

    width: int = 1
    a: float = 0.2
    z0: float = 10.0
    end: float = 15.0
    loosest: float = 1e-2
    tightest: float = 1e-10


def grid(choice: Choice) -> list[Config]:
    base = Config(device=choice.device)
    sizes = (1, 1000) if choice.widths is None else choice.widths
    methods = choice.pick_methods(METHODS)
    return [
        replace(base, method=method, width=size, tightest=_tightest(method)) for size in sizes for method in methods
    ]


def _tightest(method: str) -> float:
    """The leapfrog is of order two: at 1e-10 it would take millions of steps."""
    return 1e-6 if method == "mali" else 1e-10


def run(config: Config, context: Context) -> dict[str, Any]:
    tolerances = [tol for tol in TOLERANCES if config.tightest * 0.99 < tol < config.loosest * 1.01]
    peaks: list[int] = []
    _gradient(config, tolerances[0])  # caches and lookup tables are filled by the first solve
    for done, tolerance in enumerate(tolerances, 1):
        start = time.perf_counter()
        peaks.append(peak_memory(partial(_gradient, config, tolerance), config.device))
        context.progress(Progress(done, len(tolerances), float(peaks[-1]), time.perf_counter() - start))
    final = {"bytes_loosest": peaks[0], "bytes_tightest": peaks[-1]}
    return {"tolerances": tolerances, "peak_memory": peaks, "final": final}


def _gradient(config: Config, tolerance: float) -> None:
    """One solve and gradient; discrete may keep no activations, as it would keep all of so small a solve."""
    how = scheme(config.method)
    gradient = qj.DiscreteAdjoint(activations=0) if config.method == "discrete" else how.gradient
    f = Growth(config.a).to(config.device)
    z0 = torch.full((config.width,), config.z0, dtype=torch.float64, device=config.device, requires_grad=True)
    t = torch.tensor([0.0, config.end], dtype=torch.float64)
    # odeint, not solve: a Solution would keep its dense output, whatever the gradient method.
    ys = qj.odeint(f, z0, t, method=how.method, rtol=tolerance, atol=tolerance, gradient=gradient)
    (ys[-1] ** 2).sum().backward()
