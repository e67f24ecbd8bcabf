"""Two processes with gloo: what every gradient gives under DistributedDataParallel and fully_shard.

The tests start `run` once and look at what it saved.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import quadjoint as qj
from trust.helpers import DTYPE, GRADIENTS, Field, name_of, normal, times

ITERATIONS = 3
REPLICATED = (*GRADIENTS, "reversible")
Found = dict[str, Tensor | None] | str  # gradients by name, or the words of an error


class Model(nn.Module):
    """A solve with fixed steps before a layer; ``unused`` adds a parameter that the dynamics do not look at."""

    def __init__(self, gradient: Any, *, unused: bool = False) -> None:
        super().__init__()
        self.field, self.gradient = Field(4, 12), gradient
        if unused:
            self.field.unused = nn.Parameter(torch.ones(2, dtype=DTYPE))
        self.last = nn.Linear(4, 1, dtype=DTYPE)
        nn.init.constant_(self.last.weight, 0.5)
        nn.init.zeros_(self.last.bias)

    def forward(self, y: Tensor) -> Tensor:
        # Adaptive steps would depend on which samples share a batch.
        method = {"reversible": "alf", "direct, alf": "alf"}.get(self.gradient, "rk4")
        gradient = "direct" if self.gradient == "direct, alf" else self.gradient
        options = {"step_size": 0.25}
        return self.last(
            qj.odeint(self.field, y, times(0.0, 1.0), method=method, gradient=gradient, options=options)[-1]
        )


def batch() -> Tensor:
    return normal(4, 4)


def alone(gradient: Any = "direct") -> dict[str, Tensor]:
    """The gradients of one process, by backpropagation through the steps that ``gradient`` needs."""
    model = Model("direct, alf" if gradient == "reversible" else "direct")
    model(batch()).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def attempt(model: nn.Module, rank: int) -> Found:
    """The gradients of one iteration."""
    model.zero_grad()
    try:
        model(batch()[rank::2]).square().mean().backward()
        return gradients(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def gradients(model: nn.Module) -> Found:
    return {name.removeprefix("module."): whole(p.grad) for name, p in model.named_parameters()}


def whole(gradient: Any) -> Tensor | None:
    """A gradient with the parts of all processes."""
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def replicated(gradient: Any, rank: int, *, unused: bool, static: bool) -> list[Found]:
    model = DistributedDataParallel(Model(gradient, unused=unused), static_graph=static)
    return [attempt(model, rank) for _ in range(ITERATIONS)]


def sharded(gradient: Any, rank: int, *, dynamics: bool) -> list[Found]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (2,)), Model(gradient)
    if dynamics:
        fully_shard(model.field, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return [attempt(model, rank) for _ in range(2)]


def accumulated(gradient: Any, rank: int, *, shards: bool) -> list[Found]:
    """The gradient in two parts, of which the processes exchange only the sum."""
    model: Any = Model(gradient)
    if shards:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = DistributedDataParallel(model)

    def attempt_parts() -> Found:
        model.zero_grad()
        first, second = batch()[rank::2].split(1)
        try:
            if shards:
                model.set_requires_gradient_sync(False)
            with nullcontext() if shards else model.no_sync():
                (model(first).square().mean() / 2).backward()
            if shards:
                model.set_requires_gradient_sync(True)
            (model(second).square().mean() / 2).backward()
            return gradients(model)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return [attempt_parts() for _ in range(2)]


def everything(rank: int) -> dict[str, dict[str, list[Found]]]:
    """What every wrapper gives with every gradient."""
    wrappers: dict[str, Callable[..., list[Found]]] = {
        "replicated": lambda g: replicated(g, rank, unused=False, static=False),
        "unused": lambda g: replicated(g, rank, unused=True, static=False),
        "unused, static graph": lambda g: replicated(g, rank, unused=True, static=True),
        "sharded": lambda g: sharded(g, rank, dynamics=False),
        "dynamics sharded": lambda g: sharded(g, rank, dynamics=True),
        "accumulated": lambda g: accumulated(g, rank, shards=False),
        "accumulated shards": lambda g: accumulated(g, rank, shards=True),
    }
    return {name: {name_of(g): wrap(g) for g in REPLICATED} for name, wrap in wrappers.items()}


def _work(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=limit)
    torch.save(everything(rank), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path) -> list[dict[str, dict[str, list[Found]]]]:
    """The results of both processes."""
    mp.spawn(_work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
