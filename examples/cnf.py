"""A continuous normalising flow on densities of the plane: the divergence is computed inside f.

Samples x are carried by dx/dt = f(t, x) to a standard normal distribution; the logarithm of their density changes by
the divergence (Chen et al. 2018, Grathwohl et al. 2019):

    log p(x) = log N(x(1)) + int_0^1 div f(t, x(t)) dt.

The state is the pair (x, integral), and f differentiates itself for the divergence. Nothing else is needed, not even
``requires_grad_``: every gradient method works on dynamics that differentiate.

    python examples/cnf.py [--quick]
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, BATCH, GRID = (2, 32, 12) if QUICK else (500, 256, 120)
torch.manual_seed(0)


def moons(n: int) -> Tensor:
    angle, upper = math.pi * torch.rand(n), torch.rand(n) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return 1.6 * torch.stack([x, y], dim=1) + 0.1 * torch.randn(n, 2)


def pinwheel(n: int) -> Tensor:
    arm = torch.randint(5, (n,))
    radius = 1.0 + 0.3 * torch.randn(n)
    across = 0.05 * torch.randn(n)
    angle = 2 * math.pi * arm / 5 + 0.9 * radius.exp() / 2
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], -2)
    return 1.4 * (turn @ torch.stack([radius, across], dim=-1)[..., None])[..., 0]


def checkerboard(n: int) -> Tensor:
    x = 4 * torch.rand(n) - 2
    row = torch.rand(n) - 2 * torch.randint(2, (n,))
    return torch.stack([x, row + x.floor() % 2], dim=1)


class Flow(nn.Module):
    """Velocity and its divergence, of the state (x, integral of the divergence)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = qj.nn.TimeMLP(2, width=64, depth=3, activation=nn.Tanh)

    def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, _ = state
        velocity = self.net(t, x)
        rows = [torch.autograd.grad(velocity[:, i].sum(), x, create_graph=True)[0] for i in range(2)]
        return velocity, rows[0][:, 0] + rows[1][:, 1]

    def log_density(self, x: Tensor) -> Tensor:
        t = torch.tensor([0.0, 1.0])
        z, integral = qj.odeint(self, (x, torch.zeros(len(x))), t, rtol=1e-3, atol=1e-3)
        normal = -0.5 * z[-1].square().sum(1) - math.log(2 * math.pi)
        return normal + integral[-1]

    def sample(self, n: int) -> Tensor:
        """Backwards in time, from the normal distribution; no divergence is needed."""
        return qj.odeint(self.net, torch.randn(n, 2), torch.tensor([1.0, 0.0]), rtol=1e-4, atol=1e-4)[-1]


figure, axes = plt.subplots(3, 3, figsize=(8, 8), layout="constrained")
ticks = torch.linspace(-3, 3, GRID)
plane = torch.cartesian_prod(ticks, ticks)
for column, density in zip(axes.T, (moons, pinwheel, checkerboard), strict=True):
    flow = Flow()
    optimiser = torch.optim.Adam(flow.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ITERATIONS)
    for iteration in range(ITERATIONS):
        loss = -flow.log_density(density(BATCH)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if iteration % 100 == 0 or iteration == ITERATIONS - 1:
            print(f"{density.__name__} {iteration:4d}  negative log-likelihood {loss.item():.3f}")
    with torch.no_grad():
        image = flow.log_density(plane).exp().reshape(GRID, GRID)
        drawn = flow.sample(50 if QUICK else 4000)
    total = image.sum().item() * (6 / (GRID - 1)) ** 2
    print(f"{density.__name__}: the density integrates to {total:.3f} over the square")
    for axis, points in ((column[0], density(4000)), (column[2], drawn)):
        axis.plot(*points.T, ".", ms=1, color="0.3")
    column[1].imshow(image.T.numpy(), origin="lower", extent=(-3, 3, -3, 3), cmap="magma")
    column[0].set_title(density.__name__)
for row, name in zip(axes, ("data", "learnt density", "samples of the flow"), strict=True):
    row[0].set_ylabel(name)
    for axis in row:
        axis.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xticks=[], yticks=[])
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/cnf.png", dpi=130)
print("outputs/cnf.png")
