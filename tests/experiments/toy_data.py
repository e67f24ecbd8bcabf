"""An invented data set of two files, plain, gzipped or in an archive."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from rich.console import Console

from quadjoint.experiments import data
from quadjoint.experiments.sources import Published

FILES = {"one": b"first file", "two": b"second file"}
QUIET = Console(quiet=True)
MEBIBYTE = 2**20


def published(content: bytes) -> Published:
    return Published(hashlib.sha256(content).hexdigest(), len(content))


KNOWN = {name: published(content) for name, content in FILES.items()}


def tarball(members: list[tuple[str, bytes | None]]) -> bytes:
    """A gzipped archive; a member without content is a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != data.SUMS}
