"""Readers of the image files: idx (MNIST), CIFAR-10 in binary or pickled batches, SVHN's .mat.

Each returns images (N, C, H, W) and labels (N,) as uint8 arrays, and refuses what is cut off or is something
else in a sentence that names the file.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import pickle
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from quadjoint.experiments.faults import Refusal

Images = tuple[np.ndarray, np.ndarray]
CIFAR_ROW = 1 + 3 * 32 * 32  # a label and three planes

# Bytes of the largest published file of each kind, unzipped: nothing is read beyond them.
LARGEST_IDX = 60_000 * 28 * 28
LARGEST_BATCH = 10_000 * CIFAR_ROW
LARGEST_PICKLE = 32_000_000
LARGEST_MAT = 73_257 * 3 * 32 * 32 + 1_000_000

# The pickled batches of CIFAR-10 as its authors publish them. A pickle can run code, so no other is opened.
CIFAR_PICKLES = {
    "c99cafc152244af753f735de768cd75f": "data_batch_1",
    "d4bba439e000b95fd0a9bffe97cbabec": "data_batch_2",
    "54ebc095f3ab1f0389bbae665268c751": "data_batch_3",
    "634d18415352ddfa80567beed471001a": "data_batch_4",
    "482c414d41f54cd18b22e5b47cb7c3cb": "data_batch_5",
    "40351d587109b95175f43aff81a1287e": "test_batch",
}


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file of unsigned bytes, plain or gzipped; read no further than its header announces."""
    with open(path, "rb") as raw, gzip.GzipFile(fileobj=raw) as unzipped:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            return _read_idx(cast(BinaryIO, unzipped) if zipped else raw, path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise Refusal(f"{path} is a damaged or cut-off gzip file ({error})") from None


def _read_idx(stream: BinaryIO, path: Path) -> np.ndarray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise Refusal(f"{path} is not an idx file of bytes (it begins with {magic.hex() or 'nothing'})")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise Refusal(f"{path} is cut off in its header")
    shape = [int(side) for side in np.frombuffer(header, ">u4")]
    size = math.prod(shape)
    if size > LARGEST_IDX:
        raise Refusal(f"{path} announces {size} bytes; the largest file of MNIST has {LARGEST_IDX}")
    content = stream.read(size + 1)
    if len(content) < size:
        raise Refusal(f"{path} is cut off: {len(content)} bytes where its header announces {size}")
    if len(content) > size:
        raise Refusal(f"{path} is too long: its header announces {size} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_mnist(images: Path, labels: Path) -> Images:
    """Images and labels from a pair of idx files."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1:
        raise Refusal(f"{images} and {labels} do not hold images and labels (dimensions {x.ndim} and {y.ndim})")
    if x.shape[1:] != (28, 28):
        raise Refusal(f"{images} holds images of {x.shape[1]} by {x.shape[2]}; those of MNIST are 28 by 28")
    if len(x) != len(y):
        raise Refusal(f"{images} has {len(x)} images, {labels} has {len(y)} labels")
    return x[:, None], _labels(y, labels)


def read_cifar_binary(path: Path) -> Images:
    """One binary batch: rows of a label and 3072 bytes, red, green and blue planes."""
    _refuse_larger(path, LARGEST_BATCH)
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % CIFAR_ROW:
        raise Refusal(f"{path} is cut off or no CIFAR-10 batch: {len(data)} bytes is no multiple of {CIFAR_ROW}")
    rows = data.reshape(-1, CIFAR_ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32), _labels(rows[:, 0], path)


def read_cifar_pickle(path: Path, known: dict[str, str] | None = None) -> Images:
    """One pickled batch, opened only if its MD5 sum is that of a published one, and then only as plain arrays."""
    _refuse_larger(path, LARGEST_PICKLE)
    data = path.read_bytes()
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if digest not in (CIFAR_PICKLES if known is None else known):
        raise Refusal(f"{path} is not a published CIFAR-10 batch (MD5 {digest}); a pickle from elsewhere is not opened")
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        x, y = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[b"labels"], np.uint8)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{path} does not hold images and labels ({error})") from None
    if x.shape != (len(y), 3072):
        raise Refusal(f"{path} holds {len(y)} labels but images of shape {x.shape}")
    return x.reshape(-1, 3, 32, 32), _labels(y, path)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles lists, dictionaries, numbers and arrays; anything else is an error."""

    _ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_svhn(path: Path) -> Images:
    """Cropped digits: X is (32, 32, 3, N), and the digit 0 has the label 10."""
    from scipy.io import loadmat

    _refuse_inflated(path)
    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except FileNotFoundError:
        raise
    except Exception as error:  # SciPy raises many kinds for damaged files
        raise Refusal(f"{path} is cut off or no SVHN file ({type(error).__name__}: {error})") from None
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or y.size != x.shape[3]:
        raise Refusal(f"{path} does not hold SVHN digits (X has shape {x.shape} of {x.dtype}, y has {y.size})")
    if y.dtype.kind not in "uif" or not np.isin(y, range(11)).all():
        raise Refusal(f"{path} has labels that are no digits")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), _labels(y.reshape(-1) % 10, path)


def _refuse_larger(path: Path, most: int) -> None:
    if path.stat().st_size > most:
        raise Refusal(f"{path} has {path.stat().st_size} bytes; the largest published file of its kind has {most}")


def _refuse_inflated(path: Path) -> None:
    """Refuse a .mat file that unzips to more than SVHN's; one that is damaged is left to SciPy's complaints."""
    _refuse_larger(path, LARGEST_MAT)
    size = 0
    with contextlib.suppress(zlib.error):
        for piece in _inflated(path):
            size += len(piece)
            if size > LARGEST_MAT:
                raise Refusal(f"{path} holds more than {LARGEST_MAT} bytes when unzipped, which SVHN's files do not")


def _inflated(path: Path) -> Iterator[bytes]:
    """The compressed elements of a .mat file (a header, then kind, length and content of each), unzipped in pieces."""
    with open(path, "rb") as file:
        order = ">" if file.read(128)[126:] == b"MI" else "<"
        while len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}2I", tag)
            end, inflate = file.tell() + length, zlib.decompressobj()
            while kind == 15 and not inflate.eof:
                piece = inflate.unconsumed_tail or file.read(min(1 << 16, end - file.tell()))
                if not piece:
                    break
                yield inflate.decompress(piece, 1 << 16)
            file.seek(end)


def _labels(y: np.ndarray, path: Path) -> np.ndarray:
    if len(y) == 0:
        raise Refusal(f"{path} holds no labels")
    if y.max() > 9:
        raise Refusal(f"{path} has a label {int(y.max())}; there are ten classes, 0 to 9")
    return y.astype(np.uint8)
