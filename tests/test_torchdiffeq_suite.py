"""The runner of torchdiffeq's tests counts rightly, on a checkout small enough to count by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "benchmarks" / "torchdiffeq_suite.py"

PACKAGE = """
def odeint(f, y0, t, method=None):
    if method == "gl4":
        return y0
    raise RuntimeError("no 1.5. Other words.")
"""
API = """
import unittest
import torch
import torchdiffeq

class Api(unittest.TestCase):
    def test_methods(self):
        for method in ("dopri5", "gl4"):
            for again in range(2):
                with self.subTest(method=method):  # the same parameters twice
                    torchdiffeq.odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), method=method)

    def test_rest(self):
        with self.subTest(part="first"):
            pass
        self.assertIn("quadjoint", torchdiffeq.__name__)

    def test_seed(self):
        self.assertEqual(torch.rand(()).item(), torch.rand((), generator=torch.Generator().manual_seed(0)).item())

    @unittest.skip("not today")
    def test_skipped(self):
        pass
"""
BROKEN = "import a_package_that_is_not_there\n"
CLASS = """
import unittest

class Unprepared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError("no disk")

    def test_nothing(self):
        pass
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("tests", "torchdiffeq"):
        (folder / name).mkdir()
    (folder / "torchdiffeq" / "__init__.py").write_text(PACKAGE)
    for name, text in {"api": API, "event": BROKEN, "gradient": CLASS, "norm": "", "odeint": ""}.items():
        (folder / "tests" / f"{name}_tests.py").write_text(text)
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(RUNNER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)


@pytest.fixture(scope="module")
def result(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("result") / "result.json"
    done = run(str(checkout), "--json", str(file))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, json.loads(file.read_text())


def test_every_part_of_every_test_is_recorded(result: tuple[str, dict[str, Any]]) -> None:
    tests = {test["test"]: test["parts"] for test in result[1]["tests"]}
    methods = [part for part in tests["api_tests.Api.test_methods"] if part["parameters"] is not None]
    assert [part["parameters"]["method"] for part in methods] == ["dopri5", "dopri5", "gl4", "gl4"]
    assert [part["torchdiffeq"] is None for part in methods] == [False, False, True, True]
    assert methods[0]["torchdiffeq"] == "RuntimeError: no 1.5. Other words."
    assert methods[0]["quadjoint"] is None
    first, rest = tests["api_tests.Api.test_rest"]
    assert first == {"parameters": {"part": "first"}, "torchdiffeq": None, "quadjoint": None}
    assert rest["parameters"] is None and rest["quadjoint"] is None and rest["torchdiffeq"].startswith("AssertionError")
    assert tests["api_tests.Api.test_seed"] == [{"parameters": None, "torchdiffeq": None, "quadjoint": None}]


def test_what_cannot_be_run_counts_as_failed(result: tuple[str, dict[str, Any]]) -> None:
    failed = {test["test"]: test["parts"] for test in result[1]["tests"]}
    for name, message in {
        "api_tests.Api.test_skipped": "SkipTest: not today",
        "unittest.loader._FailedTest.event_tests": "ImportError: Failed to import test module: event_tests",
        "setUpClass (gradient_tests.Unprepared)": "OSError: no disk",
    }.items():
        assert failed[name] == [{"parameters": None, "torchdiffeq": message, "quadjoint": message}]


def test_tables(result: tuple[str, dict[str, Any]]) -> None:
    printed = result[0].splitlines()
    assert "| `api_tests.Api.test_rest` | 1 of 1, then fails | 1 of 1 |" in printed
    assert "| `dopri5` | 0 of 2 | 2 of 2 |" in printed
    passed = [line for line in printed if line.startswith("| all subtests")]
    methods = [part for test in result[1]["tests"] for part in test["parts"] if part["parameters"] is not None]
    ours = sum(part["quadjoint"] is None for part in methods)
    assert passed == [f"| all subtests | 3 of 5 | {ours} of 5 |"]
    assert "| `api_tests.Api.test_methods` | torchdiffeq | 2 | method dopri5 | RuntimeError: no … |" in printed
    both = "torchdiffeq and quadjoint"
    assert f"| `setUpClass (gradient_tests.Unprepared)` | {both} | 1 |  | OSError: no disk |" in printed


def test_other_folders_are_refused_in_words(tmp_path: Path, checkout: Path) -> None:
    done = run(str(tmp_path))
    assert done.returncode == 2 and "is no checkout of torchdiffeq: tests/api_tests.py is missing" in done.stderr
    bare = tmp_path / "bare"
    (bare / "tests").mkdir(parents=True)
    for file in (checkout / "tests").glob("*.py"):
        (bare / "tests" / file.name).write_text("")
    done = run(str(bare), "--library", "torchdiffeq")
    assert done.returncode == 1 and "has no package torchdiffeq" in done.stderr
