"""Readers of image files: what is written is read, and what is cut off or foreign is refused in words."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.io import savemat

from quadjoint.experiments import data, readers
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.readers import read_cifar_binary, read_cifar_pickle, read_idx, read_mnist, read_svhn

RANDOM = np.random.default_rng(0)


@given(arrays(np.uint8, array_shapes(max_dims=4, max_side=4)), st.booleans())
def test_idx_round_trip(write_idx, tmp_path_factory, array, zipped):
    path = write_idx(tmp_path_factory.mktemp("idx") / "x", array, zipped=zipped)
    assert np.array_equal(read_idx(path), array)


@pytest.mark.parametrize("cut", [0, 1, 3, 7, 15, 40])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_cut_off_idx_file_is_refused(write_idx, tmp_path, cut, zipped):
    path = write_idx(tmp_path / "x", RANDOM.integers(0, 256, (3, 4, 4)), zipped=zipped)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(Refusal, match=r"x is (cut off|not an idx|a damaged)"):
        read_idx(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04 a zip file", "not an idx file"),
        (b"\x00\x00\x0d\x01" + struct.pack(">I", 1) + b"\x00" * 4, "not an idx file"),  # floats
        (b"\x00\x00\x08\x01" + struct.pack(">I", 2) + b"\x00" * 3, "too long"),
        (b"\x00\x00\x08\x03" + struct.pack(">III", 2**32 - 1, 2**32 - 1, 2**32 - 1), "largest file of MNIST"),
        (b"\x00\x00\x08\x01" + struct.pack(">I", 9), "cut off: 0 bytes where its header announces 9"),
    ],
)
def test_a_wrong_idx_file_is_refused(tmp_path, content, words):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(Refusal, match=words):
        read_idx(tmp_path / "x")


def test_mnist_pairs_must_fit(write_idx, tmp_path):
    images = write_idx(tmp_path / "images", RANDOM.integers(0, 256, (3, 28, 28)))
    labels = write_idx(tmp_path / "labels", np.array([1, 2, 9]))
    x, y = read_mnist(images, labels)
    assert x.shape == (3, 1, 28, 28) and y.tolist() == [1, 2, 9]
    with pytest.raises(Refusal, match=r"3 images, .* 2 labels"):
        read_mnist(images, write_idx(tmp_path / "two", np.array([1, 2])))
    with pytest.raises(Refusal, match="label 10"):
        read_mnist(images, write_idx(tmp_path / "ten", np.array([1, 2, 10])))
    with pytest.raises(Refusal, match="do not hold images and labels"):
        read_mnist(labels, images)
    with pytest.raises(Refusal, match="holds images of 5 by 7; those of MNIST are 28 by 28"):
        read_mnist(write_idx(tmp_path / "small", np.zeros((3, 5, 7))), labels)
    with pytest.raises(Refusal, match="holds no labels"):
        read_mnist(write_idx(tmp_path / "none", np.zeros((0, 28, 28))), write_idx(tmp_path / "no", np.zeros(0)))


def test_cifar_binary(tmp_path):
    x, y = RANDOM.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), np.array([3, 0, 9, 1], np.uint8)
    rows = np.concatenate([y[:, None], x.reshape(4, -1)], axis=1)
    path = tmp_path / "batch.bin"
    path.write_bytes(rows.tobytes())
    read_x, read_y = read_cifar_binary(path)
    assert np.array_equal(read_x, x) and np.array_equal(read_y, y)
    for wrong in (rows.tobytes()[:-1], b""):
        path.write_bytes(wrong)
        with pytest.raises(Refusal, match="cut off or no CIFAR-10 batch"):
            read_cifar_binary(path)


def write_pickle(path, value, protocol=2):
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return {hashlib.md5(path.read_bytes()).hexdigest(): path.name}


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_pickle_with_a_known_sum(tmp_path, protocol):
    x = RANDOM.integers(0, 256, (2, 3072), dtype=np.uint8)
    known = write_pickle(tmp_path / "b", {b"data": x, b"labels": [7, 0]}, protocol)
    read_x, read_y = read_cifar_pickle(tmp_path / "b", known)
    assert np.array_equal(read_x.reshape(2, -1), x) and read_y.tolist() == [7, 0]


def test_a_pickle_with_another_sum_is_never_opened(tmp_path):
    write_pickle(tmp_path / "b", Runs(tmp_path / "ran"))
    with pytest.raises(Refusal, match="not a published CIFAR-10 batch"):
        read_cifar_pickle(tmp_path / "b")
    assert not (tmp_path / "ran").exists()


def test_even_a_known_pickle_can_only_hold_arrays(tmp_path):
    known = write_pickle(tmp_path / "b", Runs(tmp_path / "ran"))
    with pytest.raises(Refusal, match=r"asks for .*open"):
        read_cifar_pickle(tmp_path / "b", known)
    assert not (tmp_path / "ran").exists()
    known = write_pickle(tmp_path / "b", {b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]})
    with pytest.raises(Refusal, match=r"images of shape \(2, 5\)"):
        read_cifar_pickle(tmp_path / "b", known)


class Runs:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_svhn(tmp_path):
    x = RANDOM.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": x, "y": np.array([[10], [1], [2], [9], [10]], np.uint8)})
    read_x, read_y = read_svhn(path)
    assert read_x.shape == (5, 3, 32, 32) and read_y.tolist() == [0, 1, 2, 9, 0]
    assert np.array_equal(read_x[4, 2], x[:, :, 2, 4])


@pytest.mark.parametrize("labels", [[np.nan, 1], [-1.0, 1], [0.5, 1], [11, 1], ["a", "b"], [1j, 1]])
def test_labels_that_are_no_digits_are_refused(tmp_path, labels):
    savemat(tmp_path / "x.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array(labels)})
    with pytest.raises(Refusal, match=r"labels that are no digits|does not hold SVHN digits"):
        read_svhn(tmp_path / "x.mat")


@given(place=st.integers(0, 2**16), byte=st.integers(0, 255), kind=st.sampled_from(["idx", "zipped", "mat"]))
def test_one_changed_byte_is_read_or_refused_in_words(write_idx, tmp_path_factory, place, byte, kind):
    """Headers among them: whatever one announces, no other error comes of it."""
    path = tmp_path_factory.mktemp("odd") / "x"
    if kind == "mat":
        digits = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
        savemat(path, digits, do_compression=True, appendmat=False)
    else:
        write_idx(path, np.zeros((2, 28, 28)), zipped=kind == "zipped")
    content = bytearray(path.read_bytes())
    content[place % min(len(content), 300)] = byte
    path.write_bytes(content)
    with contextlib.suppress(Refusal):
        read_svhn(path) if kind == "mat" else read_idx(path)


def test_damaged_sums_do_not_stop_the_reading(write_idx, tmp_path):
    (tmp_path / "mnist").mkdir()
    for images, labels in data.MNIST.values():
        write_idx(tmp_path / "mnist" / images, np.zeros((2, 28, 28)))
        write_idx(tmp_path / "mnist" / labels, np.arange(2))
    (tmp_path / "mnist" / data.SUMS).write_bytes(bytes(range(256)))
    assert data.damaged("mnist", tmp_path) is None
    (tmp_path / "mnist" / data.MNIST["test"][1]).write_bytes(b"")
    assert "is not an idx file" in data.damaged("mnist", tmp_path)


def test_a_wrong_or_cut_off_mat_file_is_refused(tmp_path):
    path = tmp_path / "x.mat"
    savemat(path, {"X": np.zeros((3, 3), np.uint8), "y": np.zeros(3)})
    with pytest.raises(Refusal, match="does not hold SVHN digits"):
        read_svhn(path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones(2)}, do_compression=True)
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(Refusal, match="cut off or no SVHN file"):
        read_svhn(path)
    path.write_bytes(b"")
    with pytest.raises(Refusal, match="cut off or no SVHN file"):
        read_svhn(path)


@contextlib.contextmanager
def little_memory(most: int) -> Iterator[None]:
    """What is done within this never holds more than ``most`` bytes of Python objects and arrays."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_a_zipped_idx_file_is_read_no_further_than_its_header_announces(tmp_path):
    (tmp_path / "x").write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 10) + bytes(2**26), compresslevel=1))
    with little_memory(2**20), pytest.raises(Refusal, match="too long: its header announces 10 bytes"):
        read_idx(tmp_path / "x")


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_mat_file_that_unzips_to_more_than_svhn_is_not_opened(tmp_path, monkeypatch, order):
    """One compressed element of 64 MiB of zeros, in either order of bytes."""
    monkeypatch.setattr(readers, "LARGEST_MAT", 2**20)
    bomb = zlib.compress(bytes(2**26), 1)
    header = bytes(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    (tmp_path / "x").write_bytes(header + struct.pack(f"{order}2I", 15, len(bomb)) + bomb)
    with little_memory(2**20), pytest.raises(Refusal, match="holds more than 1048576 bytes when unzipped"):
        read_svhn(tmp_path / "x")


@pytest.mark.parametrize(
    ("read", "limit"),
    [(read_cifar_binary, "LARGEST_BATCH"), (read_cifar_pickle, "LARGEST_PICKLE"), (read_svhn, "LARGEST_MAT")],
)
def test_a_file_larger_than_any_published_one_is_not_read(tmp_path, monkeypatch, read, limit):
    monkeypatch.setattr(readers, limit, 1000)
    (tmp_path / "x").write_bytes(bytes(2**26))
    with little_memory(2**20), pytest.raises(Refusal, match=r"has 67108864 bytes; the largest published .* has 1000"):
        read(tmp_path / "x")


def test_loading_takes_plain_and_gzipped_files_and_the_first_images(write_idx, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    x = RANDOM.integers(0, 256, (5, 28, 28))
    for part, zipped in (("train", True), ("t10k", False)):
        ending = ".gz" if zipped else ""
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", x, zipped=zipped)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", np.arange(5), zipped=zipped)
    assert data.missing("mnist", tmp_path) is None
    for part in ("train", "test"):
        loaded = data.load("mnist", part, tmp_path, 3)
        assert np.array_equal(loaded.x.numpy(), x[:3, None]) and loaded.y.tolist() == [0, 1, 2]
    assert gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes())[-5:] == bytes(range(5))


def test_missing_data_say_how_to_get_them(tmp_path):
    assert "quadjoint data fetch svhn" in data.missing("svhn", tmp_path)
    with pytest.raises(Refusal, match="quadjoint data fetch cifar10"):
        data.load("cifar10", "train", tmp_path)
    with pytest.raises(Refusal, match="no data set 'imagenet'"):
        data.load("imagenet", "train", tmp_path)


def test_the_data_home_is_the_one_given_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUADJOINT_DATA", "/somewhere")
    assert data.data_home(tmp_path) == tmp_path
    assert str(data.data_home()) == "/somewhere"
    monkeypatch.delenv("QUADJOINT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.data_home() == tmp_path / "quadjoint" / "data"
