"""Sweeps that are killed, interrupted, starved of a worker: finished runs stay, and the rest goes on."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from quadjoint.experiments import clock, crossing, store
from quadjoint.experiments.execute import Job, checkpoint_path, execute
from quadjoint.experiments.scheduler import Event, local, sweep
from quadjoint.experiments.training import Context

HERE = Path(__file__).parent
SCRIPT = HERE / "sweep_script.py"
SOURCE = HERE.parents[1] / "src"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def jobs() -> list[Job]:
    spec = importlib.util.spec_from_file_location("sweep_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.JOBS


def start(out: Path) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def kill_with_workers_watched(driver: subprocess.Popen) -> None:
    """Kill the driver alone; its workers must notice and end."""
    workers = psutil.Process(driver.pid).children(recursive=True)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


@pytest.mark.timeout(280)
def test_a_sweep_killed_at_random_points_keeps_every_finished_run_and_repeats_none(tmp_path):
    out, results = tmp_path / "out", tmp_path / "out" / store.RESULTS
    chance = random.Random(3)
    seen = b""
    for events in (3, 2):  # lines of output to wait for before the kill
        driver = start(out)
        for _ in range(events):
            driver.stdout.readline()
        time.sleep(0.5 * chance.random())
        kill_with_workers_watched(driver)
        driver.stdout.close()
        now = results.read_bytes() if results.exists() else b""
        assert now.startswith(seen)
        seen = now
    last = start(out)
    output, _ = last.communicate(timeout=200)
    assert last.returncode == 0
    assert results.read_bytes().startswith(seen)
    found = store.read(results)
    assert found.problems == []
    keys = [line.split(b'"key":"')[1].split(b'"')[0].decode() for line in results.read_bytes().splitlines()]
    assert sorted(keys) == sorted(job.key for job in jobs())  # each once
    finished_before = {r for r in keys if r.encode() in seen}
    assert not [line for line in output.splitlines() if line.split()[1] in finished_before]
    assert list((out / "checkpoints").glob("*")) == []
    # and what the interrupted runs found is what uninterrupted ones find
    records = {r["key"]: r["result"] for r in found.records}
    for job in jobs():
        whole = execute(job, tmp_path / "whole", Context())["result"]
        assert records[job.key]["curves"]["train_loss"] == whole["curves"]["train_loss"], job.key


def tiny(seed: int, **changes) -> Job:
    settings = {"method": "discrete", "width": 4, "epochs": 2, "seed": seed, **changes}
    return Job("crossing", crossing.Config(**settings))


def test_nothing_runs_beside_the_clock_which_comes_last(tmp_path):
    """With two processes trained runs share the machine, and those that measure time have it for themselves."""
    turns = [Job("clock", clock.Config(width=4, turns=2, before=1, methods="direct", seed=s)) for s in range(3)]
    jobs = [turns[0], tiny(0), turns[1], tiny(1), tiny(2), turns[2]]
    running: set[Job] = set()
    crowds: list[tuple[Job, ...]] = []

    def watch(event: Event) -> None:
        if event.kind == "started":
            running.add(event.job)
            crowds.append(tuple(running))
        elif event.kind in ("finished", "failed"):
            running.discard(event.job)

    assert sweep(jobs, local(2, tmp_path), tmp_path, watch) == []
    assert max(len(crowd) for crowd in crowds) == 2
    assert all(len(crowd) == 1 for crowd in crowds if any(job.alone for job in crowd))
    assert [crowd for crowd in crowds[-3:]] == [(job,) for job in turns]
    assert store.read(tmp_path).keys() == {job.key for job in jobs}


def test_a_run_that_raises_and_a_worker_that_dies_do_not_stop_the_others(tmp_path):
    bad = Job("crossing", crossing.Config(method="no such method", width=4, epochs=2))
    endless = Job("crossing", crossing.Config(method="discrete", width=4, epochs=10**9))
    seen: list[Event] = []

    def watch(event: Event) -> None:
        seen.append(event)
        if event.kind == "progress" and event.job == endless:
            checkpoint = checkpoint_path(tmp_path, endless)
            for child in psutil.Process().children(recursive=True):  # the worker that has written the checkpoint
                if checkpoint.exists() and "spawn_main" in " ".join(child.cmdline()):
                    child.kill()

    failures = sweep([bad, endless, tiny(0)], local(1, tmp_path), tmp_path, watch)
    assert [(f.job, word in f.message) for f, word in zip(failures, ("no such method", "code -9"), strict=True)] == [
        (bad, True),
        (endless, True),
    ]
    assert store.read(tmp_path).keys() == {tiny(0).key}
    assert checkpoint_path(tmp_path, endless).exists()  # so that it can go on
    assert {"started", "finished", "failed"} <= {event.kind for event in seen}


def test_the_time_of_an_interrupted_run_is_that_of_all_sittings(tmp_path):
    class Stop(Exception):
        pass

    def stop(progress) -> None:
        if progress.done == 300:
            raise Stop

    job = tiny(0, epochs=301)
    with pytest.raises(Stop):
        execute(job, tmp_path, Context(progress=stop))
    record = execute(job, tmp_path, Context())
    spent = record["result"]["curves"]
    assert len(spent["seconds"]) == 301
    assert record["seconds"] >= sum(spent["seconds"]) + sum(spent["evaluation_seconds"]) - 1e-9


def test_a_method_that_gives_up_is_a_result(tmp_path):
    """A loss that overflows is an outcome of the method: it is kept and not tried again."""
    job = tiny(0, lr=1e30)
    record = execute(job, tmp_path, Context())
    assert record["status"] == "failed" and record["result"]["reason"]
    store.append(tmp_path / store.RESULTS, record)
    assert sweep([job], lambda todo: iter_nothing(todo), tmp_path, lambda event: None) == []


def iter_nothing(todo):
    assert todo == []
    yield from ()


def test_two_sweeps_in_one_directory_are_refused(tmp_path):
    with store.locked(tmp_path / ".sweep.lock"):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, env=environment()
        )
    assert done.returncode != 0 and "another process is writing" in done.stderr


def test_on_a_local_ray_cluster(tmp_path):
    pytest.importorskip("ray")
    from quadjoint.experiments.cluster import on_ray

    jobs = [tiny(seed) for seed in range(3)]
    assert sweep(jobs, on_ray("local", tmp_path), tmp_path, lambda event: None) == []
    assert store.read(tmp_path).keys() == {job.key for job in jobs}
