"""Events: gravity and elasticity of a ball, learnt from the times at which it hits the ground.

A ball falls, and at every bounce its velocity is turned round and reduced. All that is observed are the times of the
first bounces, with noise. ``odeint`` with ``event_fn`` ends a solve where the height changes sign and returns that
time, which is differentiable in everything it depends on (by the implicit function theorem), so the times can be fitted
by gradient descent.

    python examples/bouncing_ball.py [--quick]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, BOUNCES = (3, 2) if QUICK else (150, 5)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Ball(nn.Module):
    """State (height, velocity)."""

    def __init__(self, gravity: float, elasticity: float) -> None:
        super().__init__()
        self.log_gravity = nn.Parameter(torch.tensor(gravity).log())
        self.elasticity = nn.Parameter(torch.tensor(elasticity))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[1], -self.log_gravity.exp()])

    def bounces(self, y: Tensor, n: int) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Times of the first n bounces, and where each flight started."""
        t, times, flights = torch.zeros(()), [], []
        for _ in range(n):
            flights.append((t, y))
            t, ys = qj.odeint(self, y, torch.stack([t, t.detach() + 1.0]), event_fn=lambda t, y: y[0], rtol=1e-8)
            times.append(t)
            # Off the ground by a hair: the event function must not be zero where the next flight starts.
            y = torch.stack([ys[-1, 0].detach().abs() + 1e-9, -self.elasticity * ys[-1, 1]])
        return times, flights


dropped = torch.tensor([2.0, 0.0])
truth = Ball(gravity=9.81, elasticity=0.8)
with torch.no_grad():
    observed = torch.stack(truth.bounces(dropped, BOUNCES)[0]) + 0.005 * torch.randn(BOUNCES)

ball = Ball(gravity=4.0, elasticity=0.5)
optimiser = torch.optim.Adam(ball.parameters(), lr=0.05)
history = []
for iteration in range(ITERATIONS):
    times, _ = ball.bounces(dropped, BOUNCES)
    loss = (torch.stack(times) - observed).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    history.append((ball.log_gravity.exp().item(), ball.elasticity.item()))
    if iteration % 30 == 0 or iteration == ITERATIONS - 1:
        gravity, elasticity = history[-1]
        error = 1e3 * loss.item() ** 0.5
        print(f"{iteration:4d}  gravity {gravity:6.3f}  elasticity {elasticity:.3f}  error {error:.1f} ms")

figure, (flight, learning) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
with torch.no_grad():
    for model, style, name in ((truth, "k--", "the ball"), (ball, "tab:blue", "as learnt")):
        times, flights = model.bounces(dropped, BOUNCES)
        for i, ((start, y), end) in enumerate(zip(flights, times, strict=True)):
            t = torch.linspace(float(start), float(end), 50)
            height = qj.odeint(model, y, t)[:, 0]
            flight.plot(t, height, style, lw=1.2, label=name if i == 0 else None)
flight.plot(observed, torch.zeros(BOUNCES), "o", color="tab:red", label="bounces observed")
flight.set(xlabel="time, s", ylabel="height, m")
flight.legend(frameon=False)
learning.plot([g for g, _ in history], color="tab:blue", label="gravity, m/s²")
learning.axhline(9.81, color="tab:blue", lw=0.8, ls=":")
learning.plot([10 * e for _, e in history], color="tab:orange", label="elasticity × 10")
learning.axhline(8.0, color="tab:orange", lw=0.8, ls=":")
learning.set(xlabel="iteration", ylim=(3, 11))
learning.legend(frameon=False)
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/bouncing_ball.png", dpi=150)
print("outputs/bouncing_ball.png")
