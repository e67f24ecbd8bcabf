"""Time and peak memory of a computation, and what to know about the machine that made a result."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.nn import NeuralODE


@dataclass(frozen=True)
class Span:
    """Seconds of the clock on the wall, and seconds for which this thread had a processor."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.wall + other.wall, self.cpu + other.cpu)


@dataclass(frozen=True)
class Stopwatch:
    """Runs from its making.

    A neighbour that takes the processor adds nothing to the time of the thread; one that shares its caches does.
    """

    wall: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.thread_time)

    def span(self) -> Span:
        return Span(time.perf_counter() - self.wall, time.thread_time() - self.cpu)


def peak_memory(work: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors that ``work`` held at any time beyond what was there before it began.

    On the CPU every allocation and release is taken from PyTorch's profiler (so graphs, saved activations and
    temporaries count, Python objects do not); on CUDA the allocator itself keeps the peak.

    >>> peak_memory(lambda: torch.zeros(1000, dtype=torch.float64))
    8000
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise writes to stderr
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profile:
        work()
    results: Any = profile.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def differentiate(model: nn.Module, loss: Callable[..., tuple[Tensor, Any]], batch: tuple[Tensor, ...]) -> None:
    """Put the gradient of the batch's loss into the parameters' ``grad``."""
    model.zero_grad(set_to_none=True)
    value, _ = loss(model, batch, torch.Generator().manual_seed(0))
    value.backward()


def gradient(model: nn.Module, loss: Callable[..., tuple[Tensor, Any]], batch: tuple[Tensor, ...]) -> Tensor:
    """The gradient of the batch's loss in all parameters, as one vector."""
    differentiate(model, loss, batch)
    parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return torch.cat([part.flatten() for part in parts])


def gradient_errors(
    model: nn.Module, loss: Callable[..., tuple[Tensor, Any]], batch: tuple[Tensor, ...], scale: float
) -> dict[str, float]:
    """How far the gradient is off, with the weights of the dynamics made ``scale`` times as large.

    Freshly drawn weights give dynamics so mild that any method is right, and trained ones differ from method to
    method; scaled ones are hard, and the same for all. ``gradient_error`` is relative to the exact gradient (double
    precision, tolerance 1e-9), ``gradient_mismatch`` to the gradient of the loss as it was computed, which
    backpropagation through the solver gives.
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in _odes(model):
            for parameter in module.f.parameters():
                parameter.mul_(scale)
    found = gradient(model, loss, batch).double()
    for module in _odes(model):
        module.gradient = "direct"
    computed = gradient(model, loss, batch).double()
    model.double()
    for module in _odes(model):
        module.gradient, module.rtol, module.atol = "discrete", 1e-9, 1e-9
    exact = gradient(model, loss, tuple(x.double() if x.is_floating_point() else x for x in batch))
    return {
        "gradient_error": float((found - exact).norm() / exact.norm()),
        "gradient_mismatch": float((found - computed).norm() / computed.norm()),
    }


def _odes(model: nn.Module) -> list[NeuralODE]:
    return [module for module in model.modules() if isinstance(module, NeuralODE)]


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """Versions, commit and machine, as they go into every record."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "versions": {name: version(name) for name in ("quadjoint", "torch", "numpy", "torchsde", "scipy")},
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout that this code runs from, ``+`` after it if files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # fails in a folder that is within another checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def short_commit(commit: str) -> str:
    """The first twelve digits; a ``+`` says that files differed from the commit."""
    return commit[:12] + ("+" if commit.endswith("+") and len(commit) > 12 else "")


def processor() -> str:
    if sys.platform == "linux":
        try:
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()
