"""The automatic choice of a gradient method: measure sizes, predict costs, take the cheapest that fits."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quadjoint.dynamics import owner
from quadjoint.gradient.base import Gradient
from quadjoint.gradient.continuous import GaussLegendre
from quadjoint.gradient.cost import Estimate, Sizes, cheapest, predict
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.discrete import DiscreteAdjoint, sizes_of
from quadjoint.problem import Problem, find_parameters

logger = logging.getLogger("quadjoint")

FIRST_GUESS = 50  # evaluations, where a function has not been solved before
TRIFLE = 2**26  # bytes that are always there


@dataclass
class _Known:
    """What has been measured of a function at one shape."""

    activation_bytes: int
    evaluations: dict[Any, int] = field(default_factory=dict)  # per method, interval and tolerance


_known: weakref.WeakKeyDictionary[Any, dict[Any, _Known]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Auto(Gradient):
    """Choose by measured sizes; ``memory_limit`` in bytes, by default a quarter of what is free on the device.

    >>> import torch, quadjoint as qj
    >>> w = torch.ones(2, requires_grad=True)
    >>> sol = qj.solve(lambda t, y: -w * y, torch.ones(2), torch.tensor([0.0, 1.0]), gradient=qj.Auto())
    >>> sol.stats.method
    'direct'
    """

    memory_limit: int | None = None
    name = "auto"
    exact_clock = True
    sample_times = "interpolate"

    def choose(self, problem: Problem, f: Callable[..., Any], y0: Tensor, params: Any) -> Gradient:
        if not torch.is_grad_enabled():
            return self._say(problem, Direct(), "no gradient is needed")
        if problem.solver.method == "scipy_solver":
            return self._say(problem, GaussLegendre(), "SciPy's steps cannot be recorded or transposed")
        sizes = measure(problem, f, y0, params)
        costs = predict(sizes)
        limit = self._limit(costs[cheapest(costs, math.inf)], y0.device)
        best = cheapest(costs, limit)
        shown = ", ".join(f"{n} {c.seconds * 1e3:.3g} ms {c.bytes / 2**20:.3g} MiB" for n, c in costs.items())
        why = f"{best}: of {shown}, the fastest within {limit / 2**20:.4g} MiB ({sizes.evaluations} evaluations)"
        return self._say(problem, Direct() if best == "direct" else DiscreteAdjoint(mode=best), why)

    def _limit(self, fastest: Estimate, device: torch.device) -> float:
        """Bytes allowed; the device is asked only if the fastest method needs more than a trifle."""
        if self.memory_limit is not None:
            return self.memory_limit
        return TRIFLE if fastest.bytes <= TRIFLE else free_bytes(device) / 4

    def _say(self, problem: Problem, how: Gradient, reason: str) -> Gradient:
        problem.stats.method, problem.stats.reason = how.name, f"auto chose {reason}"
        logger.debug("auto chose %s for %s", reason, type(problem.f.f).__name__)
        return how


def _memory_of(f: Callable[..., Any]) -> dict[Any, _Known]:
    """Where measurements of f are kept; functions that cannot be referenced weakly are measured each time."""
    try:
        return _known.setdefault(owner(f), {})
    except TypeError:
        return {}


def solve_key(problem: Problem) -> Any:
    settings = problem.solver.settings
    tolerances = tuple(x if isinstance(x, float) else None for x in (settings.rtol, settings.atol))
    return problem.solver.method, problem.make_observer().interval, tolerances


def measure(problem: Problem, f: Callable[..., Any], y0: Tensor, params: Any) -> Sizes:
    """Sizes of the solve: the activations of one evaluation, and the evaluations of the last solve of its kind."""
    cache = _memory_of(f)
    shape_key = (y0.shape, y0.dtype, y0.device)
    if shape_key not in cache:
        cache[shape_key] = _Known(activation_bytes(problem, y0))
    known = cache[shape_key]
    if params is not None:
        problem.params = tuple(p for p in params if p.requires_grad)
    else:
        problem.params = find_parameters(f, problem.f, problem.make_observer().interval[0], y0)
    key = solve_key(problem)
    problem.on_done = lambda: known.evaluations.__setitem__(key, problem.stats.forward_evaluations)
    return sizes_of(problem, known.evaluations.get(key, FIRST_GUESS), known.activation_bytes)


@contextmanager
def _saved_bytes(total: list[int], skip: set[int]) -> Iterator[None]:
    seen = set(skip)

    def pack(x: Tensor) -> Tensor:
        pointer = x.untyped_storage().data_ptr()
        if pointer not in seen:
            seen.add(pointer)
            total[0] += x.untyped_storage().nbytes()
        return x.detach()  # the tensor itself would be kept alive by its own graph

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield


def activation_bytes(problem: Problem, y0: Tensor) -> int:
    """Bytes that autograd keeps for one evaluation, without the parameters."""
    f = problem.f
    module = f.f
    tensors = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    total = [0]
    with torch.enable_grad(), _saved_bytes(total, {p.untyped_storage().data_ptr() for p in tensors}):
        f.checked(f.time(problem.make_observer().interval[0]), y0.detach().requires_grad_())
    return total[0]


def free_bytes(device: torch.device) -> float:
    """Memory that is free on the device, as far as it can be known."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024.0 * int(line.split()[1])
    except OSError:
        pass
    return 4.0 * 2**30
