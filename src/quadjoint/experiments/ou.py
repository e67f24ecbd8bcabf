"""A neural SDE learns an Ornstein-Uhlenbeck process (the paper's section 5.6 and its appendix on SDEs).

dx = (μ t - θ x) dt + (σ + φ t) ∘ dW. Trained as a random ODE whose noise is a sum of cosines, evaluated as an SDE with
the same weights; the baselines of torchsde train the SDE itself. Loss and metric: the KL divergence between
Gaussians fitted to the samples, model to data. Ablation over the number of cosines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.experiments import config as shared
from quadjoint.experiments.config import Choice, RunConfig, learning_rate
from quadjoint.experiments.contenders import scheme, states
from quadjoint.experiments.ornstein_uhlenbeck import OrnsteinUhlenbeck, gaussian_kl
from quadjoint.experiments.training import Context, Task, minibatches, train
from quadjoint.nn import TimeMLP
from quadjoint.sde import NeuralSDE, WongZakai, sdeint

NAME = "ou"
TORCHSDE = ("torchsde-direct", "torchsde-adjoint")
METHODS = (*shared.METHODS, *TORCHSDE)
LEARNING_RATES = {5: 1e-3, 20: 5e-4, 50: 1e-4, 100: 1e-4}
COSINES = (0, 1, 5, 10, 25, 50)
COSINES_WIDTH = 20  # of the study of their number
PROCESS = OrnsteinUhlenbeck(mu=0.2, theta=0.1, sigma=0.6, phi=0.15)


@dataclass(frozen=True)
class Config(RunConfig):
    """One training run; the defaults are the paper's."""

    epochs: int = 100
    batch: int = 40  # initial conditions
    starts: int = 200
    test_starts: int = 20
    samples: int = 45  # paths from each initial condition
    times: int = 101
    end: float = 10.0
    cosines: int = 10
    step: float = 0.01  # of the SDE solver
    lr: float = 5e-4
    tolerance: float = 1e-3
    study: str = "widths"  # or "cosines"


@dataclass(frozen=True)
class Size:
    """The size of a preset: seeds of each method by width, and of the study of the number of cosines."""

    widths: tuple[int, ...]
    seeds: dict[str, int]
    cosines: dict[str, int]
    epochs: int = 100
    faster: float = 1.0  # than the paper's learning rate


SIZES = {
    # Forty steps instead of five hundred: a larger learning rate brings them nearly as far.
    "quick": Size(
        (20,),
        {"direct": 3, "gq": 3, "discrete": 3, "auto": 3, "gq-paper": 1, "torchsde-direct": 1},
        {"direct": 2},
        epochs=8,
        faster=20.0,
    ),
    # The slow ones, half an hour each, are trained once.
    "evening": Size((20,), {"direct": 5, "gq-paper": 1, "torchsde-direct": 1, "torchsde-adjoint": 1}, {"direct": 3}),
    "paper": Size(
        tuple(sorted(LEARNING_RATES)), dict.fromkeys(METHODS, 5), dict.fromkeys(("gq-paper", "gq", "discrete"), 5)
    ),
}


def grid(choice: Choice) -> list[Config]:
    """Methods over widths and seeds, then the number of cosines."""
    size = SIZES[choice.preset]
    base = Config(epochs=size.epochs, device=choice.device)
    runs = [
        _at(base, method, cell, size.faster)
        for method in choice.pick_methods([m for m in METHODS if m in size.seeds])
        for cell in choice.cells(dict.fromkeys(size.widths, size.seeds[method]))
    ]
    base = replace(base, study="cosines")
    for method in choice.pick_methods(tuple(size.cosines)):
        cells = [
            _at(base, method, c, size.faster) for c in choice.cells({COSINES_WIDTH: size.cosines[method]}, pick=min)
        ]
        runs += [replace(cell, cosines=cosines) for cosines in COSINES for cell in cells]
    return runs


def _at(base: Config, method: str, cell: tuple[int, int], faster: float) -> Config:
    width, seed = cell
    return replace(base, method=method, width=width, seed=seed, lr=faster * paper_rate(base, width))


def paper_rate(config: RunConfig, width: int) -> float:
    """The paper's learning rate."""
    return learning_rate(LEARNING_RATES, width)


def task(config: Config, context: Context) -> Task:
    t, train_set, test_set = _on_device(config)
    return Task(
        model=model_for(config),
        loss=lambda sde, batch, generator: loss(sde, batch[0], t, config, generator),
        batches=minibatches((train_set,), config.batch),
        evaluate=lambda sde: evaluate(sde, test_set, t, config),
        lr=config.lr,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
        only_last=config.study == "cosines",  # no curves are drawn of it, and the evaluation takes as long as an epoch
    )


def run(config: Config, context: Context) -> dict[str, Any]:
    made = task(config, context)
    result = train(made, context)
    if config.study == "widths":
        t, _, test_set = _on_device(config)
        result["solutions"] = solutions(made.model, test_set, t, config)
    return result


def _on_device(config: Config) -> tuple[Tensor, Tensor, Tensor]:
    t, train_set, test_set = data(config)
    return t.to(config.device), train_set.to(config.device), test_set.to(config.device)


def data(config: Config, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Times (K,), and paths (starts, samples, K) of training and test set, exact in law; the same for every run."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, config.end, config.times)

    def part(starts: int) -> Tensor:
        x0 = (6 * torch.rand(starts, 1, generator=generator) - 3).expand(-1, config.samples)
        return PROCESS.sample(x0, t, generator).movedim(0, -1)

    return t, part(config.starts), part(config.test_starts)


def model_for(config: Config) -> NeuralSDE:
    """Drift and diffusion are two multilayer perceptrons of state and time."""
    return NeuralSDE(TimeMLP(1, config.width), TimeMLP(1, config.width), elementwise=True)


def loss(sde: nn.Module, paths: Tensor, t: Tensor, config: Config, generator: torch.Generator) -> tuple[Tensor, Any]:
    """KL divergence of the model's samples from the paths (starts, samples, K) of a batch."""
    assert isinstance(sde, NeuralSDE)
    y0 = paths[..., :1].reshape(-1, 1)
    stats = None
    if config.method in TORCHSDE:
        ys = sdeint(sde, y0, t, config.step, adjoint=config.method == "torchsde-adjoint", generator=generator)
    else:
        f = WongZakai(sde, 0.0, config.end, config.cosines).sample(y0, generator=generator)
        ys, stats = states(f, y0, t, **scheme(config.method).settings(config.tolerance))
    return gaussian_kl(as_paths(ys, paths), paths, dim=1), stats


def as_paths(ys: Tensor, like: Tensor) -> Tensor:
    """(K, starts * samples, 1) as (starts, samples, K)."""
    return ys.squeeze(-1).T.reshape(like.shape)


def evaluate(sde: nn.Module, paths: Tensor, t: Tensor, config: Config) -> dict[str, float]:
    """The KL divergence of the SDE itself, whatever it was trained as."""
    return {"test_kl": float(gaussian_kl(sample(sde, paths, t, config), paths, dim=1))}


def sample(sde: nn.Module, paths: Tensor, t: Tensor, config: Config) -> Tensor:
    assert isinstance(sde, NeuralSDE)
    y0 = paths[..., :1].reshape(-1, 1)
    return as_paths(sdeint(sde, y0, t, config.step, seed=config.seed), paths)


def solutions(sde: nn.Module, paths: Tensor, t: Tensor, config: Config) -> dict[str, Any]:
    """What the figure of learnt solutions shows: fits at three times, five paths from three starts."""
    with torch.no_grad():
        learnt = sample(sde, paths, t, config).cpu()
    true = paths.cpu()
    fits = []
    for k in sorted({len(t) // 5, len(t) // 2, len(t) - 1}):
        pair = {name: [float(x[0, :, k].mean()), float(x[0, :, k].std())] for name, x in _named(true, learnt)}
        fits.append({"t": round(float(t[k]), 6), **pair})
    starts = [{name: _rounded(x[i, :5]) for name, x in _named(true, learnt)} for i in range(min(3, len(true)))]
    return {"t": [round(v, 6) for v in t.tolist()], "fits": fits, "paths": starts}


def _named(true: Tensor, learnt: Tensor) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    return ("true", true), ("learnt", learnt)


def _rounded(x: Tensor) -> list[list[float]]:
    return [[round(v, 4) for v in row] for row in x.tolist()]
