"""Crossing trajectories: map +1 to -1 and -1 to +1 (the paper's last appendix; g_1d of Dupont et al. 2019).

On a line no flow can do it, for trajectories cannot cross; three zero dimensions make room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.experiments.config import METHODS, Choice, Plan, RunConfig, learning_rate
from quadjoint.experiments.contenders import neural_ode
from quadjoint.experiments.training import Batch, Context, Task, train
from quadjoint.nn import Augment, TimeMLP

NAME = "crossing"
LEARNING_RATES = {
    **{5: 1e-2, 20: 1e-2, 100: 1e-3, 500: 1e-3, 1000: 7e-4},
    **{1500: 1e-4, 2000: 1e-4, 2500: 1e-4, 3000: 1e-4},
}


@dataclass(frozen=True)
class Config(RunConfig):
    """One training run; the defaults are the paper's."""

    epochs: int = 200
    augment: int = 3
    lr: float = 1e-3
    tolerance: float = 1e-3
    study: str = "widths"


# Seeds of each width, and epochs.
PLANS: dict[str, Plan] = {
    "quick": Plan({5: 2, 20: 2, 100: 2, 500: 2}, epochs=200),
    "evening": Plan({5: 10, 20: 10, 100: 10, 500: 10, 1000: 10, 2000: 2}, epochs=200),
    "paper": Plan(dict.fromkeys(LEARNING_RATES, 10), epochs=200),
}


def grid(choice: Choice) -> list[Config]:
    """Methods over widths and seeds."""
    plan = PLANS[choice.preset]
    base = Config(epochs=plan.epochs, device=choice.device)
    return [
        replace(base, method=method, width=width, seed=seed, lr=paper_rate(base, width))
        for width, seed in choice.cells(plan.seeds)
        for method in choice.pick_methods(METHODS)
        if not (choice.preset == "evening" and width >= 1000 and method in ("discrete", "auto"))
    ]


def paper_rate(config: RunConfig, width: int) -> float:
    """The paper's learning rate."""
    return learning_rate(LEARNING_RATES, width)


def task(config: Config, context: Context) -> Task:
    x = torch.tensor([[1.0], [-1.0]], device=config.device)
    batch = (x, -x)
    return Task(
        model=CrossingNet(config),
        loss=loss,
        batches=lambda generator: [batch],
        evaluate=lambda model: {"test_mse": float(loss(model, batch, torch.Generator())[0])},
        lr=config.lr,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
        check=3.0 if config.width <= 500 else None,
    )


def run(config: Config, context: Context) -> dict[str, Any]:
    return train(task(config, context), context)


class CrossingNet(nn.Module):
    """Augmented neural ODE over [0, 1]; the first dimension of the final state is the answer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.augment = Augment(config.augment)
        f = TimeMLP(1 + config.augment, config.width, time=False)
        self.ode = neural_ode(f, config.method, tolerance=config.tolerance)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        ys, stats = self.ode.states(self.augment(x))
        return ys[-1][:, :1], stats


def loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Any]:
    predicted, stats = model(batch[0])
    return nn.functional.mse_loss(predicted, batch[1]), stats
