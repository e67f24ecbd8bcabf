"""Makes the notebooks from the scripts beside them: runs every cell and keeps what it shows.

    pip install nbclient ipykernel
    python examples/notebooks/make.py

A cell begins at a line ``# %% Title``. The tests check that notebooks and scripts agree.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NAMES = ("hare_lynx", "hamiltonian")


def notebook(script: str) -> nbformat.NotebookNode:
    """The docstring as the first cell, then a heading and a code cell for every part."""
    _, docstring, body = script.split('"""', 2)
    title, *rest = docstring.strip().splitlines()
    prose = [line for line in rest if "python examples/" not in line]
    cells = [nbformat.v4.new_markdown_cell(f"# {title.rstrip('.')}\n" + "\n".join(prose).rstrip())]
    for heading, code in re.findall(r"^# %% ([^\n]*)\n(.*?)(?=^# %%|\Z)", body, re.MULTILINE | re.DOTALL):
        cells.append(nbformat.v4.new_markdown_cell(f"## {heading}"))
        cells.append(nbformat.v4.new_code_cell(code.strip()))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def main() -> None:
    for name in NAMES:
        made = notebook((HERE.parent / f"{name}.py").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as scratch:
            NotebookClient(made, timeout=1200, resources={"metadata": {"path": scratch}}).execute()
        for cell in made.cells:
            cell.metadata.pop("execution", None)  # when it ran is of no interest
        made.metadata["language_info"] = {"name": "python"}
        nbformat.write(made, HERE / f"{name}.ipynb")
        print(HERE / f"{name}.ipynb")


if __name__ == "__main__":
    main()
