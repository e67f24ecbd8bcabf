"""Tiny versions of every experiment, run once for all tests here."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.toy_data import KNOWN, QUIET
from quadjoint.experiments import clock, crossing, images, integration, memory, nested_spheres, ou, sines, toy_gradient
from quadjoint.experiments.execute import Job, execute
from quadjoint.experiments.fetch import fetch_dataset
from quadjoint.experiments.sources import SOURCES, Source
from quadjoint.experiments.training import Context

TINY = {
    "toy-gradient": [toy_gradient.Config(first=1.0, last=2.0, points=3)],
    "integration": [integration.Config(width=4, batch=3, dim=2, draws=4)],
    "memory": [memory.Config(width=1000, tightest=1e-5)],
    "nested-spheres": [nested_spheres.Config(width=4, epochs=2, points=40, batch=20, test_points=10)],
    "sines": [
        sines.Config(width=4, epochs=2, curves=3, batch=3, test_curves=2, times=5),
        *(
            sines.Config(width=4, epochs=1, curves=3, batch=3, test_curves=2, times=k, spacing=s, study="regularity")
            for k, s in ((10, "regular"), (10, "merged"), (10, "per-sample"), (50, "regular"))
        ),
    ],
    "images": [images.Config(width=4, epochs=1, batch=4, train_images=8, test_images=4, lr=1e-3)],
    "ou": [ou.Config(width=4, epochs=1, starts=4, batch=2, test_starts=2, samples=5, times=6, end=1.0, step=0.1)],
    "crossing": [crossing.Config(width=4, epochs=2)],
    "clock": [clock.Config(width=width, turns=3, before=2) for width in (4, 8)],
}
MODULES = {m.NAME: m for m in (toy_gradient, integration, memory, nested_spheres, sines, images, ou, crossing, clock)}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_idx(path: Path, array: np.ndarray, *, zipped: bool = False) -> Path:
    header = b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.fixture(scope="session", name="write_idx")
def write_idx_fixture():
    return write_idx


@pytest.fixture(scope="session")
def data_home(tmp_path_factory) -> Path:
    """A data home with a few invented digits in MNIST's form."""
    home = tmp_path_factory.mktemp("data")
    (home / "mnist").mkdir()
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 6)):
        write_idx(home / "mnist" / f"{part}-images-idx3-ubyte", random.integers(0, 256, (count, 28, 28)))
        write_idx(home / "mnist" / f"{part}-labels-idx1-ubyte", random.integers(0, 10, count))
    return home


@pytest.fixture(scope="session")
def records(tmp_path_factory, data_home) -> list[dict]:
    """The records of every experiment by every method, at a size of milliseconds."""
    out = tmp_path_factory.mktemp("out")
    made = []
    for name, configs in TINY.items():
        for config in configs:
            for method in ("turns",) if name == "clock" else MODULES[name].METHODS:
                job = Job(name, replace(config, method=method))
                made.append(execute(job, out, Context(data=data_home)))
    return made


@pytest.fixture
def fetch(monkeypatch, tmp_path):
    """Fetches the data set ``toy`` from an address; the keywords are those of its source."""

    def fetch(*homes: str, names=("one.gz", "two.gz"), files=KNOWN, to: Path = tmp_path / "data", **source) -> Path:
        urls = tuple(tuple(f"{home}/{name}" for home in homes) for name in names)
        monkeypatch.setitem(SOURCES, "toy", Source(files, urls, **source))
        return fetch_dataset("toy", to=to, console=QUIET)

    return fetch
