"""Would several steps in one compiled graph pay? ``python -m benchmarks.step_graphs`` on a quiet machine.

``compile=True`` makes a graph of one step. Here n attempts are one graph, with the control of the step size inside, for
a solve of which only the end is observed: what is gained by calling fewer graphs, and what it costs to compile them.
The rule for keeping such graphs in the library: at least 1.4 times as fast, compiled in at most 15 seconds. Writes
``step_graphs.jsonl`` and ``step_graphs.md``, the table that docs/performance.md shows.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # graphs of runs before would take no time to compile
from benchmarks import threads  # isort: skip  # before torch
import torch
from torch import Tensor

import quadjoint as qj
from benchmarks.measure import Contender, Limits, in_turns
from benchmarks.output import ROOT, Record, parser, publish
from benchmarks.problems import build, cells
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA
from quadjoint.solver.methods.compiled import COMPILE
from quadjoint.solver.methods.explicit_stages import take_stages
from quadjoint.solver.methods.sums import weighted
from quadjoint.solver.state import relative_error, rms_norm

PAGE = ROOT / "docs" / "performance.md"
CELLS = ("crossing-20", "spheres-5-3x")
TOLERANCE, FIRST = 1e-3, 0.1  # the first step is given, so that nothing has to look for it
LIMITS = Limits(turns=30, total=6.0)
COUNTS = (1, 2, 4)


def attempts(f: Callable[..., Tensor], count: int) -> Callable[..., tuple[Tensor, ...]]:
    """``count`` attempts of dopri5 in a row, each from where the one before has got to."""
    method = RUNGE_KUTTA["dopri5"]
    assert method.error_weights is not None
    weights = method.error_weights

    def run(t: Tensor, h: Tensor, end: Tensor, y: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        for _ in range(count):
            dt = torch.where(end - t <= 1.01 * h, end - t, h)
            ks, _, y1, _ = take_stages(method, lambda t, y, nudge=0: f(t, y), (t, t + dt), y, k, dt=dt, length=dt)
            with torch.no_grad():
                error = weighted([k.detach() for k in ks], weights, dt)
                scale = dict(rtol=TOLERANCE, atol=TOLERANCE)
                ratio = rms_norm(relative_error(error, y.detach(), y1.detach(), **scale))
                factor = (0.9 * ratio**-0.2).clamp(0.2, 10.0)
                good = ratio <= 1.0
                h = dt * torch.where(good, factor.clamp(min=1.0), factor)
                t = torch.where(good, t + dt, t)
            y, k = torch.where(good, y1, y), torch.where(good, ks[-1], k)
        return t, h, y, k

    return torch.compile(run, **COMPILE)


def solve(case: Any, graph: Callable[..., tuple[Tensor, ...]]) -> Tensor:
    """The state at the last time, the host looking once a graph."""
    t, end, h = (torch.tensor(float(x)) for x in (case.t[0], case.t[-1], FIRST))
    y = case.y0.clone().requires_grad_()
    k = case.f(t, y)
    while float(t) < float(end):
        t, h, y, k = graph(t, h, end, y, k)
    return y


def contenders(name: str) -> list[Contender]:
    """Gradients of one problem: as the library computes them, without and with ``compile``, and by longer graphs."""
    case = build(cells()[name])
    weights = list(case.f.parameters())
    settings: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE, "options": {"first_step": FIRST}}

    def library(compile: bool) -> Callable[[], Any]:
        def run() -> Any:
            ys = qj.odeint(case.f, case.y0, case.t, gradient="direct", compile=compile, **settings)
            return torch.autograd.grad(ys[-1].square().sum(), weights)

        return run

    def ours(count: int) -> Callable[[], Any]:
        graph = attempts(case.f, count)
        return lambda: torch.autograd.grad(solve(case, graph).square().sum(), weights)

    runs = {"eager": library(False), "compile=True": library(True)}
    runs |= {f"{n} in a graph": ours(n) for n in COUNTS}
    found = []
    for method, run in runs.items():
        began = time.perf_counter()
        run(), run()
        found.append(Contender(run, {"method": method, "first": time.perf_counter() - began, "grads": run()}, 1e-3))
    exact = found[0].record["grads"]
    for contender in found:
        pairs = zip(contender.record.pop("grads"), exact, strict=True)
        contender.record["difference"] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    return found


def measure(name: str) -> list[Record]:
    every = contenders(name)
    in_turns(every, LIMITS)
    return [{"kind": "step graphs", "cell": name, **c.record} for c in every]


def table(records: list[Record]) -> str:
    lines = ["| problem | gradient by | ms, best | over one in a graph | first two, s | differs from eager by |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    base = {r["cell"]: r["seconds_best"] for r in records if r["method"] == "1 in a graph"}
    for r in records:
        best = r["seconds_best"]
        figures = f"{1e3 * best:.2f} | {best / base[r['cell']]:.2f} | {r['first']:.1f} | {r['difference']:.0e}"
        lines.append(f"| {r['cell']} | {r['method']} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    out = parser(__doc__).parse_args().out
    threads.set_threads()
    warnings.simplefilter("ignore")  # the compiler's about itself
    records = [record for name in CELLS for record in measure(name)]
    publish("step_graphs", records, table(records), out, PAGE)


if __name__ == "__main__":
    main()
