"""What each gradient method would cost, from sizes: a pure function, so that the choice can be tested and explained.

The model counts, per evaluation of f with P parameters and R rows: a fixed overhead of Python and autograd; a pass
over the weights, 2 P R operations and a read of them; element-wise work in proportion to the activations; and, for
every gradient of the parameters, the memory traffic of making it and adding it up, once it no longer fits the cache.
Stacking makes passes wide and such gradients few.
The constants were fitted to the committed benchmarks on one CPU thread; only their ratios matter for the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FLOPS = 7e10  # operations a second in matrix products
READ_BYTES = 1.6e10  # bytes a second when reading parameters
ELEMENT_BYTES = 2e9  # bytes of activations a second, in the evaluation; half of that time in the backward pass
NEAR_BYTES, NEAR_RATE = 2**21, 2.5e10  # parameter gradients up to this size cost nothing; beyond, bytes a second
FAR_BYTES, FAR_RATE = 6 * 2**20, 6e9  # and from this size on
CHUNK = 512  # rows of a stacked product

# Seconds of overhead for an evaluation and its transpose
DIRECT = 2.5e-4
JOINT, STACKED, AGAIN = 4.0e-4, 5.0e-4, 1.2e-4  # with kept activations, and what recomputing them adds
COMPILED = 0.6  # of the overhead of "direct" in compiled steps
FORWARD = 1.0e-4  # for an evaluation in a forward solve that is not recorded
STACK = 5.0e-4  # for an evaluation of a stack of nodes, or one product of it
SOLVE = 1.3e-9  # for a system of n equations, times n**3
ITERATIONS = 3  # products in which the collocation equations of a step are solved, typically

TYPICAL_EVALUATIONS = 30  # of a solve whose steps are not known beforehand


@dataclass(frozen=True)
class Sizes:
    """Measured sizes of a solve."""

    rows: int  # samples that one product of f has
    features: int  # numbers in the state of a sample
    state_bytes: int
    parameter_count: int
    parameter_bytes: int
    activation_bytes: int  # kept by autograd for one evaluation
    evaluations: int = TYPICAL_EVALUATIONS  # in the forward solve
    linear: bool = False  # parameters are mostly those of linear layers
    transposable: bool = True
    compiled: bool = False  # steps run in graphs of torch.compile


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds for forward and backward pass, and the bytes that the backward pass needs kept."""

    seconds: float
    bytes: int


def predict(s: Sizes, activations: float = 0) -> dict[str, Estimate]:
    """Time and memory of "direct" and of the modes of "discrete", which may keep so many bytes of ``activations``."""
    e = s.evaluations
    wide = 2.0 * s.parameter_count * s.rows / FLOPS
    thin = wide + s.parameter_bytes / READ_BYTES
    element = s.activation_bytes / ELEMENT_BYTES
    gradient = _traffic(s.parameter_bytes)
    once = 2 * thin + wide + 1.5 * element  # evaluation, product in the state, product in the parameters
    overhead = DIRECT * (COMPILED if s.compiled else 1.0)
    costs = {"direct": Estimate(e * (overhead + once + gradient), e * (s.activation_bytes + s.state_bytes))}
    if not s.transposable:
        return costs
    kept = int(min(e, activations // max(1, s.activation_bytes)))
    again = (e - kept) * (AGAIN + thin + element)
    bytes_kept = e * s.state_bytes + kept * s.activation_bytes
    costs["joint"] = Estimate(again + e * (JOINT + once + gradient), bytes_kept + s.activation_bytes)
    stack = max(1, min(e, CHUNK // max(1, s.rows)))
    saved = gradient if not s.linear else gradient / stack
    costs["stacked"] = Estimate(again + e * (STACKED + once + saved), bytes_kept + stack * s.activation_bytes)
    return costs


def predict_collocation(s: Sizes, *, steps: int, nodes: int, together: int) -> dict[str, Estimate]:
    """Time and memory of "gq" with ``nodes`` in each of ``steps``, whose equations are solved densely or by iteration.

    Of every node: an evaluation, the products of the solution (one for each number of a sample, or a few), and one
    more in the state and the parameters. If they are solved densely, the nodes of ``together`` steps are stacked.
    """
    wide, read = 2.0 * s.parameter_count * s.rows / FLOPS, s.parameter_bytes / READ_BYTES
    element = s.activation_bytes / ELEMENT_BYTES
    forward = s.evaluations * (FORWARD + wide + read + element)
    kept = steps * (nodes + 2) * s.state_bytes

    def estimate(products: int, panels: int) -> Estimate:
        each = (products + 3) * wide + (1.0 + 0.5 * (products + 1)) * element
        stack = (products + 2) * (STACK + read) + _traffic(s.parameter_bytes)
        seconds = forward + steps * nodes * each + math.ceil(steps / panels) * stack
        return Estimate(seconds, kept + min(panels, steps) * nodes * s.activation_bytes)

    dense = estimate(s.features, together)
    systems = steps * s.rows * (nodes * s.features) ** 3 * SOLVE
    return {"dense": replace(dense, seconds=dense.seconds + systems), "iterate": estimate(ITERATIONS, 1)}


def _traffic(parameter_bytes: int) -> float:
    """Seconds to make one gradient of the parameters and add it to their sum."""
    if parameter_bytes <= NEAR_BYTES:
        return 0.0
    return 3.0 * parameter_bytes / (NEAR_RATE if parameter_bytes <= FAR_BYTES else FAR_RATE)


@dataclass(frozen=True)
class Decision:
    """A method, or a mode of one, and why, as a clause."""

    name: str
    why: str


def decide(costs: dict[str, Estimate], *, limit: float = math.inf) -> Decision:
    """The one choice among methods, among the modes of "discrete" and among the ways to solve collocation equations.

    It is the fastest of those that keep no more than ``limit`` bytes; if none does, the one that keeps the least.
    """
    fitting = {name: c for name, c in costs.items() if c.bytes <= limit}
    if fitting:
        name, why = min(fitting, key=lambda n: fitting[n].seconds), "the fastest"
    else:
        name, why = min(costs, key=lambda n: costs[n].bytes), "none fits, this keeps the least"
    shown = ", ".join(f"{n} {c.seconds * 1e3:.3g} ms {c.bytes / 2**20:.3g} MiB" for n, c in costs.items())
    within = f" within {limit / 2**20:.4g} MiB" if math.isfinite(limit) else ""
    return Decision(name, f"of {shown} for {TYPICAL_EVALUATIONS} evaluations, {why}{within}")
