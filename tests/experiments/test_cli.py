"""The command line: what it refuses, what it lists and how long it expects to take, and the demo without a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import quadjoint
from quadjoint import cli
from quadjoint.experiments import demo, nested_spheres, sines, store, toy_gradient
from quadjoint.experiments.config import Choice, as_dict
from quadjoint.experiments.display import Board, describe, duration
from quadjoint.experiments.estimate import Estimate
from quadjoint.experiments.execute import Job
from quadjoint.experiments.names import PRESETS
from quadjoint.experiments.registry import NAMES, experiment
from quadjoint.experiments.reproduce import Request, planned
from quadjoint.experiments.scheduler import Event
from quadjoint.experiments.training import Progress

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


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
        (("reproduce", "sines", "--authors", "/nowhere"), "there is no torch_gq_adjoint in /nowhere"),
        (("reproduce", "sines", "--ray", "local"), "--ray needs Ray: pip install ray"),
    ],
)
def test_refusals_are_one_sentence(arguments, words, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    code, _, errors = run(*arguments, capsys=capsys)
    assert code == 1
    assert errors.startswith("quadjoint: ") and words in errors and errors.count("\n") == 1


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
    order = [(job.alone, -Estimate().seconds(job)) for job in jobs]  # the clock after all others
    assert order == sorted(order)
    first = [job.config.method for job in jobs if job.experiment == "sines" and job.config.study == "widths"]
    assert first.index("adjoint") < first.index("gq-paper") < first.index("discrete")


def checkout(folder: Path) -> Path:
    """A folder with benchmarks that print their arguments; returns where its package would have its command."""
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "run.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    (folder / "pyproject.toml").write_text("")
    return folder / "src" / "quadjoint" / "cli.py"


def test_bench_passes_its_arguments_through(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "__file__", str(checkout(tmp_path)))
    code, output, _ = run("bench", "--quick", "--help", "cell", capsys=capfd)
    assert code == 7 and output.strip() == "['--quick', '--help', 'cell']"


@pytest.mark.parametrize("place", ["site/quadjoint/cli.py", "here/src/quadjoint/cli.py", "lib/python3/site/q/cli.py"])
def test_bench_of_an_installed_package_runs_nothing_of_the_folder_it_is_in(capfd, tmp_path, monkeypatch, place):
    """Neither of the current folder, nor of folders above the package that are no checkout of it."""
    checkout(tmp_path / "here")
    for folder in ("", "lib", "lib/python3"):
        (tmp_path / folder / "benchmarks").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "benchmarks" / "run.py").write_text("print('run')")
    (tmp_path / "here" / "pyproject.toml").unlink()
    monkeypatch.setattr(cli, "__file__", str(tmp_path / place))
    monkeypatch.chdir(tmp_path / "here")
    code, output, errors = run("bench", "--quick", capsys=capfd)
    assert (code, output) == (1, "") and "clone the repository" in errors


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


def finished(job: Job, seconds: float = 8.0, **result) -> Event:
    config = as_dict(job.config)
    result = {"epochs": 10, "final": {"train_loss": 0.125}, "seconds_per_epoch": 0.8, **result}
    record = {"experiment": job.experiment, "config": config, "status": "done", "seconds": seconds, "result": result}
    return Event("finished", job, record=record)


def shown(board: Board) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(board.render())
    return console.file.getvalue()


def test_the_live_table_shows_running_waiting_and_finished():
    jobs = [Job("sines", sines.Config(seed=s)) for s in range(3)]
    board = Board(jobs, done_before=2, console=Console(file=io.StringIO(), width=120))
    board(Event("started", jobs[0]))
    board(Event("started", jobs[1]))
    board(Event("progress", jobs[1], progress=Progress(3, 10, 0.25, 1.5)))
    board(finished(jobs[0]))
    text = shown(board)
    assert "3 of 5 done, 1 running, 1 waiting" in text and "left" in text
    assert "3/10" in text and "0.25" in text and "0.125" in text and "800 ms" in text


def test_the_time_left_of_a_run_goes_by_its_pace_since_the_first_epoch():
    """Ten seconds before the first epoch, once; then two seconds an epoch."""
    now = 0.0
    job = Job("sines", sines.Config())
    board = Board([job], console=Console(quiet=True), clock=lambda: now)
    board(Event("started", job))
    for epoch, time in ((1, 12.0), (2, 14.0), (3, 16.0)):
        now = time
        board(Event("progress", job, progress=Progress(epoch, 10, 0.5, 2.0)))
    assert board.time_left() == pytest.approx(14.0)
    now = 17.0
    assert board.time_left() == pytest.approx(13.0)


def test_rows_of_the_live_table_say_what_tells_runs_apart():
    tolerances = [Job("toy-gradient", toy_gradient.Config(rtol=rtol)) for rtol in (1e-3, 1e-6)]
    studies = [Job("nested-spheres", nested_spheres.Config(study=study)) for study in ("widths", "C")]
    board = Board([*tolerances, *studies], console=Console(file=io.StringIO(), width=120))
    for job in board.jobs:
        board(Event("started", job))
    assert "rtol 1e-6" in shown(board) and "rtol 0.001" in shown(board) and "(C)" in shown(board)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_two_runs_are_described_alike(tmp_path, preset):
    jobs = planned(Request("all", preset, tmp_path))
    assert len({describe(job) for job in jobs}) == len(jobs)


def test_a_dry_run_says_how_many_and_how_long_and_does_nothing(capsys, tmp_path):
    arguments = ("reproduce", "crossing", "--methods", "gq,direct", "--widths", "5,20", "--dry-run", "--jobs", "2")
    code, output, _ = run(*arguments, "--out", str(tmp_path), capsys=capsys)
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.split()}
    assert code == 0 and rows["crossing"][1:5] == ["widths", "8", "0", "8"] and rows["all"][1:4] == ["8", "0", "8"]
    said = " ".join(output.split())
    assert "8 runs to do" in said and "with 2 processes, judged by runs recorded on another machine." in said
    assert "preset quick" in said and "Nothing was run." in said
    assert list(tmp_path.iterdir()) == []
    job = planned(Request("crossing", "quick", tmp_path, methods=("gq",), widths=(5,)))[0]
    store.append(tmp_path / store.RESULTS, finished(job).record | {"schema": 1, "key": job.key})
    _, output, _ = run(*arguments, "--out", str(tmp_path), capsys=capsys)
    rows = {line.split()[0]: line.split()[1:4] for line in output.splitlines() if line.split()}
    assert rows["all"] == ["8", "1", "7"] and "judged by 1 run done here" in " ".join(output.split())


def test_help_lists_the_experiments_and_the_version_is_said(capsys):
    _, output, _ = run("reproduce", "--help", capsys=capsys)
    assert all(name in output for name in NAMES)
    code, output, _ = run("--version", capsys=capsys)
    assert code == 0 and output.startswith(f"quadjoint {quadjoint.__version__} (torch ")


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
