"""torchdiffeq's own tests, run with torchdiffeq and with the drop-in in its place.

    python benchmarks/torchdiffeq_suite.py CHECKOUT [--publish] [--json FILE]

CHECKOUT is a clone of github.com/rtqichen/torchdiffeq. Its five test files run twice, side by side, each time in a
process of its own: with the package of the checkout, and with ``quadjoint.torchdiffeq`` under the name ``torchdiffeq``.
Every subtest counts, whatever its method; nothing is left out. Random numbers start from the same seed in every test.
The tables go to standard output, with ``--publish`` also to ``results`` and the first onto the page on migrating, the
outcome of every subtest to FILE. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Any

FILES = ("api_tests", "event_tests", "gradient_tests", "norm_tests", "odeint_tests")
LIBRARIES = ("torchdiffeq", "quadjoint")
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "migrating.md"

# A test is {"test": its name, "parts": [...]}; a part is {"parameters": those of subTest, or None for what a test does
# outside of subtests, "failure": the first line of the exception or None}.
Record = dict[str, Any]


class Recorder(unittest.TestResult):
    """Keeps the outcome of every subtest and, apart from them, of the rest of every test."""

    def __init__(self, library: str) -> None:
        super().__init__()
        self.library = library
        self.records: list[Record] = []

    def startTest(self, test: unittest.TestCase) -> None:
        import torch

        super().startTest(test)
        print(f"{self.library}: {test.id()}", file=sys.stderr, flush=True)
        torch.manual_seed(0)
        self.records.append({"test": test.id(), "parts": []})

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        parts = self.records[-1]["parts"]
        if not any(part["parameters"] is None for part in parts):
            parts.append({"parameters": None, "failure": None})

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        self._add(_parameters(subtest), None if err is None else err[1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        if not self.records or self.records[-1]["test"] != test.id():  # a class or module that could not be set up
            self.records.append({"test": test.id(), "parts": []})
        self._add(None, err[1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._add(None, err[1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._add(_parameters(test), unittest.SkipTest(reason))

    def _add(self, parameters: dict[str, str] | None, error: BaseException | None) -> None:
        failure = None if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
        self.records[-1]["parts"].append({"parameters": parameters, "failure": failure})


def _parameters(test: Any) -> dict[str, str] | None:
    return {name: str(value) for name, value in test.params.items()} if hasattr(test, "params") else None


def run_tests(checkout: Path, library: str) -> list[Record]:
    """Run the test files in this process, in which ``torchdiffeq`` is from now on the library asked for."""
    sys.path[:0] = [str(checkout), str(checkout / "tests")]
    if library == "quadjoint":
        sys.path.insert(0, str(ROOT / "src"))
        sys.modules["torchdiffeq"] = importlib.import_module("quadjoint.torchdiffeq")
    else:
        origin = importlib.import_module("torchdiffeq").__file__
        if origin is None or checkout not in Path(origin).resolve().parents:
            raise SystemExit(
                f"{checkout} has no package torchdiffeq; it would have been tested as installed: {origin}."
            )
    recorder = Recorder(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unittest.defaultTestLoader.loadTestsFromNames(FILES).run(recorder)
    return recorder.records


def run_apart(checkout: Path) -> dict[str, list[Record]]:
    """As ``run_tests`` with each library, in processes of their own, whose names of tests show how far they are."""
    with tempfile.TemporaryDirectory() as folder:
        files = {library: Path(folder) / f"{library}.json" for library in LIBRARIES}
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, str(checkout)]
        children = {
            library: subprocess.Popen([*command, "--library", library, "--json", str(file)], env=environment)
            for library, file in files.items()
        }
        codes = {library: child.wait() for library, child in children.items()}
        for library, code in codes.items():
            if code:
                raise SystemExit(f"The tests could not be run with {library}; the reason stands above.")
        return {library: json.loads(file.read_text()) for library, file in files.items()}


def merge(runs: dict[str, list[Record]]) -> list[Record]:
    """Each test with its parts and the failure of each library there; parts of equal parameters are told by order."""
    merged: dict[str, dict[Any, Record]] = {}
    for library, records in runs.items():
        for record in records:
            parts = merged.setdefault(record["test"], {})
            seen: collections.Counter[str] = collections.Counter()
            for part in record["parts"]:
                name = json.dumps(part["parameters"], sort_keys=True)
                seen[name] += 1
                missing = dict.fromkeys(runs, "not reached")
                row = parts.setdefault((name, seen[name]), {"parameters": part["parameters"]} | missing)
                row[library] = part["failure"]
    return [{"test": test, "parts": list(parts.values())} for test, parts in merged.items()]


def tally(parts: list[Record], library: str) -> str:
    return f"{sum(part[library] is None for part in parts)} of {len(parts)}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def subtests_of(test: Record) -> list[Record]:
    return [part for part in test["parts"] if part["parameters"] is not None]


def by_test(tests: list[Record]) -> str:
    """Subtests passed in each test. A test without any counts as one; what fails outside of them is said."""
    rows = []
    for test in tests:
        subtests = subtests_of(test)
        rest = [part for part in test["parts"] if part["parameters"] is None]
        row = [f"`{test['test']}`"]
        for library in LIBRARIES:
            failed = subtests and any(part[library] is not None for part in rest)
            row.append(tally(subtests or rest, library) + (", then fails" if failed else ""))
        rows.append(row)
    every_subtest = [part for test in tests for part in subtests_of(test)]
    rows.append(["all subtests", *(tally(every_subtest, library) for library in LIBRARIES)])
    whole = [{lib: next((p[lib] for p in test["parts"] if p[lib]), None) for lib in LIBRARIES} for test in tests]
    rows.append(["tests that pass as a whole", *(tally(whole, library) for library in LIBRARIES)])
    return table(["subtests passed", *LIBRARIES], rows)


def by_method(tests: list[Record]) -> str:
    """Subtests passed with each integration method, of those that name one."""
    methods: dict[str, list[Record]] = {}
    for test in tests:
        for part in subtests_of(test):
            if "method" in part["parameters"]:
                methods.setdefault(part["parameters"]["method"], []).append(part)
    rows = [[f"`{name}`", *(tally(parts, library) for library in LIBRARIES)] for name, parts in methods.items()]
    return table(["subtests passed with method", *LIBRARIES], rows)


def values_of(parameters: list[dict[str, str]]) -> dict[str, dict[str, None]]:
    """The values that each parameter takes, in order."""
    names = dict.fromkeys(name for some in parameters for name in some)
    return {name: dict.fromkeys(some[name] for some in parameters if name in some) for name in names}


def failures(tests: list[Record]) -> str:
    """What fails with one library or both, by test and message, with the parameters that single it out."""
    rows = []
    for test in tests:
        groups: dict[tuple[str, str], list[dict[str, str]]] = {}
        for part in test["parts"]:
            failing = [library for library in LIBRARIES if part[library] is not None]
            if failing:
                sentence = part[failing[-1]].split(". ")[0]
                message = re.sub(r"'\w+'|[-\d.]*\d(e[-+]?\d+)?", "…", sentence)
                message = re.sub(r"…(, …)+", "…", message).replace("|", "\\|")
                groups.setdefault((" and ".join(failing), message), []).append(part["parameters"] or {})
        everything = values_of([part["parameters"] for part in subtests_of(test)])
        for (libraries, message), found in groups.items():
            single = {name: some for name, some in values_of(found).items() if some != everything[name]}
            where = "; ".join(f"{name} {', '.join(some)}" for name, some in single.items())
            rows.append([f"`{test['test']}`", libraries, str(len(found)), where, message])
    return table(["test", "fails with", "times", "where", "message"], rows)


def commit(folder: Path) -> str:
    """The commit that a folder is a checkout of, and whether its Python files were changed since."""
    git = ["git", "-C", str(folder)]
    done = subprocess.run([*git, "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, text=True)
    top, _, head = done.stdout.strip().partition("\n")
    if done.returncode or Path(top).resolve() != folder:
        return "an unknown commit"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], capture_output=True).returncode
    return f"{head} with changes" if changed else head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of a clone of torchdiffeq")
    parser.add_argument("--publish", action="store_true", help="write the tables to be committed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome of every subtest")
    parser.add_argument("--library", choices=LIBRARIES, help="run with this one only, in this process (no tables)")
    arguments = parser.parse_args()
    checkout = arguments.checkout.resolve()
    absent = [name for name in FILES if not (checkout / "tests" / f"{name}.py").is_file()]
    if absent:
        parser.error(f"{arguments.checkout} is no checkout of torchdiffeq: tests/{absent[0]}.py is missing.")
    if arguments.library:
        result: Any = run_tests(checkout, arguments.library)
    else:
        commits = {"torchdiffeq": commit(checkout), "quadjoint": commit(ROOT)}
        tests = merge(run_apart(checkout))
        result = {"commits": commits, "tests": tests}
        first = by_test(tests)
        made_by = ", ".join(f"{library} at {head}" for library, head in commits.items())
        text = "\n".join([made_by, "", first, by_method(tests), failures(tests)])
        if arguments.publish:
            sys.path.insert(0, str(ROOT))
            from benchmarks.output import RESULTS, publish

            publish("torchdiffeq_suite", tests, text, RESULTS, PAGE, excerpt=first)
        else:
            print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
