"""Fetching data sets: sizes and checksums decide, archives cannot write elsewhere, and every refusal is a sentence."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from experiments.toy_data import FILES, KNOWN, MEBIBYTE, QUIET, contents, published
from experiments.web import NOWHERE, Answer, endless, serving
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.fetch import fetch_dataset
from quadjoint.experiments.sources import SOURCES, Published, Source

ZIPPED: dict[str, Answer] = {f"/{name}.gz": gzip.compress(content) for name, content in FILES.items()}


def test_files_are_downloaded_checked_and_not_downloaded_again(fetch):
    calls: list[str] = []
    with serving(ZIPPED, calls) as home:
        assert contents(fetch(home)) == FILES
        fetch(home)
    assert calls == ["/one.gz", "/two.gz"]


def test_plain_files_are_downloaded_as_they_are(fetch):
    with serving({f"/{name}": content for name, content in FILES.items()}) as home:
        assert contents(fetch(home, names=("one", "two"))) == FILES


def test_the_mirror_answers_where_the_home_does_not(fetch):
    with serving(ZIPPED) as mirror:
        assert contents(fetch(NOWHERE, mirror)) == FILES
    with serving({}) as home, serving(ZIPPED) as mirror:
        assert contents(fetch(home, mirror)) == FILES


def test_a_damaged_file_is_fetched_again(fetch):
    with serving(ZIPPED) as home:
        folder = fetch(home)
        (folder / "one").write_bytes(b"first fi")
        assert contents(fetch(home)) == FILES


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"other file"), "one.gz is cut off or not the published file"),
        (gzip.compress(b"first file and more"), r"one.gz is longer than the published file \(10 bytes\)"),
        (gzip.compress(FILES["one"])[:-9], "one.gz is a damaged or cut-off gzip"),
        (b"<html>no</html>", "one.gz is a damaged or cut-off gzip"),
    ],
    ids=["other", "longer", "cut off", "no gzip"],
)
def test_a_wrong_answer_is_refused_and_nothing_is_kept(fetch, tmp_path, content, words):
    with serving({"/one.gz": content}) as home, pytest.raises(Refusal, match=words):
        fetch(home)
    assert list((tmp_path / "data" / "toy").iterdir()) == []


def test_a_gzip_bomb_is_read_no_further_than_the_known_size(fetch, tmp_path):
    """A quarter of a gibibyte of zeros in a quarter of a mebibyte; what is known to be published has ten bytes."""
    bomb = gzip.compress(bytes(256 * MEBIBYTE), compresslevel=1)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "one.gz").write_bytes(bomb)
    large = {"one": Published(KNOWN["one"].sha256, 64 * MEBIBYTE), "two": KNOWN["two"]}
    with serving({"/one.gz": bomb}) as home:
        tracemalloc.start()
        try:
            with pytest.raises(Refusal, match="sends more than 1034 bytes"):
                fetch(home)
            with pytest.raises(Refusal, match="longer than the published file"):
                fetch(home, files=large)
            with pytest.raises(Refusal, match="longer than the published file"):
                fetch_dataset("toy", to=tmp_path / "data", source=mine, console=QUIET)
            assert tracemalloc.get_traced_memory()[1] < 8 * MEBIBYTE
        finally:
            tracemalloc.stop()
    assert not any((tmp_path / "data" / "toy").iterdir())


@pytest.mark.parametrize("length", [None, "10", str(2**60)], ids=["unannounced", "announced as short", "as long"])
@pytest.mark.parametrize("name", ["one", "one.gz"])
def test_an_endless_download_is_cut_by_the_known_size(fetch, tmp_path, name, length):
    """An endless name within the header of a gzip file would otherwise be skipped for ever."""
    start = b"\x1f\x8b\x08\x08" + b"\1" * 1000 if name == "one.gz" else b"x" * 1000
    with serving({f"/{name}": endless(start, length)}) as home, pytest.raises(Refusal, match=r"published file|cut-off"):
        fetch(home, names=(name,))
    assert not any((tmp_path / "data" / "toy").iterdir())


@pytest.mark.parametrize("length", ["abc", "-1", "1e3", "١٠", "9" * 5000, ""])
def test_an_odd_length_in_the_header_announces_nothing(fetch, length):
    def answer(name):
        def send(handler):
            handler.wfile.write(f"HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n".encode())
            handler.wfile.write(FILES[name])

        return send

    with serving({f"/{name}": answer(name) for name in FILES}) as home:
        assert contents(fetch(home, names=tuple(FILES))) == FILES


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.0 abc\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.0 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.0 302 Found\r\nLocation: http://host:port/\r\n\r\n",
        b"HTTP/1.0 302 Found\r\nLocation: http://" + b"a" * 100 + b".invalid/\r\n\r\n",
        b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
        b"HTTP/1.0 500 \x1b[31mred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nfirst",
        b"",
    ],
    ids=["no HTTP", "status", "many", "long", "port", "host", "scheme", "colours", "chunks", "broken off", "nothing"],
)
def test_odd_answers_are_one_sentence(fetch, tmp_path, answer):
    sentence = r"^the data set's home cannot be reached \(http.*\); if you have the files, use --from$"
    answers: dict[str, Answer] = {"/one": lambda handler: handler.wfile.write(answer) and None}
    with serving(answers) as home, pytest.raises(Refusal, match=sentence) as refusal:
        fetch(home, names=("one",))
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 600
    assert not any((tmp_path / "data" / "toy").iterdir())


def test_an_unreachable_home_is_said(fetch):
    with pytest.raises(Refusal, match=r"cannot be reached \(.*refused\).*--from"):
        fetch(NOWHERE)


def test_a_full_disk_is_not_taken_for_a_missing_network(fetch, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quadjoint.experiments.files.os.fsync", full)
    with serving(ZIPPED) as home, pytest.raises(OSError, match=r"No space left on device.*one"):
        fetch(home, package="toy@1.0.0", tarball=published(b""))


def test_files_of_ones_own_are_taken_from_any_depth_plain_or_gzipped(monkeypatch, tmp_path):
    monkeypatch.setitem(SOURCES, "toy", Source(KNOWN))
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "one").write_bytes(FILES["one"])
    (mine / "deep" / "one").write_bytes(b"something else of the same name")
    (mine / "deep" / "two.gz").write_bytes(gzip.compress(FILES["two"]))
    folder = fetch_dataset("toy", to=tmp_path / "data", source=mine, console=QUIET)
    assert contents(folder) == FILES
    (mine / "one").write_bytes(b"first")
    with pytest.raises(Refusal, match="deep/one is longer than the published file"):
        fetch_dataset("toy", to=tmp_path / "again", source=mine, console=QUIET)
    (mine / "deep" / "one").unlink()
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


def test_every_public_home_is_reached_by_https_and_every_file_is_known():
    for name, source in SOURCES.items():
        assert all(address.startswith("https://") for addresses in source.urls for address in addresses), name
        for file in (*source.files.values(), *(f for f in (source.archive, source.tarball) if f)):
            assert len(file.sha256) == 64 and file.size > 0
