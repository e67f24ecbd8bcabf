"""Learning when to measure: times are tensors with gradients, like any other input.

A drug is taken up into the blood at rate a and leaves it at rate e; the concentration is y2 of

    dy1/dt = -a y1,   dy2/dt = a y1 - e y2,   y(0) = (1, 0).

Three blood samples are to tell a, e and the dose. How well they do is the determinant of the Fisher information
(D-optimal design), made of the sensitivities of y2 at the sampling times, which are part of the state. Gradients with
respect to the times come from the flow at the observations, dL/dt_k = <dL/dy(t_k), f(t_k, y(t_k))>.

    python examples/measurement_times.py [--quick]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS = 5 if QUICK else 200
torch.set_default_dtype(torch.float64)
UPTAKE, ELIMINATION = 1.5, 0.25  # per hour


def concentration(t: Tensor, y: Tensor) -> Tensor:
    """State (y1, y2) and its derivatives in a and in e: (dy1/da, dy2/da, dy1/de, dy2/de)."""
    y1, y2, y1a, y2a, y1e, y2e = y
    return torch.stack(
        [
            -UPTAKE * y1,
            UPTAKE * y1 - ELIMINATION * y2,
            -UPTAKE * y1a - y1,
            UPTAKE * y1a - ELIMINATION * y2a + y1,
            -UPTAKE * y1e,
            UPTAKE * y1e - ELIMINATION * y2e - y2,
        ]
    )


def information(t: Tensor) -> Tensor:
    """The logarithm of the determinant of the Fisher information in (a, e, dose) of samples at times t, (K,)."""
    start = torch.tensor([1.0, 0, 0, 0, 0, 0])
    ys = qj.odeint(concentration, start, torch.cat([torch.zeros(1), t]), rtol=1e-7, atol=1e-9)[1:]
    sensitivities = ys[:, [3, 5, 1]]  # of y2 in a, in e, and in the dose, which it is proportional to
    return torch.logdet(sensitivities.T @ sensitivities)


gaps = nn.Parameter(torch.tensor([3.0, 3.0, 3.0]).log())  # positive, so that the times stay in order
optimiser = torch.optim.Adam([gaps], lr=0.05)
history = []
for iteration in range(ITERATIONS):
    times = gaps.exp().cumsum(0)
    loss = -information(times)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    history.append(times.detach())
    if iteration % 50 == 0 or iteration == ITERATIONS - 1:
        print(f"{iteration:4d}  log det {-loss.item():7.3f}  times " + "  ".join(f"{t:.2f}" for t in times))
best = history[-1]

nearby = [best.clone() for _ in range(6)]
for k in range(3):
    nearby[2 * k][k] += 0.2
    nearby[2 * k + 1][k] -= 0.2
print("information lost by moving one sample by 0.2 h:", [f"{information(best) - information(t):.4f}" for t in nearby])

figure, (curve, learning) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
grid = torch.linspace(0, 14, 200)
ys = qj.odeint(concentration, torch.tensor([1.0, 0, 0, 0, 0, 0]), grid)
for column, name in ((1, "concentration"), (3, "its derivative in a"), (5, "its derivative in e, ÷ 4")):
    curve.plot(grid, ys[:, column] / (4 if column == 5 else 1), label=name)
for i, t in enumerate(best):
    curve.axvline(t, color="k", lw=1, ls="--", label="best times to sample" if i == 0 else None)
curve.set(xlabel="hours after taking it")
curve.legend(frameon=False, fontsize="small")
learning.plot(torch.stack(history), color="0.3")
learning.set(xlabel="iteration", ylabel="sampling times, h", ylim=(0, None))
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/measurement_times.png", dpi=150)
print("outputs/measurement_times.png")
