"""Data parallel training: DistributedDataParallel around a model with a solve in it.

Every process has a part of the batch; gradients are averaged while they are computed. Nothing about the solve needs to
be told: it is a part of the model like any other, whatever its gradient method. On one machine with two processes, on
CPUs (with GPUs, take the backend "nccl" and move model and data to ``cuda:LOCAL_RANK``):

    torchrun --nproc_per_node 2 examples/data_parallel.py [--quick]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, SAMPLES = (3, 32) if QUICK else (80, 512)
torch.set_num_threads(1)


def spirals(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two interleaved spirals and which one each point is on."""
    label = torch.arange(n) % 2
    r = 0.3 + 1.7 * torch.rand(n, generator=generator)
    angle = 2.2 * r + torch.pi * label
    points = torch.stack([r * angle.cos(), r * angle.sin()], dim=1)
    return points + 0.04 * torch.randn(n, 2, generator=generator), label


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x, label = spirals(SAMPLES, torch.Generator().manual_seed(0))
mine = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)

torch.manual_seed(0)
ode = qj.nn.NeuralODE(qj.nn.TimeMLP(4, width=48, activation=nn.Tanh), gradient="discrete")
model = DistributedDataParallel(nn.Sequential(qj.nn.Augment(2), ode, nn.Linear(4, 2)))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for iteration in range(ITERATIONS):
    loss = nn.functional.cross_entropy(model(x[mine]), label[mine])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    losses.append(total.item() / world)
    if rank == 0 and (iteration % 20 == 0 or iteration == ITERATIONS - 1):
        print(f"{iteration:4d}  loss over all processes {losses[-1]:.4f}")

# Every process must have arrived at the same weights.
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
theirs = [torch.empty_like(weights) for _ in range(world)]
dist.all_gather(theirs, weights)
difference = max((weights - other).abs().max().item() for other in theirs)
if rank == 0:
    print(f"{world} processes, largest difference between their weights {difference:.1e}")
    ticks = torch.linspace(-2.3, 2.3, 20 if QUICK else 120)
    plane = torch.cartesian_prod(ticks, ticks)
    with torch.no_grad():
        chance = model.module(plane).softmax(-1)[:, 1].reshape(len(ticks), -1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    left.imshow(chance.T.numpy(), origin="lower", extent=(-2.3, 2.3, -2.3, 2.3), cmap="PuOr", vmin=0, vmax=1, alpha=0.4)
    left.scatter(*x.T, s=4, c=["tab:blue" if i else "tab:orange" for i in label])
    left.set(xticks=[], yticks=[], title=f"trained by {world} processes")
    right.semilogy(losses, color="0.3")
    right.set(xlabel="iteration", ylabel="loss")
    Path("outputs").mkdir(exist_ok=True)
    figure.savefig("outputs/data_parallel.png", dpi=150)
    print("outputs/data_parallel.png")
dist.destroy_process_group()
if difference != 0.0:
    sys.exit("the processes have different weights")
