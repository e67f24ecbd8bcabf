"""Sizes of a solve, from which the costs of gradient methods are predicted, and the memory that there is."""

from __future__ import annotations

import torch
from torch import nn

from quadjoint.gradient.base import Task
from quadjoint.gradient.choose.cost import TYPICAL_EVALUATIONS, Sizes

MOSTLY = 0.9  # share of the parameters in linear layers from which they decide


def sizes_of(task: Task, activation_bytes: int | None, evaluations: int = TYPICAL_EVALUATIONS) -> Sizes:
    """Sizes of a solve; activations that could not be counted are taken for few."""
    shape, params = task.f.shape, task.params
    stepper = task.spec.solver.stepper
    linear = {id(p) for m in task.snapshot.modules if isinstance(m, nn.Linear) for p in m.parameters()}
    total = sum(p.numel() for p in params)
    return Sizes(
        rows=samples(shape),
        features=sample_size(shape),
        state_bytes=shape.numel() * task.f.dtype.itemsize,
        parameter_count=total,
        parameter_bytes=sum(p.numel() * p.element_size() for p in params),
        activation_bytes=activation_bytes or 0,
        evaluations=evaluations,
        linear=sum(p.numel() for p in params if id(p) in linear) > MOSTLY * total,
        transposable=stepper.transposable,
        compiled=stepper is not task.spec.solver.eager,
    )


def samples(shape: torch.Size) -> int:
    """Rows that one product of f has."""
    return max(1, shape[:-1].numel()) if shape else 1


def sample_size(shape: torch.Size) -> int:
    """Numbers in the state of a sample."""
    return shape[-1] if shape else 1


def memory_bytes(device: torch.device) -> float:
    """Memory that this process may use on the device, whether or not it is free at the moment.

    What is free depends on what else is alive; a choice made from it could change a result from one call to the next.
    """
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    limits = [4.0 * 2**30]
    try:
        with open("/proc/meminfo") as file:
            limits = [1024.0 * int(line.split()[1]) for line in file if line.startswith("MemTotal:")]
    except OSError:
        pass
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limits.append(float(file.read()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits)
