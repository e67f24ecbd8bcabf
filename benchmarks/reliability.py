"""Try every fault with every gradient method, measure memory, and write ``docs/reliability.md``.

    python -m benchmarks.reliability [--solves 200] [--many 10000]

The faults are those of ``tests/reliability``, which also asserts what is only reported here.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import quadjoint as qj  # noqa: E402
from reliability.faults import FAULTS, GRADIENTS, Fault, attempt, difference, method_of  # noqa: E402
from reliability.load import bad, good, growth  # noqa: E402

IMPORT = "import time; t = time.perf_counter(); import torch; a = time.perf_counter(); import quadjoint; " \
         "print(time.perf_counter() - a)"  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of one fault with one gradient method."""

    right: bool
    text: str  # the exception's name, or the largest relative difference from direct backpropagation
    message: str = ""


def outcome(fault: Fault, gradient: str) -> Outcome:
    """Run a fault; whatever happens is the result."""
    f = fault.make()
    expected, pattern = fault.expected(gradient)
    before = torch.is_grad_enabled()
    try:
        found = attempt(fault, f, gradient)
    except BaseException as error:
        torch.set_grad_enabled(before)
        right = expected is not None and isinstance(error, expected) and bool(re.search(pattern, str(error)))
        return Outcome(right, type(error).__name__, str(error).splitlines()[0] if str(error) else "")
    if fault.poison:
        return Outcome(expected is None, "NaN gradient, as torch does")
    error_size = difference(found, attempt(fault, f, "direct", method_of(gradient)))
    return Outcome(expected is None and error_size < fault.tolerance, f"{error_size:.0e}")


def import_seconds(repeats: int = 3) -> float:
    """Time of ``import quadjoint`` after ``import torch``, the best of several processes."""
    runs = [subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
            for _ in range(repeats)]  # fmt: skip
    return min(float(run.stdout) for run in runs)


def grouped(outcomes: dict[str, Outcome]) -> str:
    """Gradient methods with the same outcome in one phrase."""
    groups: dict[str, list[str]] = {}
    for gradient, found in outcomes.items():
        text = found.text if found.message or not found.text[0].isdigit() else "solved"
        groups.setdefault(text, []).append(gradient)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())


def fault_rows(results: dict[str, dict[str, Outcome]]) -> Iterable[str]:
    yield "| fault | what happened | difference from direct, or the words | as expected |"
    yield "| --- | --- | --- | --- |"
    for name, outcomes in results.items():
        messages = [o.message for o in outcomes.values() if o.message]
        sizes = [o.text for o in outcomes.values() if o.text[0].isdigit()]
        words = messages[0] if messages else f"at most {max(sizes, key=float)}" if sizes else ""
        words = words.replace("|", "\\|")
        right = sum(o.right for o in outcomes.values())
        yield f"| {name} | {grouped(outcomes)} | {words} | {right} of {len(outcomes)} |"


def memory_rows(solves: int) -> Iterable[str]:
    yield f"| gradient | tensors after {solves} solves | memory | tensors after {solves} failing pairs | memory |"
    yield "| --- | --- | --- | --- | --- |"
    for gradient in GRADIENTS:
        cells = []
        for kind in (good, bad):
            tensors, grown = growth(kind(gradient), solves, warm_up=20)
            cells += [str(tensors), f"{grown / 2**20:.2f} MiB"]
        yield f"| {gradient} | {' | '.join(cells)} |"


def many(count: int) -> str:
    """Memory and time per solve over many solves."""
    run = good("discrete")
    for _ in range(100):
        run()
    times = []
    tenth = max(1, count // 10)

    def timed() -> None:
        start = time.perf_counter()
        for _ in range(tenth):
            run()
        times.append((time.perf_counter() - start) / tenth)

    tensors, grown = growth(timed, 10, warm_up=1)
    first, last = times[1], times[-1]
    return (
        f"{10 * tenth} solves with their gradients in one process: {tensors} tensors more, {grown / 2**20:.2f} MiB "
        f"more, {first * 1e3:.2f} ms a solve in the first tenth and {last * 1e3:.2f} ms in the last."
    )


def report(solves: int, count: int) -> str:
    results = {fault.name: {g: outcome(fault, g) for g in GRADIENTS} for fault in FAULTS}
    tried = sum(len(r) for r in results.values())
    right = sum(o.right for r in results.values() for o in r.values())
    failing = sum(fault.error is not None for fault in FAULTS)
    lines = [
        "# Reliability",
        "",
        f"Made by `python -m benchmarks.reliability` with quadjoint {qj.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()} on {platform.machine()}.",
        "",
        f"{len(FAULTS)} faults, {failing} of which must end in an error, each with {len(GRADIENTS)} gradient methods: "
        f"{right} of {tried} ended as they should, with the right result or an error in words. The tests in "
        "`tests/reliability` check further that the same function can be solved afterwards as if nothing had been, and "
        "that grad mode and the default random generator are as before.",
        "",
        "## Faults",
        "",
        *fault_rows(results),
        "",
        "## Memory",
        "",
        "A failing pair is one solve that ends in a `SolveError` on its way forwards and one whose dynamics raise in "
        "the backward pass. Memory is the growth of the resident set; what is freed is used again, so a small leak "
        "would show in the number of live tensors first.",
        "",
        *memory_rows(solves),
        "",
        many(count),
        "",
        "## Import",
        "",
        f"`import quadjoint` takes {import_seconds():.2f} s after `import torch`, and imports none of the packages "
        "that belong to the extras.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solves", type=int, default=200)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reliability.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = report(args.solves, args.many)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
