"""Many solves, failing solves and large solves, and the memory that they leave behind."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import quadjoint as qj
from reliability.faults import Fault, attempt, method_of
from reliability.hostile import Benign, Nan, RaisesBackward

SOUND = Fault("none", Benign)


def live_tensors() -> int:
    """Tensors that Python can still reach, after a collection."""
    gc.collect()
    return sum(1 for x in gc.get_objects() if issubclass(type(x), Tensor))


def memory(name: str) -> int:
    """Bytes of this process as the system has them under a name: VmRSS are resident, RssAnon those of them that are no
    pages of files, which the system may take back, VmHWM were resident at most; the latter if there is no /proc."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def good(gradient: str) -> Callable[[], None]:
    """A solve with its gradient, always of the same function."""
    f = Benign()
    method = method_of(gradient)
    y0 = torch.linspace(-1, 1, 300, dtype=torch.float64).reshape(100, 3)
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)

    def run() -> None:
        f.zero_grad()
        qj.odeint(f, y0, t, method=method, gradient=gradient, rtol=1e-2, atol=1e-2).sum().backward()

    return run


def light(gradient: str) -> Callable[[], None]:
    """As ``good`` in a single step, so that ten thousand are done in reasonable time."""
    f, y0 = Benign(), torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    method = "alf" if gradient == "reversible" else "midpoint"

    def run() -> None:
        f.zero_grad()
        qj.odeint(f, y0, t, method=method, gradient=gradient, options={"step_size": 1.0}).sum().backward()

    return run


def fresh(gradient: str) -> Callable[[], None]:
    """As ``good``, with a new function every time, so that nothing may be kept per function."""
    return lambda: good(gradient)()


def bad(gradient: str) -> Callable[[], None]:
    """A solve that fails on its way forwards, and one that fails on its way back."""
    forwards, backwards = Nan(), RaisesBackward()
    method = "alf" if gradient == "reversible" else "rk4"
    few = Fault("none", Benign, settings={"method": method, "options": {"step_size": 0.2}})

    def run() -> None:
        for f in (forwards, backwards):
            try:
                attempt(few, f, gradient)
            except (qj.SolveError, LookupError):
                continue
            raise AssertionError("the solve should have failed")

    return run


def growth(run: Callable[[], None], count: int, warm_up: int = 5) -> tuple[int, int]:
    """Tensors and resident bytes that ``count`` runs leave behind."""
    for _ in range(warm_up):
        run()
    with only_new_objects():
        run()  # what the last run keeps alive (a gradient, a remembered state) is counted on both sides
        tensors, before = live_tensors(), memory("RssAnon")
        for _ in range(count):
            run()
        return live_tensors() - tensors, memory("RssAnon") - before


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Let the collector overlook all that is there already, which makes collecting and counting quick."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
