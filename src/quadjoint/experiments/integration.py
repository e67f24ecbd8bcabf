"""How fast rules of integration converge on the integral in the gradient (the paper's appendix D).

The gradient in the parameters is the integral of a(t)ᵀ ∂f/∂θ over time. Along one trajectory of a small network, known
almost to rounding, the integral is computed by Newton and Cotes' rules, by Gauss-Legendre quadrature and by Monte
Carlo, with more and more evaluations of the integrand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.training import Context, Progress
from quadjoint.nn import TimeMLP

NAME = "integration"
TIGHT: dict[str, Any] = {"method": "dopri8", "rtol": 1e-11, "atol": 1e-12}
Rule = tuple[np.ndarray, np.ndarray]  # nodes and weights on [0, 1]


@dataclass(frozen=True)
class Config(RunConfig):
    """One rule, which stands where others have their method."""

    method: str = "gauss"
    batch: int = 20
    dim: int = 5
    scale: float = 3.0  # of the weights: drawn as usual, they make dynamics so mild that five nodes are exact
    draws: int = 16  # of Monte Carlo


def composite(coefficients: tuple[int, ...], panels: int) -> Rule:
    """A rule of Newton and Cotes, applied to equal panels.

    >>> nodes, weights = composite((1, 4, 1), 2)  # Simpson's rule twice
    >>> nodes.tolist(), (12 * weights).round().tolist()
    ([0.0, 0.25, 0.5, 0.75, 1.0], [1.0, 4.0, 2.0, 4.0, 1.0])
    """
    degree = len(coefficients) - 1
    weights = np.zeros(panels * degree + 1)
    for k in range(panels):
        weights[k * degree : (k + 1) * degree + 1] += np.array(coefficients) / sum(coefficients) / panels
    return np.linspace(0, 1, panels * degree + 1), weights


def gauss(nodes: int) -> Rule:
    x, w = qj.quadrature.gauss_legendre(nodes)
    return (1 + x) / 2, w / 2


def monte_carlo(count: int, random: np.random.Generator) -> Rule:
    return random.random(count), np.full(count, 1 / count)


RULES: dict[str, tuple[Callable[[int], Rule], tuple[int, ...]]] = {
    "trapezoid": (lambda n: composite((1, 1), n), (1, 2, 4, 8, 16, 32, 64)),
    "simpson": (lambda n: composite((1, 4, 1), n), (1, 2, 4, 8, 16, 32)),
    "boole": (lambda n: composite((7, 32, 12, 32, 7), n), (1, 2, 4, 8, 16)),
    "gauss": (gauss, tuple(range(1, 13))),
}
COUNTS = (5, 9, 17, 65, 257)  # of Monte Carlo, as of other rules
METHODS = (*RULES, "monte-carlo")


def grid(choice: Choice) -> list[Config]:
    """Every rule once, whatever the preset."""
    return [replace(Config(device=choice.device), method=rule) for rule in choice.pick_methods(METHODS)]


def run(config: Config, context: Context) -> dict[str, Any]:
    start = time.perf_counter()
    sizes = COUNTS if config.method == "monte-carlo" else RULES[config.method][1]
    rules = [_rules(config, size) for size in sizes]
    exact, *found = Problem(config).integral([gauss(40), *(rule for group in rules for rule in group)])
    off = iter([float((value - exact).norm() / exact.norm()) for value in found])
    errors = [_root_mean_square([next(off) for _ in group]) for group in rules]
    context.progress(Progress(1, 1, errors[-1], time.perf_counter() - start))
    evaluations = [len(group[0][0]) for group in rules]
    return {"evaluations": evaluations, "errors": errors, "final": {"error": errors[-1]}}


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(sum(x * x for x in values) / len(values))


def _rules(config: Config, size: int) -> list[Rule]:
    if config.method != "monte-carlo":
        return [RULES[config.method][0](size)]
    random = np.random.default_rng(config.seed)
    return [monte_carlo(size, random) for _ in range(config.draws)]


class Problem:
    """State and adjoint of a solve from 0 to 1 with the loss mean(y(1)²), at any times; the integral by any rule."""

    def __init__(self, config: Config) -> None:
        generator = torch.Generator().manual_seed(config.seed)
        self.f = TimeMLP(config.dim, config.width).double()
        with torch.no_grad():
            for parameter in self.f.parameters():
                fan = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.2
                parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * fan * config.scale)
        self.f.to(config.device)
        y0 = torch.randn(config.batch, config.dim, generator=generator).double().to(config.device)
        with torch.no_grad():
            self.end = qj.odeint(self.f, y0, torch.tensor([0.0, 1.0]), **TIGHT)[-1]

    def backwards(self, t: Tensor, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """dy/dt = f and da/dt = -aᵀ ∂f/∂y."""
        y, a = pair
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            out = self.f(t, y)
            (product,) = torch.autograd.grad(out, y, -a)
        return out.detach(), product

    def integral(self, rules: list[Rule]) -> list[Tensor]:
        """The integral by every rule: one solve backwards through all nodes, one product with the weights for each."""
        nodes = np.unique(np.concatenate([rule[0] for rule in rules]))
        times = torch.tensor(np.unique([0.0, 1.0, *nodes])[::-1].copy())
        with torch.no_grad():
            pair = (self.end, 2 * self.end / self.end.numel())
            y, a = qj.odeint(self.backwards, pair, times, **TIGHT)
        place = {float(t): k for k, t in enumerate(times)}
        found = []
        for at, weights in rules:
            rows = [place[float(t)] for t in at]
            t = times[rows].to(y)[:, None].expand(-1, y.shape[1])
            w = torch.tensor(weights).to(y)[:, None, None]
            total = (w * a[rows] * self.f(t, y[rows])).sum()
            parts = torch.autograd.grad(total, list(self.f.parameters()))
            found.append(torch.cat([part.flatten() for part in parts]))
        return found
