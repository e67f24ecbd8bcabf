"""The results file: nothing is lost or half-written, and whatever else is in it is skipped with a word."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadjoint.experiments import store

# Loads the module by its path, so that a writer starts in milliseconds, without torch.
WRITER = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("store", sys.argv[1])
store = importlib.util.module_from_spec(spec)
sys.modules["store"] = store
spec.loader.exec_module(store)
for i in range(int(sys.argv[4])):
    key = f"{sys.argv[3]}-{i}"
    config = {"method": "gq", "width": 1, "seed": 0}
    record = {"schema": 1, "key": key, "experiment": "x", "config": config, "status": "done",
              "result": {"curve": list(range(2000))}}
    store.append(Path(sys.argv[2]), record)
    print(key, flush=True)
"""


def record(key: str, **result: object) -> dict:
    config = {"method": "gq", "width": 1, "seed": 0}
    return {"schema": 1, "key": key, "experiment": "x", "config": config, "status": "done", "result": result}


def writer(path: Path, name: str, count: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, store.__file__, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / store.RESULTS
    for key in "abc":
        store.append(path, record(key, loss=1.5))
    assert [r["key"] for r in store.read(path).records] == ["a", "b", "c"]
    assert store.read(tmp_path).problems == []


def test_no_file_is_no_results(tmp_path):
    assert store.read(tmp_path) == store.Results()


def test_numbers_that_json_cannot_say_become_null(tmp_path):
    store.append(tmp_path / "r", record("a", loss=[1.0, float("nan"), float("inf")]))
    assert store.read(tmp_path / "r").records[0]["result"] == {"loss": [1.0, None, None]}


def test_numbers_that_are_no_json_are_read_as_missing(tmp_path):
    """Python writes them without being asked, and 1e999 is an infinity too."""
    line = json.dumps(record("a", loss=[float("nan"), float("inf"), float("-inf"), 1.5])).replace("1.5", "1e999, 1.5")
    (tmp_path / "r").write_text(line)
    assert store.read(tmp_path / "r").records[0]["result"] == {"loss": [None, None, None, None, 1.5]}


def test_a_line_of_an_older_version_has_no_checksum_and_is_read(tmp_path):
    (tmp_path / "r").write_text(json.dumps(record("a", loss=1.5)))
    assert store.read(tmp_path / "r") == store.Results([record("a", loss=1.5)])


def test_a_line_that_was_only_laid_out_anew_is_read(tmp_path):
    store.append(tmp_path / "r", record("a", loss=0.1, text="Gauß \U0001f600"))
    line = json.loads((tmp_path / "r").read_bytes())
    (tmp_path / "r").write_text(json.dumps(dict(reversed(line.items())), ensure_ascii=False), encoding="utf-8")
    assert store.read(tmp_path / "r") == store.Results([record("a", loss=0.1, text="Gauß \U0001f600")])


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_a_digit_that_was_changed_is_found(tmp_path_factory, place, shift):
    """Whichever digit of a line is changed to whichever other: the line is skipped in words."""
    path = tmp_path_factory.mktemp("flip") / "r"
    written = record("run-7", loss=[0.1, 2.5e-7, -31], text="x1 \u00e9") | {"seconds": 12.75, "started": "2024-01-02"}
    store.append(path, written)
    line = bytearray(path.read_bytes())
    digits = [i for i, byte in enumerate(line) if chr(byte).isdigit()]
    i = digits[place % len(digits)]
    line[i] = ord("0") + (line[i] - ord("0") + shift) % 10
    path.write_bytes(line)
    found = store.read(path)
    assert found.records == [] and len(found.problems) == 1


def test_killed_writers_lose_nothing_that_they_reported(tmp_path):
    """Two writers at once, killed at random moments, again and again: every reported line is whole."""
    path, reported = tmp_path / store.RESULTS, []
    chance = random.Random(1)
    for turn in range(4):
        writers = [writer(path, f"{turn}{name}", 10_000) for name in "ab"]
        reported += [process.stdout.readline().strip() for process in writers]
        time.sleep(0.2 * chance.random())
        for process in writers:
            os.kill(process.pid, signal.SIGKILL)
            reported += [line for line in process.communicate()[0].split("\n")[:-1] if line]
    results = store.read(path)
    assert len(reported) > 8
    assert set(reported) <= results.keys()
    assert len(results.problems) <= 8  # at most the line that each was writing


def test_writers_at_the_same_time_do_not_mix_their_lines(tmp_path):
    path = tmp_path / store.RESULTS
    writers = [writer(path, name, 60) for name in "abc"]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    for w in writers:
        w.stdout.close()
    assert store.read(path).keys() == {f"{name}-{i}" for name in "abc" for i in range(60)}
    assert store.read(path).problems == []


def test_a_cut_off_last_line_does_not_swallow_the_next(tmp_path):
    path = tmp_path / store.RESULTS
    store.append(path, record("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    store.append(path, record("b"))
    results = store.read(path)
    assert results.keys() == {"a", "b"}
    assert results.problems == ["results.jsonl line 2: not JSON (cut off?); skipped"]


def test_a_write_that_fails_half_way_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / store.RESULTS
    store.append(path, record("a"))
    before = path.read_bytes()
    monkeypatch.setattr(store.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.append(path, record("b"))
    assert path.read_bytes() == before


def test_the_last_record_of_a_key_counts(tmp_path):
    for loss in (1, 2):
        store.append(tmp_path / "r", record("a", loss=loss))
    assert [r["result"]["loss"] for r in store.read(tmp_path / "r").records] == [2]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"schema": 1', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"17", "not a record"),
        (b'{"hello": "world"}', "'schema' is missing"),
        (json.dumps(record("a") | {"schema": 99}).encode(), "written in format 99, this version reads 1"),
        (json.dumps(record("a") | {"config": {}}).encode(), "config 'method' is missing"),
        (json.dumps(record("a") | {"result": 3}).encode(), "'result' is missing or not dict"),
        (json.dumps(record("a") | {"schema": True}).encode(), "'schema' is missing or not int"),
        (json.dumps(record("a", text="\ud800")).encode(), "half of a character"),
        (json.dumps(record("a") | {"\udfff": 1}).encode(), "half of a character"),
        (json.dumps(record("a", text="\ud800"), ensure_ascii=False).encode(errors="surrogatepass"), "not JSON"),
        (json.dumps(record("a") | {"checksum": "0123456789abcdef"}).encode(), "its checksum differs"),
        (json.dumps(record("a") | {"checksum": 7}).encode(), "its checksum differs"),
    ],
)
def test_foreign_lines_are_skipped_in_words(tmp_path, line, complaint):
    path = tmp_path / store.RESULTS
    path.write_bytes(line + b"\n" + json.dumps(record("good")).encode() + b"\n")
    results = store.read(path)
    assert results.keys() == {"good"}
    assert len(results.problems) == 1 and complaint in results.problems[0]


@given(st.lists(st.one_of(st.binary(max_size=30), st.integers(0, 9)), max_size=8))
def test_any_mixture_of_lines_is_read(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "r"
    keys = {str(line) for line in lines if isinstance(line, int)}
    wire = [json.dumps(record(str(x))).encode() if isinstance(x, int) else b"~" + x.replace(b"\n", b"") for x in lines]
    path.write_bytes(b"\n".join(wire))
    assert store.read(path).keys() == keys


def test_the_lock_of_a_directory_is_refused_to_a_second_sweep(tmp_path):
    with store.locked(tmp_path / "lock", wait=False):
        command = WRITER.split("for i in range")[0] + "\nwith store.locked(Path(sys.argv[2]), wait=False): pass"
        done = subprocess.run(
            [sys.executable, "-c", command, store.__file__, str(tmp_path / "lock")], capture_output=True, text=True
        )
        assert "another process is writing" in done.stderr
    with store.locked(tmp_path / "lock", wait=False):
        pass
