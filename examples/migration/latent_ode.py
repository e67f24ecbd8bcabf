"""A latent ODE as a program for torchdiffeq is written; one import line makes it run on quadjoint.

Spirals in both senses, all observed at the same times: a recurrent network reads each backwards, the latent ODE carries
the state to all times, a decoder maps to the plane (Chen et al. 2018). `examples/latent_ode.py` is the same model with
times that differ between the curves, which torchdiffeq does not have.

    python examples/migration/latent_ode.py [--quick]
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from quadjoint.torchdiffeq import odeint  # before: from torchdiffeq import odeint

QUICK = "--quick" in sys.argv
ITERATIONS, CURVES, SEEN = (3, 8, 10) if QUICK else (400, 200, 30)
LATENT, NOISE = 4, 0.1


def spirals(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Times (K,), noisy and exact points (n, K, 2)."""
    t = torch.linspace(0, 2, SEEN)
    sense = torch.where(torch.rand(n, 1) < 0.5, -1.0, 1.0)
    radius = 1.0 - 0.35 * sense * (t - 1)
    angle = 2 * math.pi * torch.rand(n, 1) + 2.0 * sense * t
    exact = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return t, exact + NOISE * torch.randn_like(exact), exact


class LatentODEFunc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, 20), nn.ELU(), nn.Linear(20, 20), nn.ELU(), nn.Linear(20, LATENT))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.net(z)


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Sequential(nn.Linear(2 + 25, 25), nn.Tanh())
        self.code = nn.Linear(25, 2 * LATENT)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros(len(points), 25)
        for point in points.flip(1).unbind(1):
            h = self.step(torch.cat([point, h], dim=1))
        mean, log_variance = self.code(h).chunk(2, dim=1)
        return mean, log_variance


torch.manual_seed(0)
func, recogniser = LatentODEFunc(), Recogniser()
decoder = nn.Sequential(nn.Linear(LATENT, 20), nn.ReLU(), nn.Linear(20, 2))
t, points, exact = spirals(CURVES)
optimiser = torch.optim.Adam([p for m in (func, recogniser, decoder) for p in m.parameters()], lr=0.01)
losses = []
for iteration in range(ITERATIONS):
    mean, log_variance = recogniser(points)
    z0 = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    predicted = decoder(odeint(func, z0, t)).transpose(0, 1)
    likelihood = -0.5 * ((predicted - points) / NOISE).square().sum((1, 2))
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    loss = (divergence - likelihood).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    if iteration % 50 == 0 or iteration == ITERATIONS - 1:
        print(f"{iteration:4d}  loss {losses[-1]:.2f}")

figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained", sharex=True, sharey=True)
with torch.no_grad():
    z0, _ = recogniser(points[:4])
    paths = decoder(odeint(func, z0, torch.linspace(0, 2.5, 60))).transpose(0, 1)
for i, axis in enumerate(axes):
    axis.plot(*points[i].T, "k.", ms=4)
    axis.plot(*exact[i].T, color="0.6", ls="--", lw=1)
    axis.plot(*paths[i].T, color="tab:blue")
    axis.set(aspect="equal", xticks=[], yticks=[])
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/migration_latent_ode.png", dpi=150)
print("outputs/migration_latent_ode.png")
