"""The automatic choice of a gradient method: measure sizes, predict costs, take the cheapest that fits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from quadjoint.autograd.tape import saved_tensors_are_watched
from quadjoint.gradient.base import Gradient
from quadjoint.gradient.choose.cost import Estimate, cheapest, predict, spare
from quadjoint.gradient.choose.sizes import measure
from quadjoint.gradient.continuous.sweep import GaussLegendre
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.discrete.adjoint import DiscreteAdjoint
from quadjoint.solver.problem import Problem

logger = logging.getLogger("quadjoint")

TRIFLE = 2**26  # bytes that are always there


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
        if saved_tensors_are_watched():
            how = DiscreteAdjoint() if problem.solver.stepper.transposable else Direct()
            return self._say(problem, how, f"{how.name}: saved tensors are hooked, and a checkpoint must find the same")
        if isinstance(f, torch.nn.Module) and any(isinstance(p, UninitializedParameter) for p in f.parameters()):
            return self._say(problem, Direct(), "direct: there are parameters without a shape yet")
        sizes = measure(problem, f, y0, params)
        costs = predict(sizes, math.inf)
        limit = self._limit(costs[cheapest(costs, math.inf)], y0.device)
        activations = spare(sizes, limit)
        costs = predict(sizes, activations)
        best = cheapest(costs, limit)
        shown = ", ".join(f"{n} {c.seconds * 1e3:.3g} ms {c.bytes / 2**20:.3g} MiB" for n, c in costs.items())
        why = f"{best}: of {shown}, the fastest within {limit / 2**20:.4g} MiB ({sizes.evaluations} evaluations)"
        # Parallel, if it turns out to be possible, and without a warning if not.
        mode = "auto" if best == "parallel" else best
        chosen = Direct() if best == "direct" else DiscreteAdjoint(mode=mode, activations=activations)
        return self._say(problem, chosen, why)

    def _limit(self, fastest: Estimate, device: torch.device) -> float:
        """Bytes allowed; the device is asked only if the fastest method needs more than a trifle."""
        if self.memory_limit is not None:
            return self.memory_limit
        return TRIFLE if fastest.bytes <= TRIFLE else free_bytes(device) / 4

    def _say(self, problem: Problem, how: Gradient, reason: str) -> Gradient:
        problem.stats.method, problem.stats.reason = how.name, f"auto chose {reason}"
        logger.debug("auto chose %s for %s", reason, type(problem.f.f).__name__)
        return how


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
