"""Steps of each sample's own against shared ones and against torchode: ``python -m benchmarks.independent``.

256 Van der Pol oscillators that want very different steps, and batches of equal samples, for which steps of their own
are of no use and should cost little. Evaluations of f are counted, and times are those of the processor, the least of
several runs in turns: a busy machine changes them least. Writes ``independent.jsonl`` and ``independent.md``, which
docs/independent.md shows.

    python -m benchmarks.independent [--samples 256] [--turns 15] [--out FOLDER]
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import threads  # isort: skip  # before torch
import torch
from torch import Tensor

import quadjoint as qj
from benchmarks.measure import Contender, Limits, in_turns
from benchmarks.output import ROOT, Record, parser, publish
from benchmarks.verdicts import Row, judge

PAGE = ROOT / "docs" / "independent.md"
RTOL, ATOL = 1e-5, 1e-6
# Gains of controllers, (p, i): that of a plain integral controller, and some that look back.
GAINS = {"0-1": (0.0, 1.0), "0.2-0.5": (0.2, 0.5), "0.2-0.7": (0.2, 0.7)}
Solve = Callable[[], Tensor]


class Counted:
    """A function that counts its evaluations."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.f, self.count = f, 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        self.count += 1
        return self.f(t, y)


@dataclass(frozen=True)
class Problem:
    """A batch, up to the time ``end``."""

    name: str
    f: Callable[[Tensor, Tensor], Tensor]
    y0: Tensor
    end: float
    exact: Tensor  # the states there

    @property
    def times(self) -> Tensor:
        return torch.tensor([0.0, self.end])


def oscillators(mu: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def f(t: Tensor, y: Tensor) -> Tensor:
        x, v = y[:, :1], y[:, 1:]
        return torch.cat([v, mu.to(y.dtype) * (1 - x * x) * v - x], dim=1)

    return f


def problems(samples: int) -> list[Problem]:
    """Oscillators with mu from 1 to 24, with equal ones, and a network on equal rows."""
    torch.manual_seed(0)
    network = qj.nn.TimeMLP(5, width=100).double()
    spread = torch.linspace(1.0, 24.0, samples, dtype=torch.float64)[:, None]
    double: list[tuple[str, Any, Tensor, float]] = [
        ("van-der-pol", oscillators(spread), torch.ones(samples, 2), 20.0),
        ("equal-oscillators", oscillators(torch.full_like(spread, 5.0)), torch.ones(samples, 2), 20.0),
        ("equal-network", network, torch.ones(samples, 5), 10.0),
    ]
    found = []
    for name, f, y0, end in double:
        with torch.no_grad():
            t = torch.tensor([0.0, end], dtype=torch.float64)
            exact = qj.odeint(f, y0.double(), t, method="dopri8", independent=True, rtol=1e-10, atol=1e-10)[-1]
        found.append(Problem(name, f.float() if isinstance(f, torch.nn.Module) else f, y0, end, exact))
    return found


def ours(problem: Problem, f: Counted, gains: str | None, *, independent: bool) -> Solve:
    options = {} if gains is None else {"controller": qj.PIDController(*GAINS[gains])}
    settings: dict[str, Any] = {"independent": independent, "rtol": RTOL, "atol": ATOL, "options": options}
    return lambda: qj.odeint(f, problem.y0, problem.times, **settings)[-1]


def torchode(problem: Problem, f: Counted, gains: str) -> Solve:
    """torchode gives f one time for each sample, as a vector."""
    library = importlib.import_module("torchode")
    term = library.ODETerm(lambda t, y: f(t[:, None], y), with_stats=False)
    p, i = GAINS[gains]
    control = library.PIDController(atol=ATOL, rtol=RTOL, pcoeff=p, icoeff=i, dcoeff=0.0, term=term)
    method = library.AutoDiffAdjoint(library.Dopri5(term=term), control)
    ends = problem.times.expand(len(problem.y0), 2).contiguous()
    return lambda: method.solve(library.InitialValueProblem(problem.y0, t_eval=ends), term).ys[:, -1]


def contenders(problem: Problem) -> list[Contender]:
    """Shared and own steps as they are by default, and own ones beside torchode's with the same controllers."""
    makers: dict[str, Callable[[Counted], Solve]] = {
        "quadjoint:shared": lambda f: ours(problem, f, None, independent=False),
        "quadjoint:independent": lambda f: ours(problem, f, None, independent=True),
    }
    for gains in GAINS:
        makers[f"quadjoint:independent-{gains}"] = partial(ours, problem, gains=gains, independent=True)
        makers[f"torchode:{gains}"] = partial(torchode, problem, gains=gains)
    return [_contender(problem, name, make) for name, make in makers.items()]


def _contender(problem: Problem, name: str, make: Callable[[Counted], Solve]) -> Contender:
    record: Record = {"kind": "independent", "cell": problem.name, "method": name, "samples": len(problem.y0)}
    f = Counted(problem.f)
    try:
        solve = make(f)
        found = solve()
    except ImportError as failure:
        return Contender(lambda: None, record | {"status": "skipped", "note": str(failure)}, 0.0)
    record |= {"status": "ok", "evaluations": f.count, "error": float((found.double() - problem.exact).abs().max())}
    start = time.perf_counter()
    solve()
    return Contender(solve, record, time.perf_counter() - start)


def measure(samples: int, limits: Limits) -> list[Record]:
    records: list[Record] = []
    with torch.no_grad():
        for problem in problems(samples):
            group = contenders(problem)
            in_turns([c for c in group if c.record["status"] == "ok"], limits)
            records += [c.record for c in group]
    return records


def aims(records: list[Record]) -> list[Row]:
    by = {(r["cell"], r["method"]): r for r in records if r["status"] == "ok"}
    spread, regime = "van-der-pol", "oscillators, mu from 1 to 24"

    def ratio(cell: str, method: str, other: str, what: str) -> float | None:
        a, b = by.get((cell, method)), by.get((cell, other))
        return a[what] / b[what] if a is not None and b is not None and a[what] and b[what] else None

    def against_torchode(what: str) -> dict[str, float | None]:
        return {g: ratio(spread, f"quadjoint:independent-{g}", f"torchode:{g}", what) for g in GAINS}

    def against_shared(*cells: str) -> dict[str, float | None]:
        return {cell: ratio(cell, "quadjoint:independent", "quadjoint:shared", "cpu_best") for cell in cells}

    return [
        judge(
            regime,
            "no more evaluations than torchode with the same controller",
            against_torchode("evaluations"),
            lambda _, value: value <= 1.0,
            form="{:.3f}x",
        ),
        judge(regime, "no slower than torchode", against_torchode("cpu_best"), lambda _, value: value <= 1.0),
        judge(regime, "at most 0.6x the time of shared steps", against_shared(spread), lambda _, value: value <= 0.6),
        judge(
            "equal samples",
            "at most 1.3x the time of shared steps",
            against_shared("equal-oscillators", "equal-network"),
            lambda _, value: value <= 1.3,
        ),
    ]


def markdown(records: list[Record]) -> str:
    lines = ["| batch | method | evaluations | CPU time | error |", "| --- | --- | ---: | ---: | ---: |"]
    for r in records:
        if r["status"] != "ok":
            lines.append(f"| {r['cell']} | {r['method']} | {r['note']} | | |")
            continue
        cpu = "" if r["cpu_best"] is None else f"{1e3 * r['cpu_best']:.1f} ms"
        lines.append(f"| {r['cell']} | {r['method']} | {r['evaluations']} | {cpu} | {r['error']:.0e} |")
    lines += ["", "| regime | aim | measured | verdict |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.regime} | {row.aim} | {row.measured} | {row.verdict} |" for row in aims(records)]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--samples", type=int, default=256)
    command.add_argument("--turns", type=int, default=15)
    arguments = command.parse_args(argv)
    threads.set_threads()
    records = measure(arguments.samples, Limits(turns=arguments.turns, total=60.0))
    publish("independent", records, markdown(records), arguments.out, PAGE)


if __name__ == "__main__":
    main()
