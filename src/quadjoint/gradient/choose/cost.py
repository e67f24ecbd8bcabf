"""What each gradient method would cost, from sizes: a pure function, so that the choice can be tested and explained.

The model counts, per evaluation of f with P parameters and R rows: a fixed overhead of Python and autograd; a pass
over the weights, 2 P R operations and a read of them; element-wise work in proportion to the activations; and, for
every gradient of the parameters, the memory traffic of making it and adding it up, once it no longer fits the cache.
Stacking makes passes wide and such gradients few.
The constants were fitted to the committed benchmarks on one CPU thread; only their ratios matter for the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOPS = 7e10  # operations a second in matrix products
READ_BYTES = 1.6e10  # bytes a second when reading parameters
ELEMENT_BYTES = 2e9  # bytes of activations a second, in the evaluation; half of that time in the backward pass
NEAR_BYTES, NEAR_RATE = 2**21, 2.5e10  # parameter gradients up to this size cost nothing; beyond, bytes a second
FAR_BYTES, FAR_RATE = 6 * 2**20, 6e9  # and from this size on
CHUNK, PARALLEL_CHUNK = 512, 2048  # rows of a stacked product

# Seconds of overhead for an evaluation and its transpose
DIRECT = 2.5e-4
JOINT, STACKED, AGAIN = 4.0e-4, 5.0e-4, 1.2e-4  # with kept activations, and what recomputing them adds
COMPILED_JOINT = 1.5  # in units of the direct method's
PARALLEL, PARALLEL_START, PARALLEL_FEATURE = 1.8e-4, 1.0e-3, 1.5e-4  # an evaluation; a chunk, and each of its products
TRIAL = 3e-3


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
    tried: bool = True  # that samples are independent need not be tried for this solve alone
    deferrable: bool = False  # parameters are mostly those of linear layers
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
    wide = 2.0 * s.parameters * s.rows / FLOPS
    thin = wide + s.parameter_bytes / READ_BYTES
    element = s.activation_bytes / ELEMENT_BYTES
    gradient = _traffic(s.parameter_bytes)
    once = 2 * thin + wide + 1.5 * element  # evaluation, product in the state, product in the parameters
    stages = e * s.state_bytes
    costs = {"direct": Estimate(e * (DIRECT + once + gradient), e * (s.activation_bytes + s.state_bytes))}
    if not s.transposable:
        return costs
    if s.compiled:  # a step is transposed as a whole, and taken again for it
        work = e * (COMPILED_JOINT * DIRECT + once + thin + element + gradient)
        return {**costs, "joint": Estimate(work, stages + s.activation_bytes)}
    kept = int(min(e, activations // max(1, s.activation_bytes)))
    again = (e - kept) * (AGAIN + thin + element)
    held = stages + kept * s.activation_bytes
    costs["joint"] = Estimate(again + e * (JOINT + once + gradient), held + s.activation_bytes)
    stack = max(1, min(e, CHUNK // max(1, s.rows)))
    repeated = 0.0 if s.deferrable else 2 * wide + 1.5 * element
    work = again + e * (STACKED + once + repeated + gradient / stack)
    costs["stacked"] = Estimate(work, held + stack * s.activation_bytes)
    if s.independent:
        stack = max(1, min(e, PARALLEL_CHUNK // max(1, s.rows)))
        start = (PARALLEL_START + PARALLEL_FEATURE * s.features + gradient) / stack
        products = (3 + s.features) * wide + (1.5 + 0.5 * s.features) * element
        work = e * (PARALLEL + start + thin + element + products)
        work += 0.0 if s.tried else TRIAL + 6 * (thin + element)
        costs["parallel"] = Estimate(work, stages + stack * s.activation_bytes)
    return costs


def _traffic(parameter_bytes: int) -> float:
    """Seconds to make one gradient of the parameters and add it to their sum."""
    if parameter_bytes <= NEAR_BYTES:
        return 0.0
    return 3.0 * parameter_bytes / (NEAR_RATE if parameter_bytes <= FAR_BYTES else FAR_RATE)


def spare(s: Sizes, limit: float) -> int:
    """Bytes of activations that "joint" and "stacked" may keep and stay within ``limit`` bytes."""
    needed = max((c.bytes for name, c in predict(s).items() if name != "direct"), default=0)
    return max(0, int(min(limit, 2.0**62)) - needed)


def cheapest(costs: dict[str, Estimate], limit: float) -> str:
    """The fastest within ``limit`` bytes; where none fits, the one that needs the least."""
    fitting = {name: c for name, c in costs.items() if c.bytes <= limit}
    if fitting:
        return min(fitting, key=lambda name: fitting[name].seconds)
    return min(costs, key=lambda name: costs[name].bytes)
