"""Forward solves of small networks against torchdiffeq, without gradients: ``python benchmarks/forward.py``.

Here the arithmetic of the network is nearly free, so the ratio shows what the solver itself costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import threads  # isort: skip  # before torch
import torch
from torch import Tensor

import quadjoint as qj
from benchmarks.measure import Contender, Limits, in_turns
from benchmarks.problems import Cell, build
from benchmarks.verdicts import time_ratio
from quadjoint.experiments.faults import one_line

AIM = 0.7
TOLERANCE = 1e-3
LIMITS = Limits(turns=15, total=1.0)
Record = dict[str, Any]


def forward_cells() -> list[Cell]:
    """States of 2 to 1000 numbers, widths 5 to 100; once observed at the end, once observed fifty times."""
    sizes = [(1, 2), (10, 2), (20, 5), (200, 5)]  # rows and dimension
    out = []
    for rows, dim in sizes:
        for width in (5, 20, 100):
            name = f"forward-{rows}x{dim}-{width}"
            out.append(Cell(name, "spheres", width, rows, dim=max(dim, 2), scale=3))
            if dim == 2:
                out.append(Cell(f"{name}-k50", "spheres", width, rows, dim=dim, scale=3, observations=50))
    return out


def measure(cells: list[Cell] | None = None, limits: Limits = LIMITS, compiled: bool = False) -> list[Record]:
    """Seconds and errors of both libraries on every cell, timed in turns."""
    records: list[Record] = []
    for cell in forward_cells() if cells is None else cells:
        case, fine = build(cell), build(cell, torch.float64)
        with torch.no_grad():
            exact = qj.odeint(fine.f, fine.y0, fine.t, method="dopri8", rtol=1e-9, atol=1e-9)
            contenders = [_contender(name, solve, cell, exact) for name, solve in _solvers(case, compiled).items()]
            in_turns([c for c in contenders if c.record["status"] == "ok"], limits)
        records += [c.record for c in contenders]
    return records


def _solvers(case: Any, compiled: bool) -> dict[str, Callable[[], Tensor]]:
    options: dict[str, Any] = {"method": "dopri5", "rtol": TOLERANCE, "atol": TOLERANCE}

    def torchdiffeq() -> Tensor:
        from torchdiffeq import odeint

        return odeint(case.f, case.y0, case.t, **options)

    solvers = {"quadjoint": lambda: qj.odeint(case.f, case.y0, case.t, **options), "torchdiffeq": torchdiffeq}
    if compiled:
        solvers["quadjoint-compiled"] = lambda: qj.odeint(case.f, case.y0, case.t, compile=True, **options)
    return solvers


def _contender(name: str, solve: Callable[[], Tensor], cell: Cell, exact: Tensor) -> Contender:
    record: Record = {"kind": "forward", "cell": cell.name, "family": "forward", "method": f"{name}:forward"}
    record |= {"width": cell.width, "state": cell.rows * cell.dim, "observations": cell.observations}
    try:
        found = solve()
    except Exception as failure:
        record |= {"status": "skipped", "note": f"{type(failure).__name__}: {one_line(failure, 200)}"}
        return Contender(solve, record, 0.0)
    start = time.perf_counter()
    solve()
    record |= {"status": "ok", "error": float((found.double() - exact).norm() / exact.norm())}
    return Contender(solve, record, time.perf_counter() - start)


def ratios(records: list[Record]) -> dict[str, float]:
    """Our time over torchdiffeq's, by cell."""
    done = [r for r in records if r["kind"] == "forward" and r["status"] == "ok"]
    by = {(r["cell"], r["method"]): r for r in done}
    cells = [cell for cell, method in by if method == "quadjoint:forward" and (cell, "torchdiffeq:forward") in by]
    return {cell: time_ratio(by[cell, "quadjoint:forward"], by[cell, "torchdiffeq:forward"]) for cell in cells}


def main() -> None:
    threads.set_threads()
    records = measure()
    seconds = {(r["cell"], r["method"]): r for r in records}
    print(f"| cell | quadjoint | torchdiffeq | ratio (aim: {AIM}) | errors |\n| --- | ---: | ---: | ---: | --- |")
    for cell, ratio in ratios(records).items():
        ours, theirs = seconds[cell, "quadjoint:forward"], seconds[cell, "torchdiffeq:forward"]
        times = " | ".join(f"{1e3 * r['seconds_best']:.2f} ms" for r in (ours, theirs))
        print(f"| {cell} | {times} | {ratio:.2f} | {ours['error']:.0e}, {theirs['error']:.0e} |")


if __name__ == "__main__":
    main()
