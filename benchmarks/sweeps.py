"""Two studies: time against precision, and how the cost grows with parameters, observations and state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gradients import Record, Say, measure_group
from benchmarks.measure import Limits
from benchmarks.methods import Method, Quadjoint
from benchmarks.problems import END, Cell, build, cells
from quadjoint.experiments.timing import peak_memory

LIMITS = Limits(least=1, turns=3, run=5.0, total=0.6, memory_run=1.0)
PRECISION_CELLS = ("spheres-100-3x", "sines-200", "ou-20")
TOLERANCES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
RK4_STAGES = 5  # states kept of a step: four stage inputs and the end
TARGETS = (3e-2, 1e-2, 1e-3, 1e-4)  # gradient errors at which times are compared
PRECISION_METHODS = (
    "quadjoint:direct",
    "quadjoint:discrete",
    "quadjoint:gq",
    "quadjoint:gq-paper",
    "quadjoint:adjoint",
    "quadjoint:seminorm",
    "torchdiffeq:direct",
    "torchdiffeq:adjoint",
    "torchdiffeq:seminorm",
    "torchode:direct",
    "paper:gq",
)
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
    yield memory(tiny=tiny)


def memory(*, tiny: bool = False) -> list[Record]:
    """Peak memory over the number of steps, which a fixed grid sets exactly: rk4 on the sines."""
    cell = Cell("memory", "sines", 8 if tiny else 200, 15, observations=10, dim=2, end=END)
    records: list[Record] = []
    for name in SCALING_METHODS:
        for steps in (4, 8) if tiny else (100, 200, 400):
            case = build(cell)
            options = {"step_size": END / steps}
            runner = Quadjoint(case, 1e-3, name.partition(":")[2], method="rk4", options=options)
            accepted = runner.first()[1]["steps"]["accepted"]
            record: Record = {"kind": "memory", "cell": f"memory-{steps}", "method": name, "status": "ok"}
            record |= {"accepted": accepted, "peak_bytes": peak_memory(runner.run)}
            records.append(record | {"stored_bytes": RK4_STAGES * case.y0.nbytes})
    return records


def bytes_per_step(records: list[Record], method: str) -> float | None:
    """Memory for each further step, between the two longest solves."""
    points = sorted(
        (r["accepted"], r["peak_bytes"]) for r in records if r["kind"] == "memory" and r["method"] == method
    )
    if len(points) < 2:
        return None
    (few, less), (many, more) = points[-2:]
    return float((more - less) / (many - few))


def time_to_reach(records: list[Record], cell: str, method: str, error: float) -> float | None:
    """The fastest measured time of a method whose gradient error is at most ``error``, over all tolerances."""
    times = [
        r["seconds_best"]
        for r in records
        if r["kind"] == "precision"
        and r["status"] == "ok"
        and (r["cell"], r["method"]) == (cell, method)
        and r["error"] <= error
    ]
    return min(times, default=None)
