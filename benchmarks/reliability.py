"""Try every fault with every gradient method, measure memory, and write ``docs/reliability.md``.

    python -m benchmarks.reliability [--solves 200] [--many 10000] [--only Dynamics Files ...]

The faults are those of ``tests/reliability``, which also asserts what is only reported here. With ``--only`` the other
sections of the page stay as they were measured before; each names the commit that it was measured at.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import quadjoint as qj  # noqa: E402
from benchmarks.reliability_processes import processes  # noqa: E402
from reliability.faults import FAULTS, GRADIENTS, Fault, attempt, difference, method_of  # noqa: E402
from reliability.file_faults import FILE_FAULTS  # noqa: E402
from reliability.files import FileFault, workplace  # noqa: E402
from reliability.large import (  # noqa: E402
    Figures,
    in_a_child,
    large_state,
    many_observations,
    many_steps_of_a_larger_state,
)
from reliability.load import bad, good, growth, light  # noqa: E402
from reliability.wheel import import_seconds  # noqa: E402
from test_errors import BAD_INPUT, refuse  # noqa: E402

MEBIBYTE = 2**20


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


def grouped(outcomes: dict[str, Outcome]) -> str:
    """Gradient methods with the same outcome in one phrase."""
    groups: dict[str, list[str]] = {}
    for gradient, found in outcomes.items():
        text = found.text if found.message or not found.text[0].isdigit() else "solved"
        groups.setdefault(text, []).append(gradient)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())


def dynamics() -> Iterable[str]:
    """Every fault of the dynamics with every gradient method."""
    results = {fault.name: {g: outcome(fault, g) for g in GRADIENTS} for fault in FAULTS}
    tried = sum(len(r) for r in results.values())
    right = sum(o.right for r in results.values() for o in r.values())
    failing = sum(fault.error is not None for fault in FAULTS)
    yield (
        f"{len(FAULTS)} faults, {failing} of which must end in an error, each with {len(GRADIENTS)} gradient methods: "
        f"{right} of {tried} ended as they should, with the right result or an error in words. The tests in "
        "`tests/reliability` check further that the same function can be solved afterwards as if nothing had been, and "
        "that grad mode and the default random generator are as before."
    )
    yield ""
    yield "| fault | what happened | difference from direct, or the words | as expected |"
    yield "| --- | --- | --- | --- |"
    for name, outcomes in results.items():
        messages = [o.message for o in outcomes.values() if o.message]
        sizes = [o.text for o in outcomes.values() if o.text[0].isdigit()]
        words = messages[0] if messages else f"at most {max(sizes, key=float)}" if sizes else ""
        right = sum(o.right for o in outcomes.values())
        yield f"| {name} | {grouped(outcomes)} | {cell(words)} | {right} of {len(outcomes)} |"


def cell(words: str, most: int = 400) -> str:
    """Words as they can stand in a table."""
    words = " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= most else f"{words[:most]} ..."


def file_outcome(fault: FileFault) -> Outcome:
    """Run a fault of files in a folder of its own; whatever happens is the result, its folder's name left out."""
    with workplace() as folder:
        try:
            words, right = fault.run(folder), True
        except Exception as error:
            name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            words, right = name + str(error), False
        words = re.sub(r"\.\d+\.tmp", ".tmp", words.replace(f"{folder}/", "").replace(str(folder), "the folder"))
    return Outcome(right and bool(re.search(fault.pattern, words)), "", words)


def file_section() -> Iterable[str]:
    """Every fault of files and folders."""
    results = {fault.name: file_outcome(fault) for fault in FILE_FAULTS}
    right = sum(o.right for o in results.values())
    yield (
        f"{len(results)} faults of result files, disks, checkpoints, data and archives: {right} were met as they "
        "should be, with a word and nothing lost. On a full disk (a limit on file sizes) a write breaks off."
    )
    yield ""
    yield "| fault | the words, or what happened | as expected |"
    yield "| --- | --- | --- |"
    for name, found in results.items():
        yield f"| {name} | {cell(found.message, 200)} | {'yes' if found.right else 'no'} |"


def bad_input() -> Iterable[str]:
    """Every wrong argument of the table in tests/test_errors.py."""
    results = {}
    for name, (_, expected, pattern) in BAD_INPUT.items():
        error = refuse(name)
        right = isinstance(error, expected) and re.search(f"(?s){pattern}", str(error)) is not None
        results[name] = (right, f"{type(error).__name__}: {error}")
    right = sum(found for found, _ in results.values())
    yield f"{len(results)} wrong arguments: {right} were refused with the right exception and words that name it."
    wrong = {name: words for name, (found, words) in results.items() if not found}
    yield from ("", *(f"- {name}: {cell(words)}" for name, words in wrong.items())) if wrong else ()


def memory(solves: int, count: int) -> Iterable[str]:
    """Tensors and bytes that many solves leave behind."""
    yield (
        "A failing pair is one solve that ends in a `SolveError` on its way forwards and one whose dynamics raise in "
        "the backward pass. Memory is the growth of the resident set; what is freed is used again, so a small leak "
        "would show in the number of live tensors first."
    )
    yield ""
    yield f"| gradient | tensors after {solves} solves | memory | tensors after {solves} failing pairs | memory |"
    yield "| --- | --- | --- | --- | --- |"
    for gradient in GRADIENTS:
        cells = []
        for kind in (good, bad):
            tensors, grown = growth(kind(gradient), solves, warm_up=20)
            cells += [str(tensors), f"{grown / MEBIBYTE:.2f} MiB"]
        yield f"| {gradient} | {' | '.join(cells)} |"
    yield ""
    yield many(count)


def many(count: int) -> str:
    """Memory and processor time per solve over many solves."""
    run = light("discrete")
    times = []
    tenth = max(1, count // 10)

    def timed() -> None:
        start = time.process_time()
        for _ in range(tenth):
            run()
        times.append((time.process_time() - start) / tenth)

    tensors, grown = growth(timed, 10, warm_up=1)
    first, last = times[-10], times[-1]
    return (
        f"{10 * tenth} solves with their gradients in one process: {tensors} tensors more, {grown / MEBIBYTE:.2f} MiB "
        f"more, {first * 1e3:.2f} ms of the processor a solve in the first tenth and {last * 1e3:.2f} ms in the last."
    )


ALONE = (
    "Every solve with its gradient runs in a process of its own; memory is what its resident set grew by, between the "
    "passes and at its peak. The error is that of the gradient against the closed form."
)


def load(solve: Callable[..., tuple[int, float]], what: str) -> Iterable[str]:
    """A large solve by every method, each in a process of its own."""
    yield from (f"{what} {ALONE}", "", "| gradient | count | error | between the passes | peak |")
    yield "| --- | --- | --- | --- | --- |"
    for gradient in GRADIENTS:
        yield load_row(gradient, in_a_child(solve, gradient))


def load_row(gradient: str, found: Figures) -> str:
    sizes = f"{found.between / MEBIBYTE:.0f} MiB | {found.peak / MEBIBYTE:.0f} MiB"
    return f"| {gradient} | {found.count} | {found.error:.0e} | {sizes} |"


def importing() -> Iterable[str]:
    """The cost of the import, in new processes."""
    processor, wall = import_seconds(Path(sys.executable), PYTHONPATH=str(ROOT / "src"))
    yield (
        f"`import quadjoint` takes {processor:.2f} s of the processor after `import torch` ({wall:.2f} s on the clock "
        "of this machine, the best of three), and imports none of the packages that belong to the extras."
    )


def commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def sections(page: str) -> dict[str, str]:
    """The sections of a page by their titles."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return {title: text.strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def folded(section: str) -> str:
    """The section with its table behind a click; one that an earlier run has folded stays as it is."""
    if "<details" in section:
        return section
    shown = r'<details markdown="1"><summary>Table</summary>\n\n\1\n</details>\n'
    return re.sub(r"((?:^\|.*\n?)+)", shown, section, flags=re.MULTILINE)


def summary(kept: dict[str, str]) -> str:
    """What each section found, in its first sentence or line."""
    rows = [f"| [{title}](#{title.lower()}) | {_finding(text)} |" for title, text in kept.items()]
    return "\n".join(["| what was tried | what happened |", "| --- | --- |", *rows])


def _finding(text: str) -> str:
    """The sentence with the numbers: the first that has any; of a table of sizes, its range of peaks."""
    peaks = [int(found) for found in re.findall(r"\| (\d+) MiB \|$", text, re.MULTILINE)]
    first = re.split(r"(?<=[.:]) (?=[A-Z])", text.split("\n")[0])[0]
    if peaks:
        return f"{first} Every gradient ended; peaks from {min(peaks)} to {max(peaks)} MiB."
    many = re.search(r"^\d+ solves with their gradients.*$", text, re.MULTILINE)
    return many[0] if many else first


def head() -> str:
    return (
        f"# Reliability\n\nMade by `python -m benchmarks.reliability` with quadjoint {qj.__version__}, "
        f"torch {torch.__version__}, Python {platform.python_version()} on {platform.machine()}.\n"
    )


def page(kept: dict[str, str]) -> str:
    """Head, summary, and the sections with their tables folded."""
    return "\n".join([head(), summary(kept), "", *(f"## {t}\n\n{folded(text)}\n" for t, text in kept.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solves", type=int, default=200)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", help="titles of sections")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reliability.md")
    args = parser.parse_args()
    makers: dict[str, Callable[[], Iterable[str]]] = {
        "Dynamics": dynamics,
        "Files": file_section,
        "Input": bad_input,
        "Processes": processes,
        "Memory": lambda: memory(args.solves, args.many),
        "Steps": lambda: load(many_steps_of_a_larger_state, "Ten thousand steps (midpoint or leapfrog), 500 doubles."),
        "Observations": lambda: load(many_observations, "Many times at which a state of two doubles is observed."),
        "States": lambda: load(large_state, "Ten million float32 numbers (38 MiB), four steps (rk4 or leapfrog)."),
        "Import": importing,
    }
    if unknown := set(args.only or ()) - makers.keys():
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(makers)}")
    torch.set_num_threads(1)
    kept = sections(args.out.read_text()) if args.only and args.out.exists() else {}
    for title, make in makers.items():
        if args.only is None or title in args.only:
            kept[title] = "\n".join([*make(), "", f"Measured on top of commit {commit()}."])
            args.out.write_text(page({t: kept[t] for t in makers if t in kept}))
            print(f"{title}: written to {args.out}", flush=True)


if __name__ == "__main__":
    main()
