"""The wheel, installed into an empty folder: imports little, and works without the extras."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("scipy", "matplotlib", "typer", "rich", "torchsde", "torchdiffeq", "psutil", "torch._dynamo",
         "torch._inductor", "sympy", "torchvision")  # fmt: skip

PROGRAM = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("scipy", "matplotlib", "typer", "rich", "torchsde", "torchdiffeq", "psutil", "ray"):
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Block())
import torch
before = set(sys.modules)
import quadjoint as qj
heavy = [m for m in {HEAVY!r} if m in set(sys.modules) - before]
assert not heavy, heavy
assert qj.__file__.startswith(sys.argv[1]), qj.__file__
f = torch.nn.Linear(2, 2)
for gradient in ("direct", "discrete", "gq", "adjoint", "auto"):
    qj.odeint(lambda t, y: f(y), torch.ones(3, 2), torch.tensor([0.0, 1.0]), gradient=gradient).sum().backward()
assert f.weight.grad.isfinite().all()
qj.nn.NeuralODE(qj.nn.TimeMLP(2, width=4))(torch.ones(3, 2))
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src" / "quadjoint", source / "src" / "quadjoint",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    if subprocess.run([sys.executable, "-c", "import build, setuptools"], capture_output=True).returncode:
        pytest.skip("the packages build and setuptools are not installed")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "quadjoint/py.typed" in names
    tops = {name.split("/")[0] for name in names}
    assert all(top.startswith("quadjoint") for top in tops), tops
    sources = {f"quadjoint/{p.relative_to(ROOT / 'src' / 'quadjoint').as_posix()}"
               for p in (ROOT / "src" / "quadjoint").rglob("*.py")}  # fmt: skip
    assert sources <= set(names)


def test_the_wheel_works_in_an_empty_folder_without_the_extras(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)  # what an installer does with a pure Python wheel
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program), str(target)], capture_output=True, text=True, cwd=tmp_path,
                          env={"PYTHONPATH": str(target), "PATH": "", "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "works"
