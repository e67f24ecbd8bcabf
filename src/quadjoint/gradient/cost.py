"""What each gradient method would cost, from sizes: a pure function, so that the choice can be tested and explained.

The model counts, per evaluation of f: a fixed overhead of Python and autograd; a pass over P parameters with R rows,
2 P R operations or, with few rows, the time to read the parameters; and the writes of parameter-sized gradients once
they no longer fit the cache. Stacking makes passes wide and writes few.
The constants were fitted to the committed benchmarks on one CPU thread; only their ratios matter for the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOPS = 5e10  # operations a second in matrix products
READ_BYTES = 1.2e10  # bytes a second when reading parameters
FRESH_BYTES = 6e9  # bytes a second when writing gradients that do not fit the cache
CACHE_BYTES = 6 * 2**20
FORWARD, RECORDED, REPLAYED = 6e-5, 1.9e-4, 2.2e-4  # seconds of overhead per evaluation
PARALLEL_START, PARALLEL_STAGE = 2.5e-3, 8e-5


@dataclass(frozen=True)
class Sizes:
    """Measured sizes of a solve."""

    rows: int  # samples that one product of f has
    features: int  # numbers in the state of a sample
    state_bytes: int
    parameters: int
    parameter_bytes: int
    activation_bytes: int  # kept by autograd for one evaluation
    evaluations: int  # in the forward solve
    independent: bool  # parallel mode may be used
    transposable: bool = True


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds for forward and backward pass, and the bytes that the backward pass needs kept."""

    seconds: float
    bytes: int


def predict(s: Sizes) -> dict[str, Estimate]:
    """Time and memory of "direct" and of the modes of "discrete"."""
    e = s.evaluations
    wide = 2.0 * s.parameters * s.rows / FLOPS
    thin = max(wide, s.parameter_bytes / READ_BYTES) if s.parameter_bytes > CACHE_BYTES else wide
    writes = 3.0 * s.parameter_bytes / FRESH_BYTES if s.parameter_bytes > CACHE_BYTES else 0.0
    stages = e * s.state_bytes
    costs = {"direct": Estimate(e * (RECORDED + 3 * thin + writes), e * (s.activation_bytes + s.state_bytes))}
    if not s.transposable:
        return costs
    costs["joint"] = Estimate(e * (FORWARD + REPLAYED + 4 * thin + writes), stages + s.activation_bytes)
    stack = max(1, min(e, 512 // max(1, s.rows)))
    work = e * (FORWARD + REPLAYED + 3 * thin + 3 * wide)
    costs["stacked"] = Estimate(work + writes * e / stack, stages + stack * s.activation_bytes)
    if s.independent:
        stack = max(1, min(e, 2048 // max(1, s.rows)))
        work = PARALLEL_START + e * (FORWARD + PARALLEL_STAGE + thin + (3 + s.features) * wide)
        costs["parallel"] = Estimate(work + writes * e / stack, stages + stack * s.activation_bytes)
    return costs


def cheapest(costs: dict[str, Estimate], limit: float) -> str:
    """The fastest within ``limit`` bytes; where none fits, the one that needs the least."""
    fitting = {name: c for name, c in costs.items() if c.bytes <= limit}
    if fitting:
        return min(fitting, key=lambda name: fitting[name].seconds)
    return min(costs, key=lambda name: costs[name].bytes)
