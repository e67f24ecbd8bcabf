"""Programs that are stopped, cut off or out of room: one sentence, no traceback, and what is done stays done."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from quadjoint.experiments import data, store

SOURCE = Path(__file__).parents[2] / "src"
COMMAND = (sys.executable, "-c", "import quadjoint_command; quadjoint_command.main()")
CROSSING = ("reproduce", "crossing", "--methods", "discrete", "--widths", "5,6,7")


def start(*arguments: str, first: Callable[[], object] = int, path: Path = SOURCE) -> subprocess.Popen[str]:
    """The command in a session of its own, as a terminal would start it; ``first`` is done in the new process."""

    def prepare() -> None:
        # Tests that a shell runs in the background would hand down that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        first()

    environment = {**os.environ, "PYTHONPATH": f"{path}:{SOURCE}", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environment, preexec_fn=prepare, start_new_session=True, **pipes
    )


def ctrl_c(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a terminal does, to the workers too; returns output and complaints."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=60)


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path):
    arguments = (*CROSSING, "--out", str(tmp_path), "--jobs", "1")
    process = start(*arguments)
    line = ""
    while not line.startswith("[1/6]"):
        line = process.stdout.readline()
        assert line
    output, complaints = ctrl_c(process)
    done = len(store.read(tmp_path).records)
    assert process.returncode == 130 and complaints == ""
    assert f"Stopped, {done} of 6 runs are done and kept" in " ".join(output.split())
    assert 1 <= done < 6 and store.read(tmp_path).problems == []
    output, _ = start(*arguments, "--list").communicate(timeout=60)
    assert output.count("done") == done and output.count("waiting") == 6 - done


def test_ctrl_c_while_the_command_imports_is_one_sentence(tmp_path):
    """A torch whose import takes long, and which would catch an exception."""
    (tmp_path / "torch.py").write_text(
        "import time\nprint('importing', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    )
    process = start("demo", path=tmp_path)
    assert process.stdout.readline() == "importing\n"
    assert ctrl_c(process) == ("", "\nquadjoint: stopped\n")
    assert process.returncode == 130


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0])
def test_ctrl_c_while_the_workers_import_is_one_sentence(tmp_path, delay):
    process = start(*CROSSING, "--out", str(tmp_path), "--jobs", "2")
    while not any("spawn_main" in " ".join(child.cmdline()) for child in psutil.Process(process.pid).children()):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(delay)
    output, complaints = ctrl_c(process)
    assert process.returncode == 130 and complaints == ""
    assert output.count("Stopped, ") == 1


def test_a_list_that_is_read_to_its_first_line_ends_quietly(tmp_path):
    process = start("reproduce", "crossing", "--preset", "paper", "--list", "--out", str(tmp_path))
    assert process.stdout.readline().startswith("waiting crossing")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 141


def test_a_sweep_whose_output_nobody_reads_stops_in_one_sentence(tmp_path):
    process = start(*CROSSING, "--out", str(tmp_path), "--jobs", "1")
    process.stdout.readline()
    process.stdout.close()
    complaints = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert complaints.startswith("quadjoint: nobody reads the output any more; stopped, 1 of 6 runs are done and kept")
    assert complaints.count("\n") == 1 and len(store.read(tmp_path).records) == 1


def small_disk(bytes_per_file: int) -> Callable[[], object]:
    """No file can grow beyond so many bytes: a write breaks off in its middle, as on a full disk."""
    return functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (bytes_per_file, resource.RLIM_INFINITY))


def test_a_full_disk_stops_the_sweep_at_the_first_checkpoint_in_one_sentence(tmp_path):
    """The other runs would fail like the first."""
    process = start(*CROSSING, "--out", str(tmp_path), "--jobs", "2", first=small_disk(3000))
    output, complaints = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.fullmatch(
        rf"quadjoint: the checkpoint {tmp_path}/checkpoints/crossing-.*\.pt cannot be written: File too large; "
        rf"stopped, 0 of 6 runs are done and kept in {tmp_path}; the same command goes on from here\n",
        complaints,
    ), complaints
    assert "FAILED" not in output and "Traceback" not in output
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == []


def test_a_full_disk_stops_the_sweep_at_the_first_result_in_one_sentence(tmp_path):
    """A file of results that has no room for one more line; what is in it stays."""
    before = b"#" * 1_000_000 + b"\n"
    (tmp_path / store.RESULTS).write_bytes(before)
    process = start(*CROSSING, "--out", str(tmp_path), "--jobs", "1", first=small_disk(1_000_100))
    _, complaints = process.communicate(timeout=120)
    assert process.returncode == 1 and complaints.count("\n") == 1
    assert complaints.startswith(f"quadjoint: {tmp_path / store.RESULTS} cannot be written: File too large; stopped, 0")
    assert (tmp_path / store.RESULTS).read_bytes() == before


def digits(folder: Path) -> Path:
    """Two images in MNIST's form."""
    folder.mkdir()
    for images, labels in data.MNIST.values():
        (folder / images).write_bytes(struct.pack(">4I", 0x803, 2, 28, 28) + bytes(2 * 28 * 28))
        (folder / labels).write_bytes(struct.pack(">2I", 0x801, 2) + b"\x01\x02")
    return folder / data.MNIST["train"][0]


@pytest.mark.parametrize("fetched", [True, False])
def test_damaged_data_are_one_sentence_before_anything_runs(tmp_path, fetched):
    damaged = digits(tmp_path / "mnist")
    if fetched:
        data.write_sums(tmp_path / "mnist")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    process = start("reproduce", "images", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    output, complaints = process.communicate(timeout=120)
    assert process.returncode == 1 and output == ""
    assert re.match(r"quadjoint: .*train-images-idx3-ubyte is (no longer the published file|cut off)", complaints)
    assert complaints.count("\n") == 1


def test_a_fault_that_many_runs_meet_is_told_once(tmp_path):
    """Data that are damaged after the sweep has looked at them; here, by a program that replaces that look."""
    damaged = digits(tmp_path / "mnist")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    program = tmp_path / "program.py"
    program.write_text(
        "from quadjoint.experiments import data\n"
        "if __name__ == '__main__':\n"
        "    data.damaged = lambda name, home: None\n"
        "    from quadjoint.cli import main\n"
        "    main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
    arguments = ["reproduce", "images", "--methods", "direct,gq", "--widths", "4", "--seeds", "0", "--jobs", "1"]
    command = [sys.executable, str(program), *arguments, "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    told = done.stdout[done.stdout.index("\nFAILED") :].splitlines()
    assert re.fullmatch(r"FAILED images .* and \d+ more", told[1])
    assert re.fullmatch(r".*train-images-idx3-ubyte is cut off: .*", told[2])
    assert re.fullmatch(r"0 of \d+ runs done\.", told[3])
    assert "Traceback" not in done.stdout + done.stderr
