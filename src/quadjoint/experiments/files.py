"""Files that appear whole or not at all, and sums that tell whether a file is what it was."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write beside the old file, then take its place: a reader sees the old one or the new one, whole.

    ``content`` is the bytes or a function that writes them. Where writing fails, nothing is left behind and the error
    is the operating system's, which names the file, also if the function has wrapped it (as ``torch.save`` does).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(fresh, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if isinstance(error, Exception) and isinstance(cause, OSError) and cause.errno is not None:
            raise OSError(cause.errno, os.strerror(cause.errno), str(path)) from error
        raise


def sha256(path: Path) -> str:
    """The SHA-256 sum of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
