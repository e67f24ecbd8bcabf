"""Readers of the image files: idx (MNIST), CIFAR-10 in binary or pickled batches, SVHN's .mat.

Each returns images (N, C, H, W) and labels (N,) as uint8 arrays, and refuses what is cut off or is something
else in a sentence that names the file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from quadjoint.experiments.faults import Refusal

Images = tuple[np.ndarray, np.ndarray]
CIFAR_ROW = 1 + 3 * 32 * 32  # a label and three planes

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
    """The array in an idx file of unsigned bytes, plain or gzipped."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise Refusal(f"{path} is a damaged or cut-off gzip file ({error})") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 4:
        raise Refusal(f"{path} is not an idx file of bytes (it begins with {data[:4].hex() or 'nothing'})")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise Refusal(f"{path} is cut off in its header")
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4).astype(np.int64)
    wanted = start + int(np.prod(shape, dtype=object))
    if len(data) != wanted:
        what = "cut off" if len(data) < wanted else "too long"
        raise Refusal(f"{path} is {what}: {len(data)} bytes where its header announces {wanted}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_mnist(images: Path, labels: Path) -> Images:
    """Images and labels from a pair of idx files."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1:
        raise Refusal(f"{images} and {labels} do not hold images and labels (dimensions {x.ndim} and {y.ndim})")
    if len(x) != len(y):
        raise Refusal(f"{images} has {len(x)} images, {labels} has {len(y)} labels")
    return x[:, None], _labels(y, labels)


def read_cifar_binary(path: Path) -> Images:
    """One binary batch: rows of a label and 3072 bytes, red, green and blue planes."""
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % CIFAR_ROW:
        raise Refusal(f"{path} is cut off or no CIFAR-10 batch: {len(data)} bytes is no multiple of {CIFAR_ROW}")
    rows = data.reshape(-1, CIFAR_ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32), _labels(rows[:, 0], path)


def read_cifar_pickle(path: Path, known: dict[str, str] | None = None) -> Images:
    """One pickled batch, opened only if its MD5 sum is that of a published one, and then only as plain arrays."""
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

    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except FileNotFoundError:
        raise
    except Exception as error:  # SciPy raises many kinds for damaged files
        raise Refusal(f"{path} is cut off or no SVHN file ({type(error).__name__}: {error})") from None
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or y.size != x.shape[3]:
        raise Refusal(f"{path} does not hold SVHN digits (X has shape {x.shape} of {x.dtype}, y has {y.size})")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), _labels(y.reshape(-1) % 10, path)


def _labels(y: np.ndarray, path: Path) -> np.ndarray:
    if len(y) == 0:
        raise Refusal(f"{path} holds no labels")
    if y.max() > 9:
        raise Refusal(f"{path} has a label {int(y.max())}; there are ten classes, 0 to 9")
    return y.astype(np.uint8)
