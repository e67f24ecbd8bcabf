"""The list of faults in files; what is done for each is in ``files.py``, data sets are here."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from experiments.web import Answer, endless, serving
from quadjoint.experiments import data, fetch, store
from quadjoint.experiments.sources import SOURCES, Published, Source
from reliability.files import (
    QUIET,
    Evil,
    FileFault,
    another_model,
    append_without_room,
    checkpoint,
    code_in_a_checkpoint,
    failed,
    files,
    full_disk,
    no_room,
    plot,
    refused,
    report,
    resumed_from,
    truncated,
    unwritable_folder,
)
from reliability.result_files import (
    a_folder_as_results,
    beside_a_sound_one,
    brackets,
    changed_digit,
    commands,
    cut_off,
    escaped,
    half_a_character,
    huge,
    many_sizes,
    numbers_that_are_none,
    of_tomorrow,
)

CONTENT = {"one": b"first file", "two": b"second file" * 1000}
FILES = {name: Published(hashlib.sha256(content).hexdigest(), len(content)) for name, content in CONTENT.items()}


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.size = len(CONTENT["one"]) if kind == tarfile.REGTYPE else 0
    return info


def downloaded(folder: Path, name: str, answer: Answer, archive: Published | None = None) -> str:
    """The words in which a download is refused; nothing may appear, in the data set's folder or elsewhere."""
    with serving({f"/{name}": answer}) as home, patch.dict(SOURCES):
        SOURCES["toy"] = Source(FILES, ((f"{home}/{name}",),), archive)
        words = refused(lambda: fetch.fetch_dataset("toy", to=folder / "data", console=QUIET))
    assert files(folder) == {}
    return words.replace(home, "https://home.invalid")


def hostile_archive(*members: tarfile.TarInfo) -> Callable[[Path], str]:
    """An archive with these members in place of the file one."""

    def run(folder: Path) -> str:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for info in members:
                tar.addfile(info, io.BytesIO(CONTENT["one"]) if info.isreg() else None)
        archive = buffer.getvalue()
        published = Published(hashlib.sha256(archive).hexdigest(), len(archive))
        return downloaded(folder, "all.tar.gz", archive, published)

    return run


def zip_bomb(folder: Path) -> str:
    return downloaded(folder, "two.gz", gzip.compress(bytes(2**26), compresslevel=9)[:10_000])


def fetch_from_folder(folder: Path) -> None:
    mine = folder / "mine"
    if not mine.exists():
        mine.mkdir()
        for name, content in CONTENT.items():
            (mine / name).write_bytes(content)
    with patch.dict(SOURCES, toy=Source(FILES)):
        fetch.fetch_dataset("toy", to=folder / "data", source=mine, console=QUIET)


def fetch_without_room(folder: Path) -> str:
    fetch_from_folder(folder)
    (folder / "data" / "toy" / "two").unlink()
    before = files(folder)
    with full_disk(1000):
        words = failed(lambda: fetch_from_folder(folder))
    after = files(folder)
    assert {name: after.get(name) for name in before} == before
    assert after.keys() == before.keys(), f"left behind: {', '.join(after.keys() - before.keys())}"
    return words


def other_pickle(folder: Path) -> str:
    (folder / "cifar10").mkdir()
    for part in ("train", "test"):
        for name in data.CIFAR[part]:
            (folder / "cifar10" / name).write_bytes(pickle.dumps(Evil(folder / "ran")))
    words = refused(lambda: data.load("cifar10", "train", folder))
    assert not (folder / "ran").exists()
    return words


def digits(folder: Path, change: Callable[[bytes], bytes], fetched: bool = False) -> str:
    """Files in MNIST's form, as they were put there or fetched, the training images changed."""
    (folder / "mnist").mkdir()
    for part in ("train", "test"):
        images, labels = data.MNIST[part]
        (folder / "mnist" / images).write_bytes(struct.pack(">4I", 0x803, 2, 28, 28) + bytes(2 * 28 * 28))
        (folder / "mnist" / labels).write_bytes(struct.pack(">2I", 0x801, 2) + b"\x01\x02")
    if fetched:
        data.write_sums(folder / "mnist")
    path = folder / "mnist" / data.MNIST["train"][0]
    path.write_bytes(change(path.read_bytes()))
    return refused(lambda: data.load("mnist", "train", folder))


def link(kind: bytes, target: str = "/etc/passwd") -> Callable[[Path], str]:
    return hostile_archive(member("one", kind, target))


OUTSIDE = "a link or outside"
NO_ROOM = "File too large"
ONE_SENTENCE = "^quadjoint: "

FILE_FAULTS: tuple[FileFault, ...] = (
    FileFault("results: empty file", lambda folder: commands(folder, b""), "there are no results in"),
    FileFault("results: last line cut off", cut_off, r"line 2: not JSON \(cut off\?\); skipped"),
    FileFault("results: binary rubbish", beside_a_sound_one(bytes(range(256)) * 4), "not JSON .*skipped"),
    FileFault("results: lines of another program", beside_a_sound_one(b'{"hello": 1}\n17\n'), "not a record of a run"),
    FileFault("results: a later format", of_tomorrow, "written in format 2, this version reads 1"),
    FileFault("results: brackets that mean colours to a terminal", brackets, "left out"),
    FileFault("results: a number too large for a float", huge, "left out|skipped"),
    FileFault("results: NaN, infinities, a loss curve from zero", numbers_that_are_none, "no figure left out"),
    FileFault("results: half of a character", half_a_character, r"half of a character \(a lone surrogate\); skipped"),
    FileFault("results: a digit changed later", changed_digit, "its checksum differs: it was changed"),
    FileFault("results: 300 sizes of the memory experiment", many_sizes, r"4 of 30\d sizes drawn"),
    FileFault("results: a folder in place of the file", a_folder_as_results, ONE_SENTENCE),
    FileFault("results: markup in every string", escaped, "none of them a tag"),
    FileFault("full disk: a result is appended", append_without_room, NO_ROOM),
    FileFault("full disk: a checkpoint is saved", no_room(checkpoint, 9000), NO_ROOM),
    FileFault("full disk: the report is written", no_room(report, 12000), NO_ROOM),
    FileFault("full disk: figures are drawn", no_room(plot, 12000), NO_ROOM),
    FileFault("full disk: a data set is fetched", fetch_without_room, NO_ROOM),
    FileFault(
        "unwritable folder: a result is appended",
        unwritable_folder(lambda folder: failed(lambda: store.append(folder / store.RESULTS, {"key": "a"}))),
        "Permission denied",
    ),
    FileFault(
        "unwritable folder: report and plot",
        unwritable_folder(lambda folder: f"{report(folder)} {plot(folder)}"),
        ONE_SENTENCE,
    ),
    FileFault("checkpoint: holds code", code_in_a_checkpoint, "nothing run"),
    FileFault("checkpoint: empty", resumed_from(lambda path: path.write_bytes(b"") and None), "starts anew"),
    FileFault("checkpoint: cut off", resumed_from(truncated), "starts anew"),
    FileFault(
        "checkpoint: of another program",
        resumed_from(lambda path: torch.save({"hello": 1}, path)),
        "starts anew",
    ),
    FileFault(
        "checkpoint: of another model",
        resumed_from(another_model),
        "starts anew",
    ),
    FileFault("data: pickle that is not a published one", other_pickle, "a pickle from elsewhere is not opened"),
    FileFault("data: images cut off", lambda folder: digits(folder, lambda b: b[:-1]), "is cut off"),
    FileFault("data: images too long", lambda folder: digits(folder, lambda b: b + b"0"), "is too long"),
    FileFault("data: another kind of file", lambda folder: digits(folder, lambda b: b"PK" + b), "is not an idx file"),
    FileFault(
        "data: one byte changed after the fetch",
        lambda folder: digits(folder, lambda b: b[:-1] + b"1", fetched=True),
        "published",
    ),
    FileFault("download: a gzip bomb", zip_bomb, "is longer than the published file"),
    FileFault("download: endless", lambda folder: downloaded(folder, "one", endless()), "sends more than 10 bytes"),
    FileFault("download: another file", lambda folder: downloaded(folder, "one", b"FIRST FILE"), "sum differs"),
    FileFault("archive: path with ..", hostile_archive(member("../one", tarfile.REGTYPE)), OUTSIDE),
    FileFault("archive: absolute path", hostile_archive(member("/tmp/one", tarfile.REGTYPE)), OUTSIDE),
    FileFault("archive: symbolic link", link(tarfile.SYMTYPE), OUTSIDE),
    FileFault("archive: hard link", link(tarfile.LNKTYPE), OUTSIDE),
    FileFault("archive: device", link(tarfile.CHRTYPE), OUTSIDE),
    FileFault("archive: named pipe", link(tarfile.FIFOTYPE), OUTSIDE),
)
