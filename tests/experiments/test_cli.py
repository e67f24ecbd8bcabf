"""The command line: what it refuses, what it lists, how it ends on Ctrl-C, and the demo without a terminal."""

from __future__ import annotations

import functools
import io
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from quadjoint import cli
from quadjoint.experiments import demo, nested_spheres, sines, store
from quadjoint.experiments.config import Choice
from quadjoint.experiments.display import Board, describe, duration
from quadjoint.experiments.execute import Job
from quadjoint.experiments.registry import NAMES, experiment
from quadjoint.experiments.reproduce import Request, planned
from quadjoint.experiments.scheduler import Event
from quadjoint.experiments.training import Progress

SOURCE = Path(__file__).parents[2] / "src"


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    """The command in this process: exit code, output, errors."""
    before = sys.argv
    sys.argv = ["quadjoint", *arguments]
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return code, *capsys.readouterr()


def start(*arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "quadjoint.cli", *arguments]
    # Tests that a shell runs in the background would hand down that Ctrl-C is ignored.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=heed, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reproduce", "nothing"), "no experiment 'nothing'"),
        (("reproduce", "sines", "--preset", "huge"), "no preset 'huge'"),
        (("reproduce", "sines", "--methods", "magic,gq"), "no method magic"),
        (("reproduce", "sines", "--widths", "five"), "--widths takes whole numbers"),
        (("reproduce", "sines", "--seeds", "-1"), "--seeds takes whole numbers"),
        (("reproduce", "sines", "--device", "abacus"), "device 'abacus' cannot be used"),
        (("reproduce", "images", "--data", "/nowhere"), "quadjoint data fetch mnist"),
        (("plot", "--out", "/nowhere"), "there are no results in"),
        (("report", "--out", "/nowhere"), "there are no results in"),
        (("data", "fetch", "imagenet"), "no data set 'imagenet'"),
    ],
)
def test_refusals_are_one_sentence(arguments, words, capsys):
    code, _, errors = run(*arguments, capsys=capsys)
    assert code == 1
    assert errors.startswith("quadjoint: ") and words in " ".join(errors.split()) and "Traceback" not in errors


def test_listing_shows_the_runs_and_does_none(capsys, tmp_path):
    arguments = ("--methods", "gq", "--widths", "5", "--seeds", "0", "--list", "--out", str(tmp_path))
    code, output, _ = run("reproduce", "crossing", *arguments, capsys=capsys)
    assert (code, output.split()) == (0, ["waiting", "crossing", "gq", "width", "5", "seed", "0"])
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_described_by_what_is_special_about_it():
    assert describe(Job("sines", sines.Config(method="gq"))) == "sines gq width 20 seed 0"
    config = sines.Config(method="gq", times=10, spacing="merged", study="regularity")
    assert describe(Job("sines", config)) == "sines gq width 20 seed 0 times 10 spacing merged (regularity)"


def test_all_runs_of_all_experiments_are_planned_and_long_ones_come_first(tmp_path):
    jobs = planned(Request("all", "quick", tmp_path))
    assert Counter(job.experiment for job in jobs) == {
        name: len(experiment(name).grid(Choice("quick"))) for name in NAMES
    }
    assert len({job.key for job in jobs}) == len(jobs)
    for name in NAMES:
        widths = [job.config.width for job in jobs if job.experiment == name]
        assert widths == sorted(widths, reverse=True)
    first = [job.config.method for job in jobs if job.experiment == "sines"]
    assert first.index("adjoint") < first.index("gq-paper") < first.index("discrete")


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path, capsys):
    arguments = (
        "reproduce",
        "crossing",
        "--methods",
        "discrete",
        "--widths",
        "5,6,7",
        "--out",
        str(tmp_path),
        "--jobs",
        "1",
    )
    process = start(*arguments, start_new_session=True)
    line = ""
    while not line.startswith("[1/6]"):
        line = process.stdout.readline()
        assert line
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    output, _ = process.communicate(timeout=60)
    done = len(store.read(tmp_path).records)
    assert process.returncode == 130
    assert f"Stopped: {done} of 6 runs are done and kept" in output
    assert 1 <= done < 6 and store.read(tmp_path).problems == []
    code, output, _ = run(*arguments, "--list", capsys=capsys)
    assert code == 0 and output.count("done") == done and output.count("waiting") == 6 - done


def test_bench_outside_a_checkout_is_refused_in_words(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "lib" / "site" / "quadjoint" / "cli.py"))
    monkeypatch.chdir(tmp_path)
    code, _, errors = run("bench", "--quick", capsys=capsys)
    assert code == 1 and "clone the repository" in " ".join(errors.split())


def test_bench_passes_its_arguments_through(capfd, tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "run.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "src" / "quadjoint" / "cli.py"))
    code, output, _ = run("bench", "--quick", "--help", "cell", capsys=capfd)
    assert code == 7 and output.strip() == "['--quick', '--help', 'cell']"


def test_the_demo_prints_tables_and_saves_a_picture_without_a_terminal(tmp_path):
    """Two methods at a tiny size; everything else is the demo as it is."""
    jobs = [
        Job(name, replace(config, method=method))
        for method in ("gq", "discrete")
        for name, config in (
            ("sines", sines.Config(width=4, epochs=2, times=5)),
            ("nested-spheres", nested_spheres.Config(width=4, epochs=2, points=40, batch=20)),
        )
    ]
    console = Console(file=io.StringIO(), width=80)
    path = demo.run_demo(tmp_path, 2, console, jobs)
    text = console.file.getvalue()
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and str(path.resolve()) in text
    assert "Nested spheres" in text and "Sine curves" in text and "[4/4]" in text
    assert sum(line.split()[:1] == ["discrete"] for line in text.splitlines()) == 2
    assert "\x1b" not in text  # no colours or cursor movements outside a terminal


def test_the_demo_has_every_method_on_both_tasks():
    assert {(job.experiment, job.config.method) for job in demo.demo_jobs()} == {
        (name, method) for name in demo.TITLES for method in demo.METHODS
    }


def test_the_live_table_shows_running_waiting_and_finished():
    jobs = [Job("sines", sines.Config(seed=s)) for s in range(3)]
    board = Board(jobs, done_before=2, console=Console(file=io.StringIO(), width=120))
    board(Event("started", jobs[0]))
    board(Event("started", jobs[1]))
    board(Event("progress", jobs[1], progress=Progress(3, 10, 0.25, 1.5)))
    record = {
        "status": "done",
        "seconds": 8.0,
        "result": {"epochs": 10, "final": {"train_loss": 0.125}, "seconds_per_epoch": 0.8},
    }
    board(Event("finished", jobs[0], record=record))
    console = Console(file=io.StringIO(), width=120)
    console.print(board.render())
    text = console.file.getvalue()
    assert "3 of 5 done, 1 running, 1 waiting" in text and "left" in text
    assert "3/10" in text and "0.25" in text and "0.125" in text and "800 ms" in text


def test_durations_are_said_as_people_do():
    assert [duration(s) for s in (0.5, 59.94, 60, 3599, 3600)] == [
        "500 ms",
        "59.9 s",
        "1:00 min",
        "59:59 min",
        "1:00 h",
    ]


@pytest.mark.timeout(200)
def test_torchrun_trains_one_model_in_two_processes(tmp_path):
    """Two processes share every batch: the loss curve is that of one process, up to rounding."""
    script = tmp_path / "job.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from quadjoint.experiments import sines, store\n"
        "from quadjoint.experiments.execute import Job, execute\n"
        "from quadjoint.experiments.workers import join, leave\n"
        "from quadjoint.experiments.scheduler import sweep, together\n"
        "out = Path(sys.argv[1])\n"
        "job = Job('sines', sines.Config(method='discrete', width=5, epochs=3, times=6))\n"
        "team = join()\n"
        "sweep([job], together(team, out), out, lambda event: None, team)\n"
        "leave(team)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run([*command, str(tmp_path / "out")], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (record,) = store.read(tmp_path / "out").records
    from quadjoint.experiments.execute import execute
    from quadjoint.experiments.training import Context

    config = sines.Config(method="discrete", width=5, epochs=3, times=6)
    alone = execute(Job("sines", config), tmp_path, Context())["result"]
    assert record["result"]["curves"]["train_loss"] == pytest.approx(alone["curves"]["train_loss"], rel=1e-3)
    assert record["result"]["gradients"] == alone["gradients"]
