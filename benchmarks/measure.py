"""Timing in turns, with limits; the peak memory; the machine."""

from __future__ import annotations

import gc
import os
import platform
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.methods import Runner
from quadjoint.experiments.timing import commit, processor, version
from quadjoint.experiments.timing import peak_memory as bytes_at_peak

PACKAGES = ("quadjoint", "torch", "numpy", "torchdiffeq", "torchode", "diffrax", "jax", "torchsde")
# Methods that aims compare: however slow, each is timed in some turns with the others.
JUDGED = (
    *(f"quadjoint:{name}" for name in ("auto", "discrete", "discrete-lean", "direct", "gq", "gq-paper")),
    "torchdiffeq:direct",
    "paper:gq",
)
MAIN = (*JUDGED, "torchdiffeq:adjoint")  # whose peak memory is measured though they are slow
SHORT = 0.06  # seconds: runs shorter than this are repeated within a turn


@dataclass(frozen=True)
class Limits:
    """How long to measure: turns of each contender, seconds for one run, seconds for all runs of a contender."""

    turns: int = 7
    least: int = 3  # turns of a method that is `JUDGED`, however long they take
    run: float = 20.0
    compiled_run: float = 240.0  # the first run of a method that compiles
    total: float = 1.5
    memory_run: float = 0.5  # the peak memory is measured of methods faster than this, and of the main ones


QUICK = Limits(turns=5, least=1, run=4.0, total=0.7, memory_run=0.2)
FULL = Limits()


class TooSlow(Exception):
    """A run did not end within its limit."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TooSlow`` in the body when the time is up (between two operations, where signals are delivered)."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"one gradient takes more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@dataclass
class Contender:
    """Something to time in turns with others. ``record`` is its line of results."""

    run: Callable[[], Any]
    record: dict[str, Any]
    first_seconds: float
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # seconds of the processor, of every run that was timed in a turn
    turns: list[float | None] = field(default_factory=list)  # the median of every turn; None where it was left out

    @property
    def spent(self) -> float:
        return sum(self.seconds)


def in_turns(contenders: list[Contender], limits: Limits) -> None:
    """Time all contenders, one after another in every turn, so that a slow moment of the machine meets them all.

    The order of a turn is drawn, so that nobody always comes after the same. A contender drops out once its time is
    used up; one that is `JUDGED` not before ``limits.least``. One that is not, and whose first run was slow, keeps that
    run as its only one: ``cold`` in its record.
    """
    gc.collect()
    for c in contenders:
        c.record["cold"] = (
            c.first_seconds > 2 * limits.total and not c.record.get("compiled") and c.record["method"] not in JUDGED
        )
        if c.record["cold"]:
            c.seconds, c.cpu = [c.first_seconds], []
    for turn in range(limits.turns):
        for c in random.Random(turn).sample(contenders, len(contenders)):
            if _spent(c, turn, limits):
                c.turns.append(None)
                continue
            before, pace = len(c.seconds), min(c.seconds) if c.seconds else c.first_seconds
            for _ in range(max(1, min(10, int(SHORT / max(pace, 1e-6))))) if turn else range(1):
                _time_once(c)
            c.turns.append(statistics.median(c.seconds[before:]))
    for c in contenders:
        c.record |= {
            "seconds_best": min(c.seconds),
            "seconds_median": statistics.median(c.seconds),
            "seconds_turns": c.turns,
            "runs": len(c.seconds),
            "cpu_best": min(c.cpu, default=None),
            "cpu_per_second": sum(c.cpu) / c.spent if c.cpu else None,
        }


def _spent(c: Contender, turn: int, limits: Limits) -> bool:
    """Whether the contender has had its time."""
    if c.record["method"] in JUDGED and turn < limits.least:
        return False
    return bool(c.spent and (c.spent > limits.total or c.spent + min(c.seconds) > 1.5 * limits.total))


def _time_once(c: Contender) -> None:
    cpu, start = time.process_time(), time.perf_counter()
    c.run()
    c.seconds.append(time.perf_counter() - start)
    c.cpu.append(time.process_time() - cpu)


def peak_memory(runner: Runner, record: dict[str, Any], limits: Limits) -> int | None:
    """Most bytes of tensors held during one gradient, beyond those held before; None if too slow or not torch's."""
    longest = 10 * limits.memory_run if record["method"] in MAIN else limits.memory_run
    if not runner.torch_memory or record["seconds_best"] > longest:
        return None
    return bytes_at_peak(runner.run)


def activation_bytes(f: torch.nn.Module, y: torch.Tensor) -> int:
    """Bytes that autograd saves of one evaluation of f, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in f.parameters()}
    saved: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = f(torch.zeros((), dtype=y.dtype), y.detach().requires_grad_())
    del out
    return sum(saved.values())


def machine() -> dict[str, Any]:
    """What a reader needs to know about the machine; nothing that names it."""
    return {
        "kind": "machine",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(_memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "commit": commit(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
