"""A latent ODE on irregular spirals: every curve is seen at times of its own.

Clockwise and anticlockwise spirals are observed with noise at a random number of random times. A recurrent network
reads a curve backwards in time into a Gaussian over the latent state at its first time; the latent ODE carries a sample
of it to all times, shape (B, K) with NaN where a curve has fewer of them; a decoder maps to the plane (the model of
Chen et al. 2018 and Rubanova et al. 2019). The loss is the negative evidence lower bound.

    python examples/latent_ode.py [--quick]
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
CURVES, ITERATIONS, BATCH = (12, 3, 6) if QUICK else (400, 1500, 32)
LATENT, NOISE, LONGEST = 4, 0.05, 40
torch.manual_seed(0)


def spiral(t: Tensor, clockwise: Tensor, phase: Tensor) -> Tensor:
    """Points at times t in [0, 4], shape (..., 2): the radius shrinks or grows with the sense of rotation."""
    radius = torch.where(clockwise, 1.6 - 0.3 * t, 0.4 + 0.3 * t)
    angle = phase + torch.where(clockwise, -1.0, 1.0) * 1.6 * t
    return radius[..., None] * torch.stack([angle.cos(), angle.sin()], dim=-1)


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Times (B, K) with NaN at the ends, noisy points (B, K, 2), and sense and phase of every curve."""
    t = torch.rand(CURVES, LONGEST, dtype=torch.float64).mul(3.0).sort(dim=1).values
    count = torch.randint(15, LONGEST + 1, (CURVES, 1))
    t = torch.where(torch.arange(LONGEST) < count, t, math.nan)
    clockwise, phase = torch.rand(CURVES, 1) < 0.5, 2 * math.pi * torch.rand(CURVES, 1)
    points = spiral(t.float(), clockwise, phase)
    return t, points + NOISE * torch.randn_like(points), clockwise, phase


class LatentODE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(3, 32, batch_first=True)
        self.code = nn.Linear(32, 2 * LATENT)
        self.dynamics = qj.nn.TimeMLP(LATENT, width=32, time=False, activation=nn.Tanh)
        self.decode = qj.nn.MLP(LATENT, 32, 2, activation=nn.Tanh)

    def encode(self, t: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the latent state at the first time."""
        there = ~torch.isnan(t)
        gaps = torch.diff(t, append=t[:, -1:]).float()  # how long until the next observation
        seen = torch.cat([points, gaps[..., None]], dim=-1).nan_to_num()
        backwards = torch.where(there, torch.arange(t.shape[1]), -1).argsort(dim=1, descending=True)
        ordered = seen.gather(1, backwards[..., None].expand_as(seen))
        states, _ = self.read(ordered)
        last = there.sum(1) - 1
        mean, spread = self.code(states[torch.arange(len(t)), last]).chunk(2, dim=-1)
        return mean, nn.functional.softplus(spread) + 1e-3

    def forward(self, z0: Tensor, t: Tensor) -> Tensor:
        """Points at times t, shape (K, B, 2)."""
        return self.decode(qj.odeint(self.dynamics, z0, t, rtol=1e-3, atol=1e-3))


t, points, clockwise, phase = data()
model = LatentODE()
optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ITERATIONS)
for iteration in range(ITERATIONS):
    chosen = torch.randperm(CURVES)[:BATCH]
    times, curve = t[chosen], points[chosen]
    there = ~torch.isnan(times)
    mean, spread = model.encode(times, curve)
    z0 = mean + spread * torch.randn_like(spread)
    error = torch.where(there[..., None], model(z0, times).transpose(0, 1) - curve.nan_to_num(), 0.0)
    likelihood = -0.5 * (error / (2 * NOISE)).square().sum((1, 2))
    divergence = 0.5 * (mean.square() + spread.square() - 1 - 2 * spread.log()).sum(1)
    weight = min(1.0, 2 * iteration / ITERATIONS)  # of the divergence, growing in the first half
    loss = (weight * divergence - likelihood).mean()
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimiser.step()
    schedule.step()
    if iteration % 250 == 0 or iteration == ITERATIONS - 1:
        root = (error.square().sum() / there.sum() / 2).sqrt()
        print(f"{iteration:4d}  loss {loss.item():8.2f}  error a coordinate {root:.3f} (noise {NOISE})")

figure, axes = plt.subplots(2, 4, figsize=(10, 5.2), layout="constrained", sharex=True, sharey=True)
grid = torch.linspace(0, 4, 200, dtype=torch.float64)
with torch.no_grad():
    mean, spread = model.encode(t[:8], points[:8])
    for i, axis in enumerate(axes.flat):
        since = grid[grid >= t[i, 0]]
        for _ in range(10):
            path = model((mean[i] + spread[i] * torch.randn(LATENT))[None], since)[:, 0]
            axis.plot(*path.T, color="tab:blue", lw=0.8, alpha=0.5)
        axis.plot(*spiral(grid.float(), clockwise[i], phase[i]).T, color="0.6", lw=1, ls="--")
        axis.plot(*points[i].T, "k.", ms=4)
        axis.set(aspect="equal", xlim=(-2, 2), ylim=(-2, 2), xticks=[], yticks=[])
axes[0, 0].set_title("points seen, truth (dashed), ten samples to t = 4", fontsize=9, loc="left")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/latent_ode.png", dpi=150)
print("outputs/latent_ode.png")
