"""Build the wheel, and install it into an empty virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
EXTRAS = ("scipy", "matplotlib", "typer", "rich", "torchsde", "torchdiffeq", "psutil", "ray", "tqdm")

# Seconds of the processor that the import takes after torch's: other programs on the machine do not count.
IMPORT = """
import time
import torch
wall, cpu = time.perf_counter(), time.process_time()
import quadjoint
print(time.process_time() - cpu, time.perf_counter() - wall)
"""


def build(folder: Path) -> Path:
    """The wheel of this checkout, by ``python -m build`` from a copy that git has nothing to do with."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src" / "quadjoint", source / "src" / "quadjoint",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    run(command)
    return next(folder.glob("*.whl"))


def run(command: list[str], cwd: Path | None = None, **environment: str) -> str:
    """The output of a command in a clean environment; its complaints if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd,
                          env={**kept, "OMP_NUM_THREADS": "1", **environment})  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def empty_environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment that holds nothing, not even pip."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(python: Path, *what: str) -> None:
    """Install by this environment's pip into another environment."""
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *what])


def lend_torch(python: Path) -> None:
    """Let an environment see the packages here, behind its own; nothing is installed."""
    where = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(where) / "lent.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")


def import_seconds(python: Path, repeats: int = 3, **environment: str) -> tuple[float, float]:
    """Processor and wall-clock seconds of ``import quadjoint`` after ``import torch``, the best of several."""
    lines = [run([str(python), "-c", IMPORT], **environment).split() for _ in range(repeats)]
    return min(float(cpu) for cpu, _ in lines), min(float(wall) for _, wall in lines)
