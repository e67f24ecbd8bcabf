"""The package as installed: one version everywhere, and a core that needs only torch and numpy."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import quadjoint as qj

ROOT = Path(__file__).resolve().parent.parent

# What the extras bring; quadjoint and its solvers must work with none of it.
OPTIONAL = [
    "diffrax",
    "jax",
    "matplotlib",
    "pints",
    "psutil",
    "ray",
    "rich",
    "scipy",
    "statsmodels",
    "torchdiffeq",
    "torchode",
    "torchsde",
    "tqdm",
    "typer",
]

SOLVE_WITHOUT_EXTRAS = """
import math, sys
import torch
sys.modules.update(dict.fromkeys({optional!r}))  # None makes `import name` raise ModuleNotFoundError
import quadjoint as qj
y0 = torch.ones(1, dtype=torch.float64, requires_grad=True)
t = torch.tensor([0.0, 1.0], dtype=torch.float64)
y = qj.odeint(lambda t, y: -y, y0, t, rtol=1e-8, atol=1e-10)[-1]
y.sum().backward()
assert math.isclose(y.item(), math.exp(-1), rel_tol=1e-6), y
assert math.isclose(y0.grad.item(), math.exp(-1), rel_tol=1e-6), y0.grad
"""


def test_one_version() -> None:
    """The module, the installed metadata and the citation file name the same version."""
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert qj.__version__ == metadata.version("quadjoint") == cited[1]


def test_needs_only_torch_and_numpy() -> None:
    required = [line for line in metadata.requires("quadjoint") or [] if "extra ==" not in line]
    assert sorted(re.match(r"[\w-]+", line)[0] for line in required) == ["numpy", "torch"]


def test_solves_without_extras() -> None:
    """y' = -y, y(0) = 1: y(1) and dy(1)/dy(0) are both exp(-1), with every optional package missing."""
    code = SOLVE_WITHOUT_EXTRAS.format(optional=OPTIONAL)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_ships_its_types() -> None:
    assert Path(qj.__file__).with_name("py.typed").is_file()


def test_one_formatter_without_exceptions() -> None:
    """No line of code is kept from it."""
    mark = re.compile("# fmt: (skip|off)")
    files = [p for folder in ("src", "tests", "docs", "examples", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in files if mark.search(path.read_text(encoding="utf-8"))] == []
