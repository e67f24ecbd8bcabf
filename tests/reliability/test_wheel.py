"""What is published: the source distribution holds all tests, and the wheel made from it, installed by pip into an
empty environment, imports little and works without the extras."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import quadjoint
from reliability.wheel import EXTRAS, ROOT, build, copy, empty_environment, install, lend_torch, run

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
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel."""
    if subprocess.run([sys.executable, "-c", "import build, setuptools"], capture_output=True).returncode:
        pytest.skip("the packages build and setuptools are not installed")
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[1]


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution as somebody has unpacked it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built[0]) as tar:
        tar.extractall(folder, filter="data")
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, to which torch and numpy are lent from here: installing them takes long."""
    python = empty_environment(tmp_path_factory.mktemp("environment"))
    install(python, "--no-deps", "--no-index", str(wheel))
    lend_torch(python)
    return python


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_source_distribution_holds_everything_that_the_checkout_does(unpacked: Path, tmp_path: Path) -> None:
    """Tests, benchmarks, documentation, examples and results; only what concerns git itself is not in it."""
    missing = files(copy(tmp_path)) - files(unpacked)
    assert missing <= {".gitattributes", ".gitignore", "results/.gitignore"}
    assert {"tests/problems.py", "tests/reliability/hostile.py", "benchmarks/run.py", "Makefile"} <= files(unpacked)


def test_the_tests_of_the_source_distribution_can_be_run_there(unpacked: Path) -> None:
    """All are found without an error, and those that read the files around the package pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    assert int(run([*command, "--collect-only"], cwd=unpacked).splitlines()[-1].split()[0]) > 1000
    run([*command, "tests/test_package.py", "tests/reliability/test_release.py"], cwd=unpacked)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"quadjoint/py.typed", "quadjoint/experiments/seconds.json", "quadjoint_command.py"} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"quadjoint", "quadjoint_command.py", f"quadjoint-{quadjoint.__version__}.dist-info"}
    package = ROOT / "src" / "quadjoint"
    assert {f"quadjoint/{p.relative_to(package).as_posix()}" for p in package.rglob("*.py")} <= set(names)


def test_bench_of_the_installed_wheel_runs_nothing_of_the_folder_it_is_in(python: Path, tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "run.py").write_text("print('run')")
    (tmp_path / "pyproject.toml").write_text("")
    command = [str(python.with_name("quadjoint")), "bench"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and "clone the repository and run make bench" in done.stderr
    assert run([*command[:1], "--version"], cwd=tmp_path).startswith(f"quadjoint {quadjoint.__version__} ")


def test_the_installed_wheel_works_without_the_extras(python: Path, tmp_path: Path) -> None:
    assert run([str(python), "-c", PROGRAM], cwd=tmp_path).strip() == "works"


def test_the_import_brings_in_nothing_but_the_standard_library_torch_and_numpy(python: Path, tmp_path: Path) -> None:
    """So it stays quick on every machine; how quick it is, the page on reliability tells."""
    program = "import quadjoint; print({name.split('.')[0] for name in set(sys.modules) - known})"
    lines = ("import sys, torch", "known = set(sys.modules)", program)
    brought = ast.literal_eval(run([str(python), "-c", "\n".join(lines)], cwd=tmp_path))
    assert brought - set(sys.stdlib_module_names) <= {"quadjoint", "torch", "numpy"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pip_installs_the_wheel_and_what_it_needs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Torch and numpy by the pinned versions, and nothing else of ours; the command says what it needs."""
    python = empty_environment(tmp_path / "environment")
    install(python, "-c", str(ROOT / "constraints.txt"), str(wheel))
    assert run([str(python), "-c", PROGRAM], cwd=tmp_path).strip() == "works"
    done = subprocess.run([str(python.with_name("quadjoint")), "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "The quadjoint command needs typer: pip install matplotlib psutil rich scipy typer"
