"""Operations dispatched and reads of the host in one gradient: ``python -m benchmarks.launches``.

What makes small solves slow on an accelerator can be counted on any machine, whatever else it does: kernels launched,
and reads for which the host waits. Writes ``launches.jsonl`` (a line for each problem and method) and ``launches.md``,
the table that docs/performance.md shows.

    python -m benchmarks.launches [--only sines crossing ...] [--out FOLDER]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import threads  # isort: skip  # before torch
import torch
from torch import Tensor

import quadjoint as qj
from benchmarks.counting import Counts, counting
from benchmarks.methods import NotApplicable
from benchmarks.output import ROOT, Record, load, parser, publish
from benchmarks.peers import torchdiffeq_adjoint, torchdiffeq_direct, torchode_direct
from benchmarks.problems import Case, build, cells
from quadjoint.experiments.faults import one_line

PAGE = ROOT / "docs" / "performance.md"
TOLERANCE = 1e-3
GRADIENTS = ("auto", "direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm")
FIXED = {"method": "radauIIA3", "options": {"step_size": 0.1}}
# Problem: cell of the benchmarks, and how it is solved.
PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sines": ("sines-20", {}),
    "spheres": ("spheres-5-1x", {}),
    "crossing": ("crossing-20", {}),
    "OU": ("ou-20", {}),
    "irregular": ("irregular-20x50-per-sample", {}),
    "conv": ("conv-16", {}),
    "independent": ("sines-20", {"independent": True}),
    "implicit": ("crossing-20", FIXED),
    "tiny": ("tiny-crossing", {}),
}
Solve = Callable[[], Tensor]


def solvers(case: Case, options: dict[str, Any]) -> dict[str, Solve]:
    """The states at the times of a case, by every method."""
    tolerances = {"rtol": TOLERANCE, "atol": TOLERANCE}

    def ours(gradient: str) -> Solve:
        return lambda: qj.odeint(case.f, case.y0, case.t, gradient=gradient, **tolerances, **options)

    return {f"quadjoint:{name}": ours(name) for name in GRADIENTS} | peers(case, options)


def peers(case: Case, options: dict[str, Any]) -> dict[str, Solve]:
    """Those of other libraries that solve the problem the same way."""
    out: dict[str, Solve] = {}
    if "method" in options:
        return out  # released versions of neither have it
    makers = {
        "torchdiffeq:direct": torchdiffeq_direct,
        "torchdiffeq:adjoint": torchdiffeq_adjoint(None),
        "torchdiffeq:seminorm": torchdiffeq_adjoint("seminorm"),
        "torchode:direct": torchode_direct,
    }
    for name, make in makers.items():
        if options.get("independent") and name.startswith("torchdiffeq"):
            continue  # its batches share their steps
        try:
            out[name] = make(case, TOLERANCE).solve  # type: ignore[attr-defined]
        except (NotApplicable, ImportError):
            continue
    return out


def count(case: Case, solve: Solve) -> tuple[Counts, Counts]:
    """The operations of a solve and of its backward pass; the loss belongs to neither."""
    value = case.value(solve())
    torch.autograd.grad(value, case.wrt)  # what is kept of a function is known from here on
    with counting() as forward:
        ys = solve()
    grad = torch.autograd.grad(case.value(ys), ys, retain_graph=True)[0]
    with counting() as backward:
        torch.autograd.grad(ys, case.wrt, grad)
    return forward, backward


def measure(problem: str) -> list[Record]:
    """A record for every method on a problem."""
    name, options = PROBLEMS[problem]
    records = []
    for method in solvers(build(cells()[name]), options):
        case = build(cells()[name])
        record: Record = {"problem": problem, "cell": name, "method": method}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other libraries
                forward, backward = count(case, solvers(case, options)[method])
            record |= {"forward": forward.totals(), "backward": backward.totals()}
        except Exception as failure:
            record["failure"] = f"{type(failure).__name__}: {one_line(failure, 120)}"
        records.append(record)
    return records


def table(records: list[Record]) -> str:
    """Operations of one gradient and, behind the stroke, reads of the host; in brackets those of the backward pass."""
    problems = list(dict.fromkeys(r["problem"] for r in records))
    found = {(r["method"], r["problem"]): r for r in records}
    rows = [["", *problems], ["---", *["---:"] * len(problems)]]
    for method in dict.fromkeys(r["method"] for r in records):
        rows.append([method.replace(":", " "), *(_entry(found.get((method, p))) for p in problems)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _entry(record: Record | None) -> str:
    if record is None:
        return ""
    if "failure" in record:
        return "refused"
    kernels, reads = (record["forward"][kind] + record["backward"][kind] for kind in ("kernels", "reads"))
    return f"{kernels} / {reads} ({record['backward']['reads']})"


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--only", nargs="+", choices=[*PROBLEMS], default=[p for p in PROBLEMS if p != "tiny"])
    args = command.parse_args()
    threads.set_threads()
    kept: dict[str, list[Record]] = {}
    for record in load("launches", args.out):
        kept.setdefault(record["problem"], []).append(record)
    for problem in args.only:
        kept[problem] = measure(problem)
    records = [r for problem in PROBLEMS for r in kept.get(problem, [])]
    publish("launches", records, table(records), args.out, PAGE)


if __name__ == "__main__":
    main()
