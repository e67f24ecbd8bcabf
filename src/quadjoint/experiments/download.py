"""Streams from the network that end, whatever the other side sends."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from quadjoint.experiments.faults import Refusal, one_line

CHUNK = 1 << 16


class Readable(Protocol):
    """What is read piece by piece; an empty piece is the end."""

    def read(self, size: int = ..., /) -> bytes: ...


class Unreachable(Exception):
    """An address does not answer, or breaks off; another one may do better."""


@dataclass
class _Answer:
    """What an address sends, up to ``most`` bytes."""

    stream: Readable
    address: str
    most: int
    announced: int | None
    tell: Callable[[int], object]
    taken: int = 0

    def read(self, size: int = CHUNK, /) -> bytes:
        try:
            chunk = self.stream.read(min(size, CHUNK) if size >= 0 else CHUNK)
        except (OSError, HTTPException, ValueError) as error:
            raise _unreachable(self.address, error) from None
        self.taken += len(chunk)
        self.tell(len(chunk))
        if self.taken > self.most:
            raise Refusal(f"{self.address} sends more than {self.most} bytes, which is not the published file")
        if not chunk and size and self.announced is not None and self.taken < self.announced:
            raise Unreachable(f"{self.address} broke off after {self.taken} of {self.announced} bytes")
        return chunk


@contextlib.contextmanager
def opened(address: str, most: int, console: Console) -> Iterator[Readable]:
    """A stream from an address with a progress bar; it is refused at the first byte beyond ``most``."""
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    request = urllib.request.Request(address, headers={"User-Agent": "quadjoint"})
    try:
        answer = urllib.request.urlopen(request, timeout=20)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise _unreachable(address, error) from None
    with answer, Progress(*columns, console=console) as progress:
        announced = _announced(answer.headers.get("Content-Length"))
        task = progress.add_task(address.rsplit("/", 1)[1], total=announced)
        yield _Answer(answer, address, most, announced, lambda count: progress.advance(task, count))


def _announced(header: str | None) -> int | None:
    """The length that a header announces; an odd header announces nothing."""
    return int(header) if header is not None and header.isascii() and header.isdigit() and len(header) < 20 else None


def _unreachable(address: str, error: Exception) -> Unreachable:
    reason = getattr(error, "reason", None) if isinstance(error, urllib.error.URLError) else None
    words = f"HTTP {error.code} {reason}" if isinstance(error, urllib.error.HTTPError) else reason or str(error)
    return Unreachable(f"{address}: {one_line(words) or type(error).__name__}")
