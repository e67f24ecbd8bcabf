"""Sine curves: a second-order neural ODE on many observations (the paper's section 5.4 and appendix E.3).

The ablation compares 10 and 50 measurement times, regular and irregular. Irregular times are handled twice: as
the paper does it (``merged``: one solve with the union of all samples' times, and a mask), and with a row of times
for each sample (``per-sample``), which costs no more observations than regular times do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.experiments.config import METHODS, Choice, Plan, RunConfig, learning_rate
from quadjoint.experiments.contenders import neural_ode
from quadjoint.experiments.training import Batch, Context, Task, minibatches, train
from quadjoint.nn import SecondOrder, TimeMLP

NAME = "sines"
LEARNING_RATES = {5: 2e-2, 20: 8e-3, 200: 5e-4, 1000: 3e-5, 2000: 1e-5}
SPACINGS = ("regular", "merged", "per-sample")
KINDS: list[dict[str, Any]] = [{"times": times, "spacing": spacing} for times in (10, 50) for spacing in SPACINGS]
END = 2 * torch.pi


@dataclass(frozen=True)
class Config(RunConfig):
    """One training run; the defaults are the paper's."""

    epochs: int = 250
    batch: int = 15
    curves: int = 15
    test_curves: int = 5
    times: int = 50
    spacing: str = "regular"
    lr: float = 5e-4
    tolerance: float = 1e-3
    study: str = "widths"  # or "regularity"


# Seeds of each width, epochs, and width and seeds of the study of regular and irregular times.
PLANS: dict[str, Plan] = {
    "quick": Plan({20: 2, 200: 2}, epochs=250, study={200: 1}, study_epochs=5),
    "evening": Plan({5: 5, 20: 5, 200: 5}, epochs=250, study={200: 5}, study_epochs=250),
    "paper": Plan(dict.fromkeys(LEARNING_RATES, 5), epochs=250, study={1000: 5}, study_epochs=250),
}
DEAR = ("adjoint", "seminorm")  # a dozen minutes a run on merged times, and nothing that gq-paper does not show


def grid(choice: Choice) -> list[Config]:
    """Methods over widths and seeds, then methods over the number and the spacing of times."""
    plan, methods = PLANS[choice.preset], choice.pick_methods(METHODS)
    base = Config(epochs=plan.epochs, device=choice.device)
    runs = [_at(base, method, cell) for cell in choice.cells(plan.seeds) for method in methods]
    base = replace(base, study="regularity", epochs=plan.study_epochs)
    cells = choice.cells(plan.study, pick=max)
    kinds = [replace(base, **kind) for kind in KINDS]
    compared = methods if choice.preset == "paper" else [m for m in methods if m not in DEAR]
    return runs + [
        _at(kind, method, cell)
        for kind in kinds
        for method in compared
        for cell in (cells[:1] if choice.preset == "evening" and method == "gq-paper" else cells)
    ]


def _at(base: Config, method: str, cell: tuple[int, int]) -> Config:
    width, seed = cell
    return replace(base, method=method, width=width, seed=seed, lr=paper_rate(base, width))


def paper_rate(config: RunConfig, width: int) -> float:
    """The paper's learning rate."""
    return learning_rate(LEARNING_RATES, width)


def task(config: Config, context: Context) -> Task:
    train_set, test_set = (tuple(x.to(config.device) for x in part) for part in data(config))
    return Task(
        model=SineNet(config),
        loss=loss,
        batches=minibatches(train_set, config.batch),
        evaluate=lambda model: {"test_mse": float(loss(model, test_set, torch.Generator())[0])},
        lr=config.lr,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
        check=2.0 if config.width <= 500 and config.study == "widths" else None,
    )


def run(config: Config, context: Context) -> dict[str, Any]:
    return train(task(config, context), context)


def data(config: Config, seed: int = 0) -> tuple[Batch, Batch]:
    """Initial states (B, 2), times (B, K) and positions (B, K) of both sets; the same for every run."""
    generator = torch.Generator().manual_seed(seed)

    def part(curves: int) -> Batch:
        y0 = 2 * torch.rand(curves, 2, generator=generator) - 1
        irregular = (END * torch.rand(curves, config.times, generator=generator)).sort(dim=1).values
        irregular[:, 0] = 0.0
        regular = torch.linspace(0, END, config.times).expand(curves, -1)
        t = regular if config.spacing == "regular" else irregular
        return y0, t, y0[:, :1] * t.cos() + y0[:, 1:] * t.sin()

    return part(config.curves), part(config.test_curves)


class SineNet(nn.Module):
    """Learns the acceleration in ``x'' = a(x, v)``; position and velocity at time zero are given."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.spacing = config.spacing
        f = SecondOrder(TimeMLP(2, config.width, out=1, time=False))
        self.ode = neural_ode(f, config.method, tolerance=config.tolerance)

    def forward(self, y0: Tensor, t: Tensor) -> tuple[Tensor, Any]:
        """Positions (B, K) at the times t (B, K)."""
        if self.spacing == "merged":
            times, place = t.unique(return_inverse=True)  # place (B, K): each sample's times within the union
            ys, stats = self.ode.states(y0, times)
            return ys[..., 0].T.gather(1, place), stats
        ys, stats = self.ode.states(y0, t[0] if self.spacing == "regular" else t)
        return ys[..., 0].T, stats


def loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Any]:
    y0, t, x = batch
    predicted, stats = model(y0, t)
    return nn.functional.mse_loss(predicted, x), stats
