"""Run the examples in full, and keep for the page on them what they draw and what they print.

    python docs/run_examples.py [NAME ...]

Each runs in a folder of its own with one thread; its picture and its words go to ``docs/assets/examples``, the words
onto the page as well. A test reads the numbers of the page in these words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import generated

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs" / "assets" / "examples"
SEVERAL = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def run(script: Path) -> None:
    command = SEVERAL if script.stem == "data_parallel" else [sys.executable]
    alone = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, str(script)], cwd=folder, env=os.environ | alone, stdout=subprocess.PIPE, text=True, check=True
        )
        shutil.copy(Path(folder, "outputs", f"{script.stem}.png"), KEPT)
    (KEPT / f"{script.stem}.txt").write_text(done.stdout, encoding="utf-8")


def main() -> None:
    scripts = {script.stem: script for script in sorted((ROOT / "examples").glob("*.py"))}
    for name in sys.argv[1:] or scripts:
        print(name, flush=True)
        run(scripts[name])
    generated.main()


if __name__ == "__main__":
    main()
