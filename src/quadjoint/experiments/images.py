"""Image classification with a convolutional neural ODE (the paper's section 5.5 and appendix E.4).

MNIST, CIFAR-10 and SVHN; the hidden channels are the size axis, and the batch size is varied, for the larger the
state, the less a cheap parameter integral helps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.experiments import data
from quadjoint.experiments.config import METHODS, Choice, RunConfig
from quadjoint.experiments.contenders import neural_ode
from quadjoint.experiments.image_layers import ConvDynamics, Downsampling
from quadjoint.experiments.training import Batch, Context, Task, minibatches, train
from quadjoint.nn import MLP

NAME = "images"
CHANNELS = (50, 200, 350, 500)  # of the authors' plots; the paper's text has no numbers
LEARNING_RATES = {"mnist": 1e-5, "cifar10": 6e-5, "svhn": 6e-5}
SHORT_RATE = 1e-3  # where the epochs are too few for the paper's


@dataclass(frozen=True)
class Config(RunConfig):
    """One training run; ``width`` is the number of hidden channels, and the defaults are the paper's."""

    width: int = 50
    dataset: str = "mnist"
    epochs: int = 15
    batch: int = 16
    train_images: int = 0  # 0: all
    round_images: int = 0  # drawn of them for an epoch; 0: all
    test_images: int = 0
    state_channels: int = 10
    lr: float = 1e-5
    tolerance: float = 1e-3
    study: str = "widths"  # or "batch"


def grid(choice: Choice) -> list[Config]:
    """Batch 16 on all three sets, then larger batches."""
    if choice.preset != "paper":
        return _short(choice)
    methods = choice.pick_methods(METHODS)
    cells = [(name, 16, "widths") for name in data.NAMES] + [(name, 32, "batch") for name in data.NAMES]
    cells.append(("mnist", 256, "batch"))
    runs = []
    for dataset, batch, study in cells:
        lr = LEARNING_RATES[dataset]
        base = Config(dataset=dataset, batch=batch, lr=lr, study=study, device=choice.device)
        runs += [
            replace(base, method=method, width=width, seed=seed)
            for width, seed in choice.cells(dict.fromkeys(CHANNELS, 3))
            for method in methods
        ]
    return runs


def _short(choice: Choice) -> list[Config]:
    """Trained on 9600 images, drawn in rounds with an evaluation after each.

    With a few hundred steps instead of 56 000 the learning rate has to be larger than the paper's.
    """
    base = Config(epochs=5, round_images=1920, test_images=1000, lr=SHORT_RATE, device=choice.device)
    if choice.preset == "quick":
        kinds: list[tuple[Config, tuple[str, ...], dict[int, int]]] = [(replace(base, batch=32), METHODS, {8: 2})]
    else:
        kinds = [
            (replace(base, dataset=name), ("adjoint", "seminorm", "gq-paper"), {CHANNELS[0]: 3})
            for name in ("mnist", "cifar10")
        ]
    return [
        replace(kind, method=method, width=width, seed=seed)
        for kind, methods, seeds in kinds
        for width, seed in choice.cells(seeds)
        for method in choice.pick_methods(methods)
    ]


def paper_rate(config: RunConfig, width: int) -> float:
    """The paper's learning rate, which depends on the data set."""
    return LEARNING_RATES[config.dataset] if isinstance(config, Config) else LEARNING_RATES["mnist"]


def task(config: Config, context: Context) -> Task:
    home = data.data_home(context.data)
    train_set = _part(config.dataset, "train", home, config.train_images, config.device)
    test_set = _part(config.dataset, "test", home, config.test_images, config.device)
    return Task(
        model=ImageNet(config, train_set[0].shape[1:]),
        loss=loss,
        batches=minibatches(train_set, config.batch, count=config.round_images or None),
        evaluate=lambda model: evaluate(model, test_set),
        lr=config.lr,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
    )


def run(config: Config, context: Context) -> dict[str, Any]:
    return train(task(config, context), context)


@lru_cache(maxsize=2)
def _part(name: str, part: str, home: Path, count: int, device: str) -> Batch:
    chosen = data.load(name, part, home, count or None)
    return chosen.x.to(device), chosen.y.to(device)


class ImageNet(nn.Module):
    """Downsampling, a convolutional neural ODE over [0, 1], and a read-out with one hidden layer of 50."""

    def __init__(self, config: Config, shape: torch.Size) -> None:
        super().__init__()
        self.downsampling = Downsampling(shape[0], config.state_channels)
        f = ConvDynamics(config.state_channels, config.width)
        self.ode = neural_ode(f, config.method, tolerance=config.tolerance)
        side_y, side_x = ((side - 2) // 2 - 2 for side in shape[1:])
        self.readout = MLP(config.state_channels * side_y * side_x, 50, 10, activation=nn.ReLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Logits of images given as bytes."""
        ys, stats = self.ode.states(self.downsampling(x.float() / 255))
        return self.readout(ys[-1].flatten(1)), stats


def loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Any]:
    logits, stats = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1]), stats


def evaluate(model: nn.Module, test_set: Batch, size: int = 250) -> dict[str, float]:
    """Mean loss and accuracy, in batches that fit a small memory."""
    total = right = 0.0
    for x, y in zip(test_set[0].split(size), test_set[1].split(size), strict=True):
        logits, _ = model(x)
        total += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
        right += float((logits.argmax(dim=1) == y).sum())
    count = len(test_set[0])
    return {"test_loss": total / count, "test_accuracy": 100 * right / count}
