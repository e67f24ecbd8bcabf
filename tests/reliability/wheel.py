"""Build the source distribution and, from it, the wheel; install that into an empty virtual environment."""

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

# What the work of a developer leaves in a checkout, and what no distribution is made from.
LEFTOVERS = (
    *("__pycache__", "*.egg-info", "*.lock", ".git", ".[!g]*"),
    *("build", "dist", "site", "data", "runs", "outputs"),
)

# Seconds of the processor that the import takes after torch's: other programs on the machine do not count.
IMPORT = """
import time
import torch
wall, cpu = time.perf_counter(), time.process_time()
import quadjoint
print(time.process_time() - cpu, time.perf_counter() - wall)
"""


def copy(folder: Path) -> Path:
    """This checkout without leftovers, as a copy that git has nothing to do with."""
    return Path(shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*LEFTOVERS)))


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution of this checkout and the wheel made from it, by ``python -m build``."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy(folder))])
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def run(command: list[str], cwd: Path | None = None, **environment: str) -> str:
    """The output of a command in a clean environment; its complaints if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
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


def import_seconds(python: Path, **environment: str) -> tuple[float, float]:
    """Processor and wall-clock seconds of ``import quadjoint`` after ``import torch``, the best of three."""
    lines = [run([str(python), "-c", IMPORT], **environment).split() for _ in range(3)]
    return min(float(cpu) for cpu, _ in lines), min(float(wall) for _, wall in lines)
