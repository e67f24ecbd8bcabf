"""Run the benchmarks: ``python benchmarks/run.py [--full] [--only CELL ...] [--out DIR] [--repeats N]``.

Writes results.jsonl (a line for each cell and method), results.md (the tables, the last of them the aims) and
results.png. Without --full a subset of under three minutes. One thread, methods in turns.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":  # `benchmarks` as a package, and none of its files as a module of its own
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import figure, forward, sweeps, threads  # isort: skip  # before torch
import torch

from benchmarks.gradients import TOLERANCE, Record, Say, measure_group
from benchmarks.measure import FULL, QUICK, Limits, machine
from benchmarks.methods import Method, ours, stored_reference
from benchmarks.peers import peers
from benchmarks.problems import Cell, build, cells
from benchmarks.report import in_order, markdown
from quadjoint.experiments import authors

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ("forward", "precision", "scaling")
QUICK_GROUPS = (
    "spheres-100-3x",
    "sines-200",
    "ou-20",
    "spheres-5-3x",
    "spheres-500-3x",
    "irregular-200x50",
    "crossing-500",
    "sines-20",
    "crossing-2000",
    "crossing-20",
    "conv-16",
)
QUICK_DIFFRAX = ("spheres-5-3x", "spheres-100-3x")  # each costs half a minute of compilation
IRREGULAR_METHODS = (
    "quadjoint:auto",
    "quadjoint:direct",
    "quadjoint:discrete",
    "quadjoint:gq",
    "quadjoint:gq-paper",
    "quadjoint:adjoint",
    "torchdiffeq:direct",
    "torchdiffeq:adjoint",
    "torchode:direct",
    *authors.METHODS,
)
MINUTES = {False: 2.3, True: 90.0}  # nothing new is begun after so long


def full_order() -> list[str]:
    """All groups and studies; the largest networks come last, in case the time runs out."""
    groups = list(dict.fromkeys(c.together for c in cells().values() if c.family != "tiny"))
    small = [g for g in groups if not g.startswith("spheres")]
    spheres = sorted((g for g in groups if g not in small), key=lambda g: int(g.split("-")[1]))
    late = [g for g in spheres if g.startswith("spheres-2000")]
    return [*small, *(g for g in spheres if g not in late), *STUDIES, *late]


def methods_for(cell: Cell, full: bool, every: list[Method]) -> list[Method]:
    """Compiled methods are left out of the quick run, and where compilation would outlast what it shows."""
    chosen = every
    if cell.family == "irregular":
        chosen = [m for m in chosen if m.name in IRREGULAR_METHODS]
    if cell.scale == 5 and cell.width >= 1000:  # ten minutes were not enough, and a compiled loop cannot be interrupted
        chosen = [m for m in chosen if m.library != "diffrax"]
    if not full:
        chosen = [m for m in chosen if not m.compiled or (m.library == "diffrax" and cell.together in QUICK_DIFFRAX)]
    return chosen


class Run:
    """Collects records and writes them as they come; what an earlier run left stays unless it is measured again."""

    def __init__(self, out: Path, keep: bool) -> None:
        self.path = out / "results.jsonl"
        out.mkdir(parents=True, exist_ok=True)
        self.records: list[Record] = load(self.path) if keep else []

    def add(self, new: list[Record]) -> None:
        known = {identity(r) for r in new}
        self.records = [r for r in self.records if identity(r) not in known] + new
        text = "".join(json.dumps(r) + "\n" for r in self.records)
        partial = self.path.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self.path)

    def forget(self, kind: str, cell_names: set[str], methods: set[str] | None = None) -> None:
        """Drop what is about to be measured again; without names, all of a kind."""

        def stays(record: Record) -> bool:
            elsewhere = bool(cell_names) and record.get("cell") not in cell_names
            return record["kind"] != kind or elsewhere or (methods is not None and record["method"] not in methods)

        self.records = [r for r in self.records if stays(r)]


def identity(record: Record) -> tuple[object, ...]:
    keys = ["kind", "cell", "method", "sweep", "x", *(["tolerance"] if record["kind"] == "precision" else [])]
    return tuple(record.get(key) for key in keys)


def load(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure_item(item: str, run: Run, arguments: argparse.Namespace, limits: Limits, say: Say) -> None:
    """One group of cells or one study."""
    every, tiny = [*ours(), *peers()], item.startswith("tiny")
    if arguments.methods:
        every = [m for m in every if {m.name, *m.name.split(":")} & set(arguments.methods)]
    study = item.removeprefix("tiny-")
    if study == "forward":
        chosen = forward.forward_cells()
        chosen = chosen[:1] if tiny else chosen if arguments.full else chosen[::3]
        run.forget("forward", set())
        times = replace(forward.LIMITS, turns=2 * limits.turns)
        run.add(forward.measure(chosen, times, compiled=arguments.full and not tiny))
    elif study in ("precision", "scaling"):
        for kind in (study, "memory") if study == "scaling" else (study,):
            run.forget(kind, set())
        times = replace(sweeps.LIMITS, memory_run=0.0) if arguments.no_memory else sweeps.LIMITS
        for records in getattr(sweeps, study)(every, say, times, tiny=tiny):
            run.add(records)
    else:
        group = [c for c in cells().values() if c.together == item]
        methods = every if arguments.methods else methods_for(group[0], arguments.full, every)
        run.forget("gradient", {c.name for c in group}, {m.name for m in methods} if arguments.methods else None)
        run.add(measure_group(group, methods, limits, say, arguments.tolerance))


def prepare(items: list[str], say: Say) -> None:
    """Exact gradients of all cells, which need no quiet machine, ahead of a run that does."""
    for cell in [c for c in cells().values() if c.together in items]:
        start = time.perf_counter()
        stored_reference(build(cell, torch.float64), cell.name)
        say(f"{cell.name}: {time.perf_counter() - start:.1f} s")


def write_report(out: Path, say: Say) -> None:
    records = in_order(load(out / "results.jsonl"))
    (out / "results.md").write_text(markdown(records))
    drawn = figure.draw(records, out / "results.png")
    say(f"{out / 'results.md'}" + (f", {drawn}" if drawn else ""))


def parse(argv: list[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__, formatter_class=form)
    parser.add_argument("--full", action="store_true", help="every cell and study (an hour and a quarter)")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="these cells, groups or studies (see --list)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these, as library:method, library or method")
    parser.add_argument("--paper-code", type=Path, metavar="FOLDER", help="a clone of the authors' torch_gq_adjoint")
    parser.add_argument("--out", type=Path, help="directory of the results")
    parser.add_argument("--repeats", type=int, help="turns of every method")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="rtol and atol")
    parser.add_argument("--minutes", type=float, help="begin nothing new after so long")
    parser.add_argument("--no-memory", action="store_true", help="do not measure the peak memory")
    parser.add_argument("--report", action="store_true", help="only write the tables and the figure again")
    parser.add_argument(
        "--references", action="store_true", help="only compute the exact gradients, and store slow ones"
    )
    parser.add_argument("--list", action="store_true", help="list the names of cells and studies")
    return parser.parse_args(argv)


def pick(arguments: argparse.Namespace) -> list[str]:
    """The groups and studies to run, in order."""
    if not arguments.only:
        return full_order() if arguments.full else [*QUICK_GROUPS, "forward"]
    known = {name: c.together for name, c in cells().items()}
    known |= {name: name for name in [*known.values(), *STUDIES, *(f"tiny-{s}" for s in STUDIES)]}
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        raise SystemExit(f"no cell, group or study {', '.join(unknown)}; --list shows their names")
    return list(dict.fromkeys(known[name] for name in arguments.only))


def main(argv: list[str] | None = None) -> None:
    arguments = parse(argv)
    if arguments.list:
        print(*dict.fromkeys([*(c.together for c in cells().values()), *STUDIES]), sep="\n")
        return
    whole = arguments.full and not arguments.only
    out = arguments.out or (ROOT / "benchmarks" / "results" if whole else ROOT / "outputs" / "benchmarks")
    if arguments.report:
        write_report(out, print)
        return
    if arguments.paper_code:
        authors.load(arguments.paper_code)
    threads.set_threads()
    if arguments.references:
        prepare(pick(arguments), print)
        return
    limits = FULL if arguments.full else QUICK
    limits = replace(limits, turns=arguments.repeats) if arguments.repeats else limits
    limits = replace(limits, memory_run=0.0) if arguments.no_memory else limits
    run = Run(out, keep=bool(arguments.only))
    waiting = [name for r in run.records if r["kind"] == "left-out" for name in r["cell"].split(", ")]
    run.forget("left-out", set())
    run.add([machine()])
    minutes = arguments.minutes or (math.inf if arguments.only else MINUTES[arguments.full])
    items = pick(arguments)
    start, left_out = time.perf_counter(), [name for name in waiting if name not in items]
    for item in items:
        if time.perf_counter() - start > 60 * minutes:
            left_out.append(item)
            continue
        began = time.perf_counter()
        measure_item(item, run, arguments, limits, print)
        print(f"{item}: {time.perf_counter() - began:.0f} s", flush=True)
    if left_out:
        run.add([{"kind": "left-out", "cell": ", ".join(left_out), "status": "skipped", "note": "no time left"}])
        print(f"no time left for {', '.join(left_out)}; name them with --only to add them")
    write_report(out, print)


if __name__ == "__main__":
    main()
