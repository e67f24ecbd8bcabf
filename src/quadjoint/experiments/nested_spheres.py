"""Nested spheres: tell a disc from the ring around it (the paper's section 5.3 and appendix E.2).

No flow of the plane separates the two, so three zero dimensions are added (Dupont et al. 2019). With ablation
over the constant C in the paper's number of quadrature nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.experiments.config import METHODS, Choice, Plan, RunConfig, learning_rate
from quadjoint.experiments.contenders import neural_ode
from quadjoint.experiments.training import Batch, Context, Task, minibatches, train
from quadjoint.nn import Augment, TimeMLP

NAME = "nested-spheres"
LEARNING_RATES = {
    **{5: 5e-3, 20: 5e-3, 100: 1e-3, 500: 1e-3, 1000: 2e-4, 1500: 2e-4},
    **{2000: 1e-4, 2500: 1e-4, 3000: 1e-4},
}
RADII = (0.4, 0.7, 0.9)
ABLATION_C = (1e-3, 1e-1, 1e2, 1e5)


@dataclass(frozen=True)
class Config(RunConfig):
    """One training run; the defaults are the paper's."""

    epochs: int = 100
    batch: int = 200
    points: int = 2000  # training points, half of each class
    test_points: int = 100
    augment: int = 3
    lr: float = 1e-3
    tolerance: float = 1e-3
    c: float = 0.1  # for gq-paper
    study: str = "widths"  # or "C"


# Seeds of each width, epochs, and width and seeds of the ablation over C.
PLANS: dict[str, Plan] = {
    "quick": Plan({5: 2, 20: 2}, epochs=100, study={20: 2}),
    "evening": Plan({5: 5, 20: 5, 100: 5}, epochs=100, study={100: 3}),
    "paper": Plan(dict.fromkeys(LEARNING_RATES, 10), epochs=100, study={1500: 5}),
}


def grid(choice: Choice) -> list[Config]:
    """Methods over widths and seeds, then the paper's method over C."""
    plan, methods = PLANS[choice.preset], choice.pick_methods(METHODS)
    base = Config(epochs=plan.epochs, device=choice.device)
    runs = [_at(base, method, cell) for cell in choice.cells(plan.seeds) for method in methods]
    if "gq-paper" in methods:
        base = replace(base, study="C")
        cells = choice.cells(plan.study, pick=max)
        runs += [replace(_at(base, "gq-paper", cell), c=c) for c in ABLATION_C for cell in cells]
    return runs


def _at(base: Config, method: str, cell: tuple[int, int]) -> Config:
    width, seed = cell
    return replace(base, method=method, width=width, seed=seed, lr=paper_rate(base, width))


def paper_rate(config: RunConfig, width: int) -> float:
    """The paper's learning rate."""
    return learning_rate(LEARNING_RATES, width)


def task(config: Config, context: Context) -> Task:
    train_set, test_set = _sets(config)
    return Task(
        model=SphereNet(config),
        loss=loss,
        batches=minibatches(train_set, config.batch),
        evaluate=lambda model: evaluate(model, test_set),
        check=3.0 if config.width <= 500 else None,
        lr=config.lr,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
    )


def _sets(config: Config) -> tuple[Batch, Batch]:
    train_set, test_set = (tuple(x.to(config.device) for x in part) for part in data(config.points, config.test_points))
    return train_set, test_set


def run(config: Config, context: Context) -> dict[str, Any]:
    result = train(task(config, context), context)
    x, y = (tensor.cpu() for tensor in _sets(config)[0])
    some = torch.cat([(y == k).nonzero().squeeze(1)[:70] for k in (0, 1)])
    result["example"] = {"x": [[round(v, 3) for v in row] for row in x[some].tolist()], "y": y[some].tolist()}
    return result


def data(points: int, test_points: int, seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test set, half of each class, uniform by area; the same for every run."""
    generator = torch.Generator().manual_seed(seed)
    return sample(points, generator), sample(test_points, generator)


def sample(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points of the disc of radius r1 (class 0) and of the ring from r2 to r3 (class 1).

    >>> x, y = sample(100, torch.Generator().manual_seed(0))
    >>> bool((x[y == 0].norm(dim=1) <= 0.4).all()), bool((x[y == 1].norm(dim=1) >= 0.7).all())
    (True, True)
    """
    r1, r2, r3 = RADII
    half = points // 2
    xs = [_ring(half, 0.0, r1, generator), _ring(points - half, r2, r3, generator)]
    y = torch.tensor([0] * half + [1] * (points - half))
    return torch.cat(xs), y


def _ring(points: int, inner: float, outer: float, generator: torch.Generator) -> Tensor:
    angle = 2 * torch.pi * torch.rand(points, generator=generator)
    radius = (inner**2 + (outer**2 - inner**2) * torch.rand(points, generator=generator)).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


class SphereNet(nn.Module):
    """Augmented neural ODE over [0, 1] with a linear read-out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        dim = 2 + config.augment
        self.augment = Augment(config.augment)
        f = TimeMLP(dim, config.width)
        self.ode = neural_ode(f, config.method, tolerance=config.tolerance, c=config.c)
        self.readout = nn.Linear(dim, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        ys, stats = self.ode.states(self.augment(x))
        return self.readout(ys[-1]), stats


def loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Any]:
    logits, stats = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1]), stats


def evaluate(model: nn.Module, test_set: Batch) -> dict[str, float]:
    logits, _ = model(test_set[0])
    right = (logits.argmax(dim=1) == test_set[1]).double().mean()
    return {
        "test_loss": float(nn.functional.cross_entropy(logits, test_set[1])),
        "test_accuracy": 100 * float(right),
    }
