"""The image data sets: which files they consist of, where they lie, and how to load them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.files import sha256, write_whole
from quadjoint.experiments.readers import (
    Images,
    read_cifar_binary,
    read_cifar_pickle,
    read_mnist,
    read_svhn,
)

MNIST = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
SVHN = {"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)}
NAMES = ("mnist", "cifar10", "svhn")


SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Dataset:
    """Images as bytes, (N, C, H, W), and labels."""

    x: Tensor
    y: Tensor


def data_home(given: Path | None = None) -> Path:
    """Where data sets lie: as given, else $QUADJOINT_DATA, else the user's cache."""
    if given is not None:
        return given
    if home := os.environ.get("QUADJOINT_DATA"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quadjoint" / "data"


def missing(name: str, home: Path) -> str | None:
    """None if the files of a data set are there, else a sentence that says how to get them."""
    try:
        for part in ("train", "test"):
            _files(name, part, home / name)
    except FileNotFoundError as error:
        return f"{error}; get it with: quadjoint data fetch {name}"
    return None


def damaged(name: str, home: Path) -> str | None:
    """None if all files of a data set can be read, else a sentence about the first that cannot."""
    try:
        for part in ("train", "test"):
            load(name, part, home)
    except (Refusal, OSError) as error:
        return str(error)
    return None


def write_sums(folder: Path) -> None:
    """Note the sums of fetched files beside them, so that damage is noticed later."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".") and p.name != SUMS)
    write_whole(folder / SUMS, "".join(f"{sha256(p)}  {p.name}\n" for p in files).encode())


def _verify(files: list[Path]) -> None:
    """Refuse files that have changed since they were fetched; of files that somebody put there no sums are known."""
    sums = files[0].parent / SUMS
    if not sums.is_file():
        return
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for path in files:
        if path.name in known and sha256(path) != known[path.name]:
            raise Refusal(
                f"{path} is no longer the published file (its SHA-256 sum differs); remove it and fetch again"
            )


def load(name: str, part: str, home: Path, count: int | None = None) -> Dataset:
    """The ``train`` or ``test`` part of a data set, or its first ``count`` images."""
    if name not in NAMES:
        raise Refusal(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    if complaint := missing(name, home):
        raise Refusal(complaint)
    files = _files(name, part, home / name)
    _verify(files)
    if name == "mnist":
        x, y = read_mnist(files[0], files[1])
    else:
        read = read_svhn if name == "svhn" else _read_cifar
        parts = [read(file) for file in files]
        x, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    return Dataset(torch.tensor(x[:count]), torch.tensor(y[:count], dtype=torch.int64))


def _read_cifar(path: Path) -> Images:
    return read_cifar_binary(path) if path.suffix == ".bin" else read_cifar_pickle(path)


def _files(name: str, part: str, folder: Path) -> list[Path]:
    """The files of a part, in whichever of their forms they are there."""
    stems, endings = {
        "mnist": (MNIST[part], ("", ".gz")),
        "cifar10": (CIFAR[part], (".bin", "")),
        "svhn": (SVHN[part], ("",)),
    }[name]
    found = []
    for stem in stems:
        forms = [folder / f"{stem}{ending}" for ending in endings]
        path = next((form for form in forms if form.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"{forms[0]} is not there")
        found.append(path)
    return found
