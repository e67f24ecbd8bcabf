"""Result files with anything in them: what ``quadjoint plot`` and ``quadjoint report`` make of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quadjoint.experiments import store
from reliability.files import JOB, SOUND, TOY, Record, record_of, said


def commands(folder: Path, content: bytes) -> str:
    """What plot and report say about a results file."""
    (folder / store.RESULTS).write_bytes(content)
    return f"{said('plot', '--out', str(folder))} {said('report', '--out', str(folder))}".replace(f"{folder}/", "")


def lines(*records: Record) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def cut_off(folder: Path) -> str:
    whole = lines(record_of(SOUND))
    words = commands(folder, whole + whole[:200])
    assert (folder / "figures" / "memory.svg").is_file() and (folder / "report.html").is_file()
    return words


def beside_a_sound_one(content: bytes) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        words = commands(folder, lines(record_of(SOUND)) + content)
        assert (folder / "figures" / "memory.svg").is_file() and (folder / "report.html").is_file()
        return words

    return run


def marked_up(value: Any) -> Any:
    """The value with markup in every string and in a twin of every key."""
    if isinstance(value, str):
        return f"<script>alert(1)</script>&\"'{value}"
    if isinstance(value, list):
        return [marked_up(item) for item in value]
    if isinstance(value, dict):
        twins = {f"<img onerror=x>{name}": item for name, item in value.items()}
        return {name: marked_up(item) for name, item in {**twins, **value}.items()}
    return value


def escaped(folder: Path) -> str:
    base = marked_up(record_of(JOB))
    records = [
        base | {"experiment": "crossing", "status": status, "key": f"<script>{status}"} for status in ("done", "failed")
    ]
    records[1]["result"] = {"reason": "<script>alert(2)</script>"}
    commands(folder, lines(*records, base))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<img onerror" not in page
    return f"{page.count('&lt;script&gt;')} strings with markup, none of them a tag in the page"


def brackets(folder: Path) -> str:
    """A method whose name is a closing tag to the terminal's markup."""
    record = record_of(TOY)
    return beside_a_sound_one(lines(record | {"config": record["config"] | {"method": "[/b]"}}))(folder)


def of_tomorrow(folder: Path) -> str:
    return beside_a_sound_one(lines(record_of(TOY) | {"schema": store.SCHEMA + 1}))(folder)


def huge(folder: Path) -> str:
    record = record_of(SOUND)
    result = record["result"] | {"peak_memory": [10**400]}
    return beside_a_sound_one(lines(record | {"key": "odd", "result": result}))(folder)


def numbers_that_are_none(folder: Path) -> str:
    """Every number of a curve, in turn; the rest of the record is drawn."""
    record = record_of(JOB)
    curves = record["result"]["curves"]
    odd = [float("nan"), float("inf"), -float("inf"), 0.0]
    records = [
        record
        | {"key": f"{i}", "result": record["result"] | {"curves": {n: [number, *c[1:]] for n, c in curves.items()}}}
        for i, number in enumerate(odd)
    ]
    words = beside_a_sound_one(lines(*records))(folder)
    assert (folder / "figures" / "crossing.svg").is_file()
    return words if "left out" in words else f"no figure left out: {words}"


def half_a_character(folder: Path) -> str:
    return beside_a_sound_one(lines(record_of(TOY) | {"status": "\ud800"}))(folder)


def changed_digit(folder: Path) -> str:
    store.append(folder / "one", record_of(TOY) | {"seconds": 12.5})
    return beside_a_sound_one((folder / "one").read_bytes().replace(b"12.5", b"22.5"))(folder)


def many_sizes(folder: Path) -> str:
    record = record_of(SOUND)
    many = [record | {"key": f"{size}", "config": record["config"] | {"width": size}} for size in range(1, 301)]
    beside_a_sound_one(lines(*many))(folder)
    (words,) = re.findall(r"4 of 30[01] sizes", (folder / "figures" / "memory.svg").read_text())
    return f"{words} drawn"


def a_folder_as_results(folder: Path) -> str:
    (folder / store.RESULTS).mkdir()
    return said("report", "--out", str(folder))
