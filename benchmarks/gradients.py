"""One gradient of every cell by every method: set up, check against the reference, time in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Contender, Limits, TooSlow, activation_bytes, in_turns, peak_memory, time_limit
from benchmarks.methods import Method, NotApplicable, relative_error, stored_reference
from benchmarks.problems import Case, Cell, build
from quadjoint.experiments.faults import one_line
from quadjoint.experiments.timing import environment

Record = dict[str, Any]
Say = Callable[[str], None]
TOLERANCE = 1e-3


def measure_group(
    cells: list[Cell], methods: Iterable[Method], limits: Limits, say: Say, tolerance: float = TOLERANCE, **extra: Any
) -> list[Record]:
    """All methods on the cells of a group, timed together. ``extra`` goes into every record."""
    records: list[Record] = []
    contenders: list[Contender] = []
    runners = []
    for cell in cells:
        exact = stored_reference(build(cell, torch.float64), cell.name)
        for method in methods:
            record: Record = {"kind": "gradient", "cell": cell.name, "family": cell.family, "method": method.name}
            record |= {"width": cell.width, "scale": cell.scale, "tolerance": tolerance, "compiled": method.compiled}
            record |= {"commit": environment()["commit"], **extra}
            entered = _enter(method, cell, build(cell), exact, tolerance, limits, record)
            if entered is None:
                continue
            records.append(record)
            if isinstance(entered, Contender):
                contenders.append(entered)
                runners.append(entered.run.__self__)  # type: ignore[attr-defined]
            elif not record["note"].endswith("not installed"):
                say(f"  {cell.name} {method.name}: skipped, {record['note']}")
    in_turns(contenders, limits)
    for contender, runner in zip(contenders, runners, strict=True):
        contender.record["peak_bytes"] = peak_memory(runner, contender.record, limits)
    return records


def _enter(
    method: Method, cell: Cell, case: Case, exact: list[Tensor], tolerance: float, limits: Limits, record: Record
) -> Contender | bool | None:
    """Make the runner and run it once. None: not applicable; False: skipped, with the reason in the record."""
    try:
        runner = method.make(case, tolerance)
        start = time.perf_counter()
        with time_limit(limits.compiled_run if method.compiled else limits.run):
            found, figures = runner.first()
            if method.compiled:
                runner.run()  # whatever is still to be compiled
        first = time.perf_counter() - start
    except NotApplicable:
        return None
    except TooSlow as limit:
        record |= {"status": "skipped", "note": str(limit)}
        return False
    except ImportError as missing:
        record |= {"status": "skipped", "note": f"{missing.name or method.library} is not installed"}
        return False
    except Exception as failure:  # a benchmark goes on where one method fails, and its report says so
        record |= {"status": "failed", "note": f"{type(failure).__name__}: {one_line(failure, 200)}"}
        return False
    record |= {"status": "ok", "error": relative_error(found, exact), "first_seconds": first, **figures}
    record |= {"state_bytes": case.y0.nbytes, "parameter_bytes": sum(p.nbytes for p in case.f.parameters())}
    record["activation_bytes"] = activation_bytes(case.f, case.y0)
    return Contender(runner.run, record, first)
