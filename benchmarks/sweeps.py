"""Two studies: time against precision, and how the cost grows with parameters, observations and state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gradients import Record, Say, measure_group
from benchmarks.measure import Limits
from benchmarks.methods import Method
from benchmarks.problems import END, Cell, cells

LIMITS = Limits(turns=3, run=5.0, total=0.6, memory_run=1.0)
PRECISION_CELLS = ("spheres-100-3x", "sines-200")
TOLERANCES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
TARGETS = (3e-2, 1e-2, 1e-3, 1e-4)  # gradient errors at which times are compared
PRECISION_METHODS = (
    "quadjoint:direct", "quadjoint:discrete", "quadjoint:gq", "quadjoint:gq-paper", "quadjoint:adjoint",
    "quadjoint:seminorm", "torchdiffeq:direct", "torchdiffeq:adjoint", "torchdiffeq:seminorm", "torchode:direct",
)  # fmt: skip
SCALING_METHODS = ("quadjoint:direct", "quadjoint:discrete", "quadjoint:gq", "quadjoint:gq-paper", "quadjoint:adjoint")


def precision(
    methods: list[Method], say: Say, limits: Limits = LIMITS, *, tiny: bool = False
) -> Iterator[list[Record]]:
    """All methods over a range of tolerances; the growth with the number of steps is read off the same records."""
    chosen = [m for m in methods if m.name in PRECISION_METHODS]
    names, tolerances = (("tiny-sines",), (1e-2, 1e-4)) if tiny else (PRECISION_CELLS, TOLERANCES)
    for name in names:
        for tolerance in tolerances:
            yield measure_group([cells()[name]], chosen, limits, say, tolerance, kind="precision")


def growth(tiny: bool = False) -> Iterator[tuple[str, int, Cell]]:
    """Sweeps by name, with the number that grows and the cell."""
    base = Cell("growth", "sines", 200, 15, observations=10, dim=2, end=END)
    for width in (8, 16) if tiny else (25, 50, 100, 200, 400, 800, 1600):
        yield "parameters", width * width + 5 * width + 1, replace(base, width=width)
    for count in (2, 4) if tiny else (2, 5, 10, 20, 50, 100, 200):
        yield "observations", count, replace(base, observations=count)
    for dim in (3, 6) if tiny else (4, 8, 32, 128, 512):
        yield "state", 32 * dim, Cell("growth", "spheres", 200, 32, dim=dim)


def scaling(methods: list[Method], say: Say, limits: Limits = LIMITS, *, tiny: bool = False) -> Iterator[list[Record]]:
    chosen = [m for m in methods if m.name in SCALING_METHODS]
    for sweep, x, cell in growth(tiny):
        named = replace(cell, name=f"{sweep}-{x}")
        yield measure_group([named], chosen, limits, say, kind="scaling", sweep=sweep, x=x)


def time_to_reach(records: list[Record], cell: str, method: str, error: float) -> float | None:
    """The fastest measured time of a method whose gradient error is at most ``error``, over all tolerances."""
    times = [r["seconds_best"] for r in records if r["kind"] == "precision" and r["status"] == "ok"
             and (r["cell"], r["method"]) == (cell, method) and r["error"] <= error]  # fmt: skip
    return min(times, default=None)
