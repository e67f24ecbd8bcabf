"""The wheel, installed by pip into an empty environment: imports little, and works without the extras."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from reliability.wheel import EXTRAS, ROOT, build, empty_environment, import_seconds, install, lend_torch, run

HEAVY = (*EXTRAS, "torch._dynamo", "torch._inductor", "sympy", "torchvision")

PROGRAM = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Block())
import torch
before = set(sys.modules)
import quadjoint as qj
heavy = [m for m in {HEAVY!r} if m in set(sys.modules) - before]
assert not heavy, heavy
assert qj.__file__.startswith(sys.prefix), qj.__file__
f = torch.nn.Linear(2, 2)
for gradient in ("direct", "discrete", "gq", "adjoint", "auto"):
    qj.odeint(lambda t, y: f(y), torch.ones(3, 2), torch.tensor([0.0, 1.0]), gradient=gradient).sum().backward()
assert f.weight.grad.isfinite().all()
qj.nn.NeuralODE(qj.nn.TimeMLP(2, width=4))(torch.ones(3, 2))
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if subprocess.run([sys.executable, "-c", "import build, setuptools"], capture_output=True).returncode:
        pytest.skip("the packages build and setuptools are not installed")
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, to which torch and numpy are lent from here: installing them takes long."""
    python = empty_environment(tmp_path_factory.mktemp("environment"))
    install(python, "--no-deps", "--no-index", str(wheel))
    lend_torch(python)
    return python


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "quadjoint/py.typed" in names
    tops = {name.split("/")[0] for name in names}
    assert all(top.startswith("quadjoint") for top in tops), tops
    sources = {f"quadjoint/{p.relative_to(ROOT / 'src' / 'quadjoint').as_posix()}"
               for p in (ROOT / "src" / "quadjoint").rglob("*.py")}  # fmt: skip
    assert sources <= set(names)


def test_the_installed_wheel_works_without_the_extras(python: Path, tmp_path: Path) -> None:
    assert run([str(python), "-c", PROGRAM], cwd=tmp_path).strip() == "works"


def test_the_import_takes_less_than_three_tenths_of_a_second_of_the_processor(python: Path) -> None:
    """Beyond ``import torch``; now a third of that. A package of the extras imported by mistake would show."""
    processor, _ = import_seconds(python, repeats=1)
    assert processor < 0.3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pip_installs_the_wheel_and_what_it_needs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Torch and numpy by the pinned versions, and nothing else of ours; the command says what it needs."""
    python = empty_environment(tmp_path / "environment")
    install(python, "-c", str(ROOT / "constraints.txt"), str(wheel))
    assert run([str(python), "-c", PROGRAM], cwd=tmp_path).strip() == "works"
    done = subprocess.run([str(python.with_name("quadjoint")), "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "The quadjoint command needs typer: pip install 'quadjoint[experiments]'"
