"""Events of each sample: gravity and elasticity of many balls at once, learnt from the times of their bounces.

Every ball falls on a planet of its own and bounces with an elasticity of its own. All that is observed are the times of
its first bounces within a few seconds, with noise: many for some balls, two for others. ``independent=True`` solves all
flights in one call, each in steps of its own up to its own bounce; a ball that is still in the air at the horizon says
so in its status, and is left out from then on.

    python examples/bouncing_balls.py [--quick]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
BALLS, ITERATIONS, BOUNCES = (6, 3, 2) if QUICK else (48, 150, 5)
END, NOISE = 3.0, 0.002
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Balls(nn.Module):
    """State (height, velocity) of each ball."""

    def __init__(self, gravity: Tensor, elasticity: Tensor) -> None:
        super().__init__()
        self.log_gravity = nn.Parameter(gravity.log())
        self.elasticity = nn.Parameter(elasticity)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 1], -self.log_gravity.exp()], dim=1)

    def bounces(self, y: Tensor, n: int, horizon: float) -> tuple[Tensor, Tensor]:
        """Times of the first n bounces, shape (n, balls), and which of them came before the horizon."""
        t = torch.zeros(len(y))
        there = torch.ones(len(y), dtype=torch.bool)
        times, seen = [], []
        for _ in range(n):
            end = torch.full_like(t, horizon)
            flight = qj.solve(
                self,
                y,
                torch.stack([t, torch.where(there, end, t.detach() + 1.0)], dim=1),
                event_fn=lambda t, y: y[:, 0],
                independent=True,
                rtol=1e-8,
                options={"event_direction": "down"},
            )
            there = there & flight.status.event
            t = flight.event_time
            times.append(t)
            seen.append(there)
            # On the ground, upwards: an event at the initial time counts only once the height has left zero.
            y = torch.stack([torch.zeros_like(t), -self.elasticity * flight.ys[-1, :, 1]], dim=1)
        return torch.stack(times), torch.stack(seen)


heights = 1.0 + torch.rand(BALLS)
dropped = torch.stack([heights, torch.zeros(BALLS)], dim=1)
truth = Balls(gravity=2.0 + 13.0 * torch.rand(BALLS), elasticity=0.5 + 0.4 * torch.rand(BALLS))
with torch.no_grad():
    observed, seen = truth.bounces(dropped, BOUNCES, END)
    observed = observed + NOISE * torch.randn(observed.shape)
print(f"{BALLS} balls, {seen.sum(0).min()} to {seen.sum(0).max()} bounces each within {END} s")

balls = Balls(gravity=torch.full((BALLS,), 6.0), elasticity=torch.full((BALLS,), 0.7))
optimiser = torch.optim.Adam(balls.parameters(), lr=0.05)
errors = []
for iteration in range(ITERATIONS):
    times, there = balls.bounces(dropped, BOUNCES, 4 * END)
    both = seen & there
    # Times in the air, of which each bounce adds one, tell the two parameters apart better than the times themselves.
    wrong_by = torch.diff(times - observed, dim=0, prepend=torch.zeros(1, BALLS))
    loss = torch.where(both, wrong_by, 0.0).square().sum() / both.sum()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        wrong = (balls.log_gravity - truth.log_gravity).exp().sub(1).abs().median()
    errors.append((loss.item() ** 0.5, wrong.item()))
    if iteration % 30 == 0 or iteration == ITERATIONS - 1:
        print(f"{iteration:4d}  error {1e3 * errors[-1][0]:7.2f} ms  gravity wrong by {100 * errors[-1][1]:5.2f} %")

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
with torch.no_grad():
    for axis, name, a, b in (
        (axes[0], "gravity, m/s²", truth.log_gravity.exp(), balls.log_gravity.exp()),
        (axes[1], "elasticity", truth.elasticity, balls.elasticity),
    ):
        low, high = float(a.min()), float(a.max())
        axis.plot([low, high], [low, high], "k:", lw=0.8)
        points = axis.scatter(a, b, c=seen.sum(0), s=18, cmap="viridis")
        axis.set(xlabel=f"true {name}", ylabel=f"learnt {name}")
    figure.colorbar(points, ax=axes[1], label="bounces observed")
axes[2].semilogy([1e3 * e for e, _ in errors], color="tab:blue", label="error of the times in the air, ms")
axes[2].semilogy([100 * w for _, w in errors], color="tab:orange", label="error of gravity, % (median)")
axes[2].axhline(1e3 * NOISE * 2**0.5, color="tab:blue", lw=0.8, ls=":")
axes[2].set(xlabel="iteration")
axes[2].legend(frameon=False)
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/bouncing_balls.png", dpi=150)
print("outputs/bouncing_balls.png")
