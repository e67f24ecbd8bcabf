"""The benchmark problems: dynamics, initial state, times and loss, each from a seed, in any precision.

A ``Cell`` is a name and sizes; ``build`` makes the ``Case`` that every method solves. Losses are written once, for
torch and jax.numpy alike, so that all libraries differentiate the same function. The models are those of Norcliffe and
Deisenroth (TMLR 2023); read-out layers are constants of the loss, so that only the solve is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.experiments.image_layers import ConvDynamics, Downsampling
from quadjoint.nn import MLP, Augment, SecondOrder, TimeMLP

LossFunction = Callable[[Any, dict[str, Any], Any], Any]
SPHERE_WIDTHS, SCALES = (5, 100, 500, 1000, 2000), (1, 3, 5)
LEARNING_RATES = {20: 8e-3, 200: 5e-4, 1000: 3e-5, 2000: 1e-5}  # of the sines experiment, by width
END = 2 * math.pi


@dataclass(frozen=True)
class Cell:
    """A benchmark problem. Cells of one ``group`` are timed together, turn by turn."""

    name: str
    family: str
    width: int
    rows: int
    group: str = ""
    scale: float = 1.0
    observations: int = 2
    dim: int = 0
    end: float = 1.0
    spacing: str = "regular"
    trained: int = 0  # steps of training before the measurement

    @property
    def together(self) -> str:
        return self.group or self.name


@dataclass
class Case:
    """What a method is handed: dy/dt = f(t, y), y(t[0]) = y0, and a loss of the states at the times t."""

    f: nn.Module
    y0: Tensor
    t: Tensor  # (K,), or (B, K): times per sample; always float64
    kind: str  # the form of f, for translation to jax
    loss: LossFunction
    constants: dict[str, Tensor]
    sde: Any = None

    def value(self, ys: Tensor) -> Tensor:
        out: Tensor = self.loss(ys, self.constants, torch)
        return out

    @property
    def wrt(self) -> list[Tensor]:
        """What the gradient is taken in: the weights, and the initial state where layers come before it."""
        return [*self.f.parameters(), *([self.y0] if self.y0.requires_grad else [])]


def cells() -> dict[str, Cell]:
    """Every cell by name; those beginning with ``tiny`` are for trying things out."""
    every = [Cell(f"spheres-{w}-{s}x", "spheres", w, 200, scale=s, dim=5) for s in SCALES for w in SPHERE_WIDTHS]
    every += [_sines(f"sines-{w}", "sines", w, 50) for w in (20, 200, 1000, 2000)]
    every += [Cell(f"crossing-{w}", "crossing", w, 2, dim=4) for w in (20, 500, 2000, 3000)]
    every += [Cell(f"ou-{w}", "ou", w, 1800, observations=101, dim=1, end=10.0) for w in (20, 100)]
    every += [Cell(f"conv-{b}", "conv", 50, b) for b in (16, 256)]
    for width, count in ((20, 50), (200, 50), (1000, 50), (1000, 10)):
        every += _irregular(f"irregular-{width}x{count}", width, count)
    every += [
        Cell("tiny-spheres", "tiny", 8, 6, scale=3, dim=5),
        _sines("tiny-sines", "tiny", 8, 7, rows=4, trained=0),
        Cell("tiny-crossing", "tiny", 8, 2, dim=4),
        Cell("tiny-ou", "tiny", 8, 40 * 3, observations=6, dim=1, end=2.0),
        Cell("tiny-conv", "tiny", 3, 2),
        *_irregular("tiny-irregular", 8, 5, rows=3, trained=0, family="tiny"),
    ]
    return {cell.name: cell for cell in every}


def _sines(name: str, family: str, width: int, count: int, *, rows: int = 15, trained: int = 30, **more: Any) -> Cell:
    return Cell(name, family, width, rows, observations=count, dim=2, end=END, trained=trained, **more)


def _irregular(group: str, width: int, count: int, *, family: str = "irregular", **more: Any) -> list[Cell]:
    spacings = ("regular", "per-sample", "merged")
    return [_sines(f"{group}-{s}", family, width, count, group=group, spacing=s, **more) for s in spacings]


def build(cell: Cell, dtype: torch.dtype = torch.float32) -> Case:
    """The case of a cell. Weights and data are drawn in float32 and then cast: every precision has the same problem."""
    make = {"spheres": spheres, "sines": sines, "irregular": sines, "crossing": crossing, "ou": ou, "conv": conv}
    family = cell.name.split("-")[1] if cell.family == "tiny" else cell.family
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make[family](cell, dtype)


def spheres(cell: Cell, dtype: torch.dtype) -> Case:
    """Tell a disc from the ring around it: augmented neural ODE, linear read-out, cross entropy."""
    half = cell.rows // 2
    labels = torch.tensor([0] * half + [1] * (cell.rows - half))
    inner, outer = torch.tensor([0.0, 0.7])[labels], torch.tensor([0.4, 0.9])[labels]
    radius = (inner**2 + (outer**2 - inner**2) * torch.rand(cell.rows)).sqrt()
    angle = END * torch.rand(cell.rows)
    y0 = Augment(cell.dim - 2)(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1))
    f = TimeMLP(cell.dim, cell.width)
    with torch.no_grad():
        for p in f.parameters():
            p.mul_(cell.scale)
    readout = nn.Linear(cell.dim, 2)
    constants = {"weight": readout.weight.detach().T, "bias": readout.bias.detach(), "target": one_hot(labels, 2)}
    return _case(f, y0, _span(cell), "mlp", linear_cross_entropy, constants, dtype)


def crossing(cell: Cell, dtype: torch.dtype) -> Case:
    """Map +1 to -1 and -1 to +1 in four dimensions, of which three begin at zero."""
    y0 = Augment(cell.dim - 1)(torch.tensor([[1.0], [-1.0]]))
    f = TimeMLP(cell.dim, cell.width, time=False)
    return _case(f, y0, _span(cell), "mlp", last_position_error, {"target": -y0[:, 0]}, dtype)


def sines(cell: Cell, dtype: torch.dtype) -> Case:
    """Sine curves by a second-order neural ODE, observed often; regular, merged or per-sample times."""
    case = _sines_case(cell)
    if cell.trained:
        case.f.load_state_dict(_trained(cell.width, cell.trained))
    return _case(case.f, case.y0, case.t, case.kind, case.loss, case.constants, dtype)


def _sines_case(cell: Cell) -> Case:
    y0 = 2 * torch.rand(cell.rows, 2) - 1
    f = SecondOrder(TimeMLP(2, cell.width, out=1, time=False))
    own = cell.end * torch.rand(cell.rows, cell.observations, dtype=torch.float64)
    own[:, 0] = 0.0
    t = own.sort(dim=1).values
    if cell.spacing == "regular":
        t = _span(cell).expand(cell.rows, -1)
    target = (y0[:, :1] * t.cos() + y0[:, 1:] * t.sin()).T  # (K, B)
    constants = {"target": target}
    if cell.spacing == "per-sample":
        return _case(f, y0, t, "second-order", positions_error, constants, torch.float32)
    if cell.spacing == "regular":
        return _case(f, y0, t[0], "second-order", positions_error, constants, torch.float32)
    union, place = t.unique(return_inverse=True)
    constants |= {"place": place.T, "row": torch.arange(cell.rows)}
    return _case(f, y0, union, "second-order", gathered_positions_error, constants, torch.float32)


@lru_cache(maxsize=8)
def _trained(width: int, steps: int) -> dict[str, Tensor]:
    """Weights after some steps of Adam on regular times, as a training run would have them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        case = _sines_case(_sines("training", "sines", width, 50))
    nearest = min(LEARNING_RATES, key=lambda w: abs(math.log(w / width)))
    optimiser = torch.optim.Adam(case.f.parameters(), lr=LEARNING_RATES[nearest])
    for _ in range(steps):
        optimiser.zero_grad()
        ys = qj.odeint(case.f, case.y0, case.t, rtol=1e-3, atol=1e-3, gradient="discrete")
        case.value(ys).backward()
        optimiser.step()
    return {name: value.clone() for name, value in case.f.state_dict().items()}


def ou(cell: Cell, dtype: torch.dtype) -> Case:
    """An Ornstein-Uhlenbeck process learnt as a random ODE with ten cosines; Gaussian KL divergence as the loss."""
    from quadjoint.experiments.ornstein_uhlenbeck import OrnsteinUhlenbeck
    from quadjoint.sde import NeuralSDE, WongZakai

    groups = 40
    start = 6 * torch.rand(groups) - 3
    y0 = start.repeat_interleave(cell.rows // groups)[:, None].to(dtype)
    sde = NeuralSDE(TimeMLP(1, cell.width), TimeMLP(1, cell.width), elementwise=True).to(dtype)
    f = WongZakai(sde, 0.0, cell.end, terms=10).sample(y0, seed=1)
    t, process = _span(cell), OrnsteinUhlenbeck()
    later = t[1:, None]
    constants = {"mean": process.mean(start.double(), later), "std": process.variance(later).sqrt()}
    return _case(f, y0, t, "random-ode", gaussian_divergence, constants, dtype, sde=sde)


def conv(cell: Cell, dtype: torch.dtype) -> Case:
    """The state is an image: the paper's MNIST model after its downsampling layers, on random images."""
    images = torch.rand(cell.rows, 1, 28, 28)
    with torch.no_grad():
        y0 = Downsampling(1, 10)(images)
    head = MLP(10 * 11 * 11, 50, 10, activation=nn.ReLU)
    first: Any = head[0]
    last: Any = head[2]
    constants = {
        "weight0": first.weight.detach().T,
        "bias0": first.bias.detach(),
        "weight1": last.weight.detach().T,
        "bias1": last.bias.detach(),
    }
    constants["target"] = one_hot(torch.randint(10, (cell.rows,)), 10)
    f = ConvDynamics(10, hidden=cell.width)
    case = _case(f, y0, _span(cell), "conv", head_cross_entropy, constants, dtype)
    case.y0.requires_grad_()  # the layers before the solve need dL/dy0
    return case


def _span(cell: Cell) -> Tensor:
    return torch.linspace(0.0, cell.end, cell.observations, dtype=torch.float64)


def _case(
    f: nn.Module,
    y0: Tensor,
    t: Tensor,
    kind: str,
    loss: LossFunction,
    constants: dict[str, Tensor],
    dtype: torch.dtype,
    sde: Any = None,
) -> Case:
    cast = {name: x.to(dtype) if x.is_floating_point() else x for name, x in constants.items()}
    return Case(f.to(dtype), y0.to(dtype), t, kind, loss, cast, sde)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    return nn.functional.one_hot(labels, classes).float()


# Losses. ``xp`` is torch or jax.numpy; only names and methods that both have are used.


def linear_cross_entropy(ys: Any, c: dict[str, Any], xp: Any) -> Any:
    return _cross_entropy(ys[-1] @ c["weight"] + c["bias"], c["target"], xp)


def head_cross_entropy(ys: Any, c: dict[str, Any], xp: Any) -> Any:
    last = ys[-1]
    hidden = last.reshape(last.shape[0], -1) @ c["weight0"] + c["bias0"]
    return _cross_entropy((hidden * (hidden > 0)) @ c["weight1"] + c["bias1"], c["target"], xp)


def _cross_entropy(logits: Any, target: Any, xp: Any) -> Any:
    shifted = logits - xp.amax(logits, -1)[..., None]  # so that nothing overflows
    return (xp.log(xp.exp(shifted).sum(-1)) - (shifted * target).sum(-1)).mean()


def last_position_error(ys: Any, c: dict[str, Any], xp: Any) -> Any:
    return ((ys[-1][:, 0] - c["target"]) ** 2).mean()


def positions_error(ys: Any, c: dict[str, Any], xp: Any) -> Any:
    return ((ys[..., 0] - c["target"]) ** 2).mean()


def gathered_positions_error(ys: Any, c: dict[str, Any], xp: Any) -> Any:
    return ((ys[c["place"], c["row"], 0] - c["target"]) ** 2).mean()


def gaussian_divergence(ys: Any, c: dict[str, Any], xp: Any) -> Any:
    """KL divergence of normal distributions fitted to the samples of each start, from the exact law."""
    samples = ys[1:].reshape(ys.shape[0] - 1, c["mean"].shape[1], -1)
    mean = samples.mean(-1)
    variance = ((samples - mean[..., None]) ** 2).mean(-1)
    gap = (variance + (mean - c["mean"]) ** 2) / (2 * c["std"] ** 2)
    return (gap + xp.log(c["std"]) - 0.5 * xp.log(variance) - 0.5).mean()
