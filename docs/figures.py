"""Draws the pictures of the documentation from solves, not by hand: python docs/figures.py (two minutes on one core).

Every picture is written twice, for light and for dark pages, to docs/assets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import quadjoint as qj

ASSETS = Path(__file__).parent / "assets"
COLOURS = {
    "direct": "#7f7f7f",
    "discrete": "#2ca02c",
    "gq": "#1f77b4",
    "gq-paper": "#9467bd",
    "seminorm": "#ff7f0e",
    "adjoint": "#d62728",
}


def lotka_volterra(t: Tensor, y: Tensor) -> Tensor:
    prey, predator = y[..., 0], y[..., 1]
    return torch.stack([prey * (1 - predator), predator * (prey - 1)], dim=-1)


class Logged(nn.Module):
    """Dynamics with one parameter that remember the times at which they were evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.times: list[float] = []
        self.steps: list[float] = []

    def callback_accept_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
        self.steps.append(float(t + dt))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.times.append(float(t))
        return self.scale * lotka_volterra(t, y)


@dataclass(frozen=True)
class Recorded:
    """A node policy that remembers the nodes that another one gave."""

    policy: qj.NodePolicy
    nodes_given: list[float] = field(default_factory=list, compare=False)

    @property
    def per(self) -> str:
        return self.policy.per

    def nodes(self, span: qj.Span) -> list[tuple[float, float]]:
        found = self.policy.nodes(span)
        self.nodes_given.extend(t for t, _ in found)
        return found


def nodes_on_a_trajectory(ink: str) -> plt.Figure:
    """Where the forward solve and the backward passes evaluate the network."""
    y0, t = torch.tensor([1.0, 0.2]), torch.tensor([0.0, 4.0, 8.0])
    f = Logged()
    sol = qj.solve(f, y0, t, rtol=1e-3, atol=1e-3, gradient=qj.DiscreteAdjoint(mode="joint", activations=0))
    forward, f.times = f.times, []
    sol.ys.square().sum().backward()
    transposed, f.times = f.times, []
    policy = Recorded(qj.Heuristic())
    qj.odeint(f, y0, t, rtol=1e-3, atol=1e-3, gradient=qj.QuadratureAdjoint(policy)).square().sum().backward()
    ys = qj.odeint(f, y0, t, rtol=1e-3, atol=1e-3, gradient="gq")
    f.times = []
    ys.square().sum().backward()
    collocated = f.times[2:]  # the first two hold f against stages of the forward solve
    figure, (curve, rows) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(1.5, 1))
    grid = np.linspace(0, 8, 400)
    path = sol(torch.as_tensor(grid)).detach()
    curve.plot(grid, path[:, 0], color=ink, lw=1.3)
    curve.plot(f.steps, sol(torch.tensor(f.steps)).detach()[:, 0], "o", color=ink, ms=3.5, label="accepted steps")
    curve.plot(t, sol.ys[:, 0].detach(), "D", color="#d62728", ms=6, label="observations")
    curve.set_ylabel("y(t)")
    curve.legend(frameon=False)
    lines = [
        ("forward stages", forward, ink),
        ("gq-paper: nodes", policy.nodes_given, COLOURS["gq-paper"]),
        ("gq: nodes", collocated, COLOURS["gq"]),
        ("discrete: stages,\ntransposed", transposed, COLOURS["discrete"]),
    ]
    for i, (_, times, colour) in enumerate(lines):
        rows.plot(times, np.full(len(times), -i), "|", color=colour, ms=13, mew=1.2)
    rows.set(xlabel="t", ylim=(-3.6, 0.6), yticks=range(0, -4, -1))
    rows.set_yticklabels([f"{name} ({len(times)})" for name, times, _ in lines])
    for time in t[1:]:
        rows.axvline(time, color="#d62728", lw=0.8, ls=":")
    return figure


def model(scale: float, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    """A two-layer softplus network with its weights scaled, and 20 initial states in five dimensions."""
    generator = torch.Generator().manual_seed(0)
    f = qj.nn.TimeMLP(5, width=50).to(torch.float64)
    with torch.no_grad():
        for p in f.parameters():
            bound = scale / (p.shape[-1] if p.ndim > 1 else 50) ** 0.5
            p.copy_(bound * (2 * torch.rand(p.shape, generator=generator, dtype=torch.float64) - 1))
    y0 = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    return f.to(dtype), y0.to(dtype)


@cache
def gradient(scale: float, how: str, count: int, tolerance: float, dtype: torch.dtype) -> tuple[Tensor, qj.Stats]:
    """The parameter gradient for ``count`` observations on [0, 1]."""
    f, y0 = model(scale, dtype)
    times = torch.linspace(0, 1, count)
    method = qj.DiscreteAdjoint(activations=0) if how == "discrete" else how  # counts every evaluation it may need
    sol = qj.solve(f, y0, times, rtol=tolerance, atol=tolerance, gradient=method)
    sol.ys.square().mean().backward()
    return torch.cat([p.grad.flatten().double() for p in f.parameters()]), sol.stats


def error_of_the_gradient(ink: str) -> plt.Figure:
    """Relative error of the parameter gradient as the dynamics get stronger."""
    scales = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    exact = {s: gradient(s, "discrete", 2, 1e-9, torch.float64)[0] for s in scales}
    for name in ("adjoint", "seminorm", "gq-paper", "gq", "discrete"):
        errors, evaluations = [], []
        for s in scales:
            found, stats = gradient(s, name, 2, 1e-3, torch.float32)
            errors.append(float((found - exact[s]).norm() / exact[s].norm()))
            evaluations.append(stats.backward_evaluations)
        left.semilogy(scales, errors, "o-", ms=3.5, color=COLOURS[name], label=name)
        right.semilogy(scales, evaluations, "o-", ms=3.5, color=COLOURS[name], label=name)
        print(f"{name:9}", " ".join(f"{e:.1e}" for e in errors), evaluations)
    left.axhline(1.0, color=ink, lw=0.8, ls=":")
    left.set(xlabel="scale of the weights", ylabel="relative error of the gradient")
    right.set(xlabel="scale of the weights", ylabel="evaluations in the backward pass")
    left.legend(frameon=False, fontsize="small")
    return figure


def cost_of_observations(ink: str) -> plt.Figure:
    """Evaluations in the backward pass against the number of observations."""
    counts = [2, 3, 5, 10, 20, 35, 50, 75, 100]
    figure, axis = plt.subplots(figsize=(6.5, 4))
    for name in ("adjoint", "gq-paper", "gq", "discrete"):
        evaluations = []
        for k in counts:
            _, stats = gradient(2.0, name, k, 1e-3, torch.float32)
            evaluations.append(stats.backward_evaluations)
        axis.plot(counts, evaluations, "o-", ms=3.5, color=COLOURS[name], label=name)
        print(f"{name:9}", evaluations, "forward", stats.forward_evaluations)
    axis.axhline(stats.forward_evaluations, color=ink, lw=0.8, ls=":", label="forward solve")
    axis.set(xlabel="observations", ylabel="evaluations in the backward pass", ylim=(0, None))
    axis.legend(frameon=False, fontsize="small")
    return figure


def draw(name: str, figure_of: Callable[[str], plt.Figure]) -> None:
    for theme, ink in (("light", "#222222"), ("dark", "#dddddd")):
        style = {
            "text.color": ink,
            "axes.labelcolor": ink,
            "xtick.color": ink,
            "ytick.color": ink,
            "axes.edgecolor": ink,
            "svg.fonttype": "path",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
            "svg.hashsalt": name,
        }
        with plt.rc_context(style):
            figure = figure_of(ink)
            figure.savefig(ASSETS / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ASSETS.mkdir(exist_ok=True)
    draw("nodes", nodes_on_a_trajectory)
    draw("accuracy", error_of_the_gradient)
    draw("observations", cost_of_observations)
