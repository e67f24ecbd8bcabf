"""What a forward solve costs beside its evaluations of f: ``python -m benchmarks.overhead`` on a quiet machine.

The same evaluations are made without a solver (*bare*), at the times and states of the solve, in turns with it. The aim
is a ratio of 1.25 of the times. *Inlined* are the operations of the same steps of dopri5, written one after another
without checks or objects: no solver that makes these operations from Python can be faster. Operations dispatched and
Python calls do not depend on what else the machine does. Writes ``overhead.jsonl`` and ``overhead.md``, the table that
docs/performance.md shows.
"""

from __future__ import annotations

import itertools
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
from benchmarks.counting import counting
from benchmarks.measure import Contender, Limits, in_turns
from benchmarks.output import ROOT, Record, parser, publish
from benchmarks.problems import Case, build, cells
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA

PAGE = ROOT / "docs" / "performance.md"
AIM = 1.25
CELLS = ("crossing-20", "spheres-5-1x")
LIMITS = Limits(turns=30, total=4.0)
TOLERANCE = 1e-3
KINDS = ("solve", "inlined", "bare")


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


def inlined(case: Case, lengths: list[float]) -> Callable[[], Tensor]:
    """The operations of a solve by dopri5 in steps of given lengths, and nothing else."""
    method = RUNGE_KUTTA["dopri5"]
    assert method.tableau.b_error is not None
    columns, last = method.columns(case.y0), float(method.tableau.b_error[-1])
    norm, start = torch.linalg.vector_norm, float(case.t[0])

    def run() -> Tensor:
        y, t0 = case.y0, start
        k = case.f(torch.full((), t0), y)
        scale = y.abs().mul_(TOLERANCE).add_(TOLERANCE)
        torch.stack([norm(y / scale), norm(k / scale)]).tolist()
        ahead = case.f(torch.full((), t0), torch.add(y, k, alpha=1e-2))
        norm((ahead - k) / scale).item()
        observed = [y[None]]
        for h in lengths:
            times = torch.tensor([t0 + c * h for c in method.nodes]).unbind()
            sums = columns[0] * k
            rows = sums.unbind()
            for i in range(1, 7):
                y1 = torch.add(y, rows[i - 1], alpha=h)
                k = case.f(times[i], y1)
                if i < 6:
                    sums.addcmul_(columns[i], k)
            error = torch.add(rows[-1], k, alpha=last) * h
            norm(error / torch.maximum(y.abs(), y1.abs()).mul_(TOLERANCE).add_(TOLERANCE)).item()
            y, t0 = y1, t0 + h
        return torch.cat([*observed, y[None]])

    return run


def contenders(name: str) -> tuple[dict[str, Callable[[], Any]], int]:
    """A solve without grad, its operations inlined, its evaluations alone; and the number of these."""
    case, inputs, ends = build(cells()[name]), [], [0.0]
    tolerances = {"rtol": TOLERANCE, "atol": TOLERANCE}

    def watched(t: Tensor, y: Tensor) -> Tensor:
        inputs.append((t, y))
        return case.f(t, y)

    watched.callback_accept_step = lambda t, y, dt: ends.append(float(t + dt))  # type: ignore[attr-defined]
    found = qj.odeint(watched, case.y0, case.t, **tolerances)

    def bare() -> None:
        for t, y in inputs:
            case.f(t, y)

    alone = inlined(case, [b - a for a, b in itertools.pairwise(ends)])
    torch.testing.assert_close(alone()[-1], found[-1], rtol=1e-5, atol=1e-6)
    solve = lambda: qj.odeint(case.f, case.y0, case.t, **tolerances)  # noqa: E731
    return dict(zip(KINDS, (solve, alone, bare), strict=True)), len(inputs)


def measure(name: str, limits: Limits = LIMITS) -> Record:
    with torch.no_grad():
        runs, evaluations = contenders(name)
        found: Record = {"kind": "overhead", "cell": name, "evaluations": evaluations}
        for kind, run in runs.items():
            run()
            with counting() as counts:
                run()
            found |= {f"{kind}_kernels": counts.totals()["kernels"], f"{kind}_calls": calls(run)}
        every = [Contender(run, {"method": kind}, 1e-3) for kind, run in runs.items()]
        in_turns(every, limits)
        found |= {f"{c.record['method']}_seconds": c.record["seconds_best"] for c in every}
    return found


def table(records: list[Record]) -> str:
    lines = ["| problem | evaluations | | operations | Python calls | ms, best | over bare evaluations |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for r in records:
        for kind in KINDS:
            ratio = r[f"{kind}_seconds"] / r["bare_seconds"]
            figures = f"{r[f'{kind}_kernels']} | {r[f'{kind}_calls']} | {1e3 * r[f'{kind}_seconds']:.2f} | {ratio:.2f}"
            lines.append(f"| {r['cell']} | {r['evaluations']} | {kind} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    out = parser(__doc__).parse_args().out
    threads.set_threads()
    records = [measure(name) for name in CELLS]
    publish("overhead", records, table(records), out, PAGE)


if __name__ == "__main__":
    main()
