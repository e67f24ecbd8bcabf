"""Where the smaller benchmarks write: records and tables into a folder, and a table onto a page of the docs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from benchmarks.report import machine_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Record = dict[str, Any]


def write(name: str, records: Iterable[Record], text: str, folder: Path) -> None:
    """The records as ``name.jsonl`` and their table as ``name.md``, both with a line about the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    here = machine()
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (here, *records)), encoding="utf-8")
    (folder / f"{name}.md").write_text(f"{text.strip()}\n\n{machine_text([here])}\n", encoding="utf-8")


def load(name: str, folder: Path = RESULTS) -> list[Record]:
    """The records of a run before, without that of the machine; none if there was no run."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [r for r in map(json.loads, lines) if r.get("kind") != "machine"]


def between_marks(name: str, text: str) -> str:
    """A table as it stands on a page, where the next run will find it."""
    return f"<!-- {name} -->\n{text.strip()}\n<!-- /{name} -->"


def show(name: str, text: str, page: Path) -> None:
    """Put a table in the place of the one before."""
    old = page.read_text(encoding="utf-8")
    before, rest = old.split(f"<!-- {name} -->")
    after = rest.split(f"<!-- /{name} -->")[1]
    page.write_text(f"{before}{between_marks(name, text)}{after}", encoding="utf-8")


def parser(description: str | None) -> argparse.ArgumentParser:
    """For the command line of a benchmark, with the folder for its results."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    return out


def publish(name: str, records: list[Record], text: str, folder: Path, page: Path, excerpt: str | None = None) -> None:
    """Write the results, and if they are to be committed, show the table, or an excerpt of it, on its page."""
    print(text)
    write(name, records, text, folder)
    if folder == RESULTS:
        show(name, excerpt or text, page)
