"""An ODE-net for digits, as a program for torchdiffeq is written; one import line makes it run on quadjoint.

Convolutions shrink the image, an ODE block takes the place of residual blocks, a linear layer classifies (the network
of Chen et al. 2018, smaller). MNIST is used where ``quadjoint data fetch mnist`` has put it, digits drawn here if not.

    python examples/migration/odenet.py [--quick]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from quadjoint.torchdiffeq import odeint_adjoint as odeint  # before: from torchdiffeq import odeint_adjoint as odeint

QUICK = "--quick" in sys.argv
ITERATIONS, BATCH, WIDTH = (3, 8, 8) if QUICK else (150, 64, 32)


def drawn_digits(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits of seven segments, moved about, with noise: (n, 1, 28, 28)."""
    segments = {
        "a": (4, 8, 5, 19),
        "b": (4, 17, 14, 19),
        "c": (13, 17, 23, 19),
        "d": (22, 8, 23, 19),
        "e": (13, 8, 23, 10),
        "f": (4, 8, 14, 10),
        "g": (13, 8, 14, 19),
    }
    lit = ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg"]
    digits = torch.zeros(10, 28, 28)
    for digit, names in enumerate(lit):
        for top, left, bottom, right in (segments[name] for name in names):
            digits[digit, top : bottom + 1, left : right + 1] = 1.0
    labels = torch.randint(10, (n,), generator=generator)
    moves = torch.randint(-2, 3, (n, 2), generator=generator).tolist()
    images = torch.stack([digits[i].roll(move, dims=(0, 1)) for i, move in zip(labels, moves, strict=True)])
    return (images + 0.2 * torch.randn(n, 28, 28, generator=generator))[:, None], labels


def digits(n: int) -> tuple[Tensor, Tensor]:
    from quadjoint.experiments.data import data_home, load, missing

    if not QUICK and missing("mnist", data_home()) is None:
        found = load("mnist", "train", data_home(), n)
        return found.x / 255.0, found.y
    return drawn_digits(n, torch.Generator().manual_seed(0))


class ConcatConv(nn.Conv2d):
    """A convolution that sees the time as one more channel."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels + 1, channels, 3, padding=1)

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        return super().forward(torch.cat([torch.ones_like(x[:, :1]) * t, x], dim=1))


class ODEFunc(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(3))
        self.convolutions = nn.ModuleList(ConcatConv(channels) for _ in range(2))

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=False):
            x = convolution(t, norm(x).relu())
        return self.norms[-1](x)


class ODEBlock(nn.Module):
    def __init__(self, func: nn.Module) -> None:
        super().__init__()
        self.func, self.times = func, torch.tensor([0.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return odeint(self.func, x, self.times, rtol=1e-3, atol=1e-3)[1]


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, WIDTH, 3, 1),
    nn.GroupNorm(4, WIDTH),
    nn.ReLU(),
    nn.Conv2d(WIDTH, WIDTH, 4, 2, 1),
    nn.GroupNorm(4, WIDTH),
    nn.ReLU(),
    nn.Conv2d(WIDTH, WIDTH, 4, 2, 1),
    ODEBlock(ODEFunc(WIDTH)),
    nn.GroupNorm(4, WIDTH),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(WIDTH, 10),
)
images, labels = digits(BATCH * ITERATIONS)
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for iteration in range(ITERATIONS):
    batch = slice(iteration * BATCH, (iteration + 1) * BATCH)
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    if iteration % 25 == 0 or iteration == ITERATIONS - 1:
        print(f"{iteration:4d}  loss {losses[-1]:.4f}")

figure, (shown, learning) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(1, 1.4))
with torch.no_grad():
    guesses = model(images[-8:]).argmax(1)
shown.imshow(images[-8:].reshape(2, 4, 28, 28).transpose(1, 2).reshape(56, 112).numpy(), cmap="gray")
shown.set(xticks=[], yticks=[], title="read as " + " ".join(map(str, guesses.tolist())))
learning.semilogy(losses, color="0.3")
learning.set(xlabel="iteration", ylabel="cross-entropy")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/odenet.png", dpi=150)
print("outputs/odenet.png")
