"""Augmented neural ODEs: what a flow of the plane cannot separate, a flow of space can.

A disc inside a ring: the flow of an ODE in the plane is a continuous deformation of it and cannot pull the disc out of
the ring: it opens a channel through the ring instead, and is wrong about whatever lies in that channel. One more
dimension, filled with zeros, gives room to lift the disc (Dupont et al. 2019).

    python examples/augmented.py [--quick]
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, POINTS = (3, 40) if QUICK else (300, 400)


def disc_and_ring(n: int) -> tuple[Tensor, Tensor]:
    """Points and labels: 1 inside radius 0.5, 0 between 1 and 1.5."""
    inside = torch.arange(n) % 2 == 0
    radius = torch.where(inside, 0.5 * torch.rand(n).sqrt(), 1 + 0.5 * torch.rand(n))
    angle = 2 * math.pi * torch.rand(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), inside.float()


def classifier(extra: int) -> nn.Sequential:
    f = qj.nn.TimeMLP(2 + extra, width=32, activation=nn.Tanh)
    return nn.Sequential(qj.nn.Augment(extra), qj.nn.NeuralODE(f, rtol=1e-3, atol=1e-3), nn.Linear(2 + extra, 1))


torch.manual_seed(0)
points, labels = disc_and_ring(POINTS)
figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), layout="constrained")
for row, extra in zip(axes, (0, 1), strict=True):
    torch.manual_seed(1)
    model = classifier(extra)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    evaluations = []
    for _ in range(ITERATIONS):
        batch = torch.randperm(POINTS)[:100]
        solution = model[1].solve(model[0](points[batch]))
        loss = nn.functional.binary_cross_entropy_with_logits(model[2](solution.ys[-1])[:, 0], labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        evaluations.append(solution.stats.forward_evaluations)
    with torch.no_grad():
        right = ((model(points)[:, 0] > 0) == (labels > 0)).float().mean()
        ticks = torch.linspace(-1.7, 1.7, 15 if QUICK else 100)
        plane = torch.cartesian_prod(ticks, ticks)
        chance = model(plane).sigmoid().reshape(len(ticks), -1)
        end = model[1](model[0](points))
    name = f"{extra} extra dimension{'' if extra == 1 else 's'}"
    print(f"{name}: {100 * right:.1f} % right, {evaluations[-1]} evaluations at the end")

    colours = ["tab:blue" if label else "tab:orange" for label in labels]
    row[0].imshow(
        chance.T.numpy(), origin="lower", extent=(-1.7, 1.7, -1.7, 1.7), cmap="PuOr", vmin=0, vmax=1, alpha=0.4
    )
    row[0].scatter(*points.T, s=4, c=colours)
    row[0].set(title=f"{name}: {100 * right:.1f} % right", xticks=[], yticks=[])
    if extra:  # seen from the side: the learnt direction against the extra dimension
        row[1].scatter(end[:, 0], end[:, 2], s=4, c=colours)
        row[1].set(title="after the flow, from the side", xlabel="first", ylabel="extra")
    else:
        row[1].scatter(*end.T, s=4, c=colours)
        row[1].set(title="after the flow", xlabel="first", ylabel="second")
    row[2].plot(evaluations, color="0.3")
    row[2].set(title="evaluations a forward solve", xlabel="iteration", ylim=(0, 70))
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/augmented.png", dpi=130)
print("outputs/augmented.png")
