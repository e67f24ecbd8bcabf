"""Results: one JSON line per finished run, appended so that no line is ever lost or half-written.

Each line carries a checksum of its content, by which a digit that was changed later is noticed. Lines without one,
which older versions wrote, are read as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: one writer at a time is then up to the user
    fcntl = None  # type: ignore[assignment]

SCHEMA = 1
RESULTS = "results.jsonl"
CHECKSUM = "checksum"
_REQUIRED = {"schema": int, "key": str, "experiment": str, "config": dict, "status": str, "result": dict}


class Busy(RuntimeError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file ``path``. The system lets go of it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise Busy(
                    f"another process is writing to {path.parent}; wait for it or choose another --out"
                ) from None
        yield
    finally:
        os.close(handle)


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record: under a lock, in one piece, on the disk before this returns.

    A cut-off last line (a writer that died within its write) is closed by a newline first, so that it cannot
    swallow ours; a write that fails half-way (a full disk) is taken back.
    """
    content = finite(record)
    line = json.dumps(content | {CHECKSUM: checksum(content)}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")), open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            with open(path, "rb") as tail:
                tail.seek(-1, os.SEEK_END)
                line = line if tail.read(1) == b"\n" else b"\n" + line
        try:
            written = 0
            while written < len(line):
                written += file.write(line[written:])
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


@dataclass(frozen=True)
class Results:
    """The readable records, the last of each key, and a sentence for every line that was skipped."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def keys(self) -> set[str]:
        return {record["key"] for record in self.records}

    def of(self, experiment: str) -> list[dict[str, Any]]:
        """The records of one experiment that ran to their end."""
        return [r for r in self.records if r["experiment"] == experiment and r["status"] == "done"]


def read(path: Path) -> Results:
    """All records of a results file; lines that are cut off or are not ours are skipped and reported."""
    if path.is_dir():
        path = path / RESULTS
    if not path.exists():
        return Results()
    records: dict[str, dict[str, Any]] = {}
    problems = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = _parsed(line)
        except _Unusable as reason:
            problems.append(f"{path.name} line {number}: {reason}; skipped")
        else:
            records[record["key"]] = record
    return Results(list(records.values()), problems)


def checksum(record: Mapping[str, Any]) -> str:
    """The first 16 digits of the SHA-256 sum of a record in its canonical form (names in order, no spaces).

    >>> checksum({"b": 1.5, "a": [None, "x"]}) == checksum({"a": [None, "x"], "b": 1.5})
    True
    """
    text = json.dumps(record, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Unusable(ValueError):
    """A line is no record of a run; the message says why."""


def _parsed(line: bytes) -> dict[str, Any]:
    """The record in a line. NaN and infinities, which are no JSON but which Python writes, become None."""
    try:
        record = json.loads(line.decode(), parse_int=_integer, parse_float=_number, parse_constant=lambda name: None)
    except OverflowError:
        raise _Unusable("holds a number that is too large") from None
    except (ValueError, RecursionError):
        raise _Unusable("not JSON (cut off?)") from None
    if complaint := _complaint(record):
        raise _Unusable(complaint)
    if b"\\ud" in line.lower():
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _Unusable("holds half of a character (a lone surrogate)") from None
    claimed = record.pop(CHECKSUM, None)
    if claimed is not None and claimed != checksum(record):
        raise _Unusable("its checksum differs: it was changed after it was written")
    return dict(record)


def _integer(text: str) -> int:
    if len(text) > 300:
        raise OverflowError
    return int(text)


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _complaint(record: Any) -> str | None:
    if not isinstance(record, dict):
        return "not a record of a run"
    for name, kind in _REQUIRED.items():
        if not _is(record.get(name), kind):
            return f"not a record of a run ({name!r} is missing or not {kind.__name__})"
    if record["schema"] != SCHEMA:
        return f"written in format {record['schema']}, this version reads {SCHEMA}"
    for name, kind in (("method", str), ("width", int), ("seed", int)):
        if not _is(record["config"].get(name), kind):
            return f"not a record of a run (config {name!r} is missing or not {kind.__name__})"
    return None


def _is(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; to JSON, true is no number."""
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def finite(value: Any) -> Any:
    """The value with every NaN and infinity replaced by None, which JSON can say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
