"""What a forward solve costs beside its evaluations of f: ``python -m benchmarks.overhead`` on a quiet machine.

The same evaluations are made without a solver, at the times and states of the solve, in turns with it. The aim is a
ratio of 1.25 of the times. Operations dispatched and Python calls do not depend on what else the machine does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import threads  # isort: skip  # before torch
import torch
from torch import Tensor

import quadjoint as qj
from benchmarks.counting import Counting
from benchmarks.measure import Contender, Limits, in_turns
from benchmarks.problems import build, cells

AIM = 1.25
CELLS = ("crossing-20", "spheres-5-1x")
LIMITS = Limits(turns=30, total=4.0)
TOLERANCES = {"rtol": 1e-3, "atol": 1e-3}


def calls(run: Callable[[], Any]) -> int:
    """Calls of functions, those of C included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def pair(name: str) -> tuple[Callable[[], Any], Callable[[], Any], int]:
    """A solve without grad, its evaluations alone, and their number."""
    case, inputs = build(cells()[name]), []

    def watched(t: Tensor, y: Tensor) -> Tensor:
        inputs.append((t, y))
        return case.f(t, y)

    qj.odeint(watched, case.y0, case.t, **TOLERANCES)

    def bare() -> None:
        for t, y in inputs:
            case.f(t, y)

    return lambda: qj.odeint(case.f, case.y0, case.t, **TOLERANCES), bare, len(inputs)


def measure(name: str, limits: Limits = LIMITS) -> dict[str, Any]:
    with torch.no_grad():
        solve, bare, evaluations = pair(name)
        solve(), bare()
        found: dict[str, Any] = {"cell": name, "evaluations": evaluations}
        for what, run in (("solve", solve), ("bare", bare)):
            with Counting() as counts:
                run()
            found |= {f"{what}_kernels": counts.totals()["kernels"], f"{what}_calls": calls(run)}
        contenders = [Contender(run, {"method": what}, 1e-3) for what, run in (("solve", solve), ("bare", bare))]
        in_turns(contenders, limits)
        found |= {f"{c.record['method']}_seconds": min(c.seconds) for c in contenders}
    return found


def main() -> None:
    threads.set_threads()
    print("| problem | evaluations | operations | Python calls | ms, best | ratio | aim |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in CELLS:
        f = measure(name)
        ratio = f["solve_seconds"] / f["bare_seconds"]
        ms = f"{1e3 * f['solve_seconds']:.2f} / {1e3 * f['bare_seconds']:.2f}"
        counts = " | ".join(f"{f[f'solve_{kind}']} / {f[f'bare_{kind}']}" for kind in ("kernels", "calls"))
        print(f"| {name} | {f['evaluations']} | {counts} | {ms} | {ratio:.2f} | {AIM} |", flush=True)


if __name__ == "__main__":
    main()
