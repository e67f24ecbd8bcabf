"""Data-parallel training under ``torchrun``: every process takes its share of each batch.

Without torchrun a `Team` is this process alone and adds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn


class _Objective(nn.Module):
    """Loss and model as one module, which is what DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, loss: Callable[..., tuple[Tensor, Any]]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, Any]:
        return self.loss(self.model, batch, generator)


@dataclass(frozen=True)
class Team:
    """The processes that train one model together."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes results and speaks to the user."""
        return self.rank == 0

    def objective(self, model: nn.Module, loss: Callable[..., tuple[Tensor, Any]]) -> nn.Module:
        """The loss as a module of a batch whose gradients are averaged over the team."""
        objective = _Objective(model, loss)
        return objective if self.size == 1 else nn.parallel.DistributedDataParallel(objective)

    def share(self, batch: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], float]:
        """This process's rows, and the weight that makes the mean over processes the mean over the batch."""
        if self.size == 1:
            return batch, 1.0
        rows = len(batch[0])
        if rows < self.size:
            raise ValueError(f"a batch of {rows} rows cannot be shared by {self.size} processes")
        share = tuple(tensor[self.rank :: self.size] for tensor in batch)
        return share, len(share[0]) * self.size / rows

    def mean(self, value: float) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(tensor)
        return float(tensor) / self.size

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.size > 1:
            distributed.barrier()


def under_torchrun() -> bool:
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def join(device: str = "cpu") -> Team:
    """Join the processes that torchrun started (gloo on the CPU, nccl on CUDA)."""
    if not under_torchrun():
        return Team()
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("cpu:gloo,cuda:nccl")
    else:
        distributed.init_process_group("gloo")
    return Team(distributed.get_rank(), distributed.get_world_size())


def leave(team: Team) -> None:
    if team.size > 1:
        distributed.destroy_process_group()
