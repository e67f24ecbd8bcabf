"""How long a sweep will take: true enough to plan an evening, whatever the machine."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from quadjoint.experiments import clock, crossing, sines, store
from quadjoint.experiments.config import METHODS, as_dict
from quadjoint.experiments.display import Board
from quadjoint.experiments.estimate import Estimate, expected, summarise
from quadjoint.experiments.execute import Job
from quadjoint.experiments.reproduce import Request, planned
from quadjoint.experiments.scheduler import Event, may_start

ROOT = Path(__file__).parents[2]


def finished(job: Job, seconds: float) -> Event:
    record = {"experiment": job.experiment, "config": as_dict(job.config), "status": "done", "seconds": seconds}
    return Event("finished", job, record=record | {"result": {}})


def test_the_time_left_is_true_on_a_machine_of_another_speed(tmp_path):
    """A simulated sweep of all experiments by two workers, three times as slow as the table of times has it, some
    methods slower and some faster than that, and every run by chance: from a fifth of the time on, what is said
    to be left is left, to a quarter. (The mean of the runs so far would say three times too much.)
    """
    jobs = planned(Request("all", "quick", tmp_path))
    chance, now = random.Random(0), 0.0
    speed = {method: 3 * chance.uniform(0.6, 1.6) for method in sorted({job.config.method for job in jobs})}
    speed["turns"] = statistics.fmean(speed[method] for method in METHODS)  # the clock has steps of them all
    takes = {job: Estimate().seconds(job) * speed[job.config.method] * chance.uniform(0.8, 1.25) for job in jobs}
    board = Board(jobs, workers=2, console=Console(quiet=True), clock=lambda: now)
    waiting, busy, said = jobs[::-1], [], []
    while waiting or busy:
        while waiting and len(busy) < 2 and may_start(waiting[-1], [job for _, job in busy]):
            job = waiting.pop()
            busy.append((now + takes[job], job))
            board(Event("started", job))
        said.append((now, board.time_left()))
        now, job = min(busy, key=lambda entry: entry[0])
        busy.remove((now, job))
        board(finished(job, takes[job]))
    true = [(left, now - time) for time, left in said if 0.2 * now < time < 0.98 * now]
    assert len(true) > 100
    assert all(0.75 < left / wanted < 1.34 for left, wanted in true)
    assert board.time_left() == 0.0


def test_runs_done_here_count_more_than_the_table_the_more_alike_they_are():
    def job(**settings) -> Job:
        return Job("sines", sines.Config(**{"method": "gq", "width": 20, **settings}))

    def record(job: Job, factor: float) -> dict:
        return finished(job, factor * Estimate().seconds(job)).record

    table = Estimate()
    for learnt, factor in ((job(seed=1), 2.0), (job(width=5), 4.0), (job(method="direct"), 8.0)):
        estimate = Estimate.of([record(learnt, factor)])
        assert estimate.seconds(job()) == pytest.approx(factor * table.seconds(job()))
    both = Estimate.of([record(job(seed=1), 2.0), record(job(method="direct"), 8.0)])
    assert both.seconds(job()) == pytest.approx(2.0 * table.seconds(job()))
    given_up = record(job(seed=1), 2.0) | {"status": "failed"}
    odd = record(job(seed=1), 2.0) | {"seconds": float("nan")}
    strange = record(job(), 2.0) | {"config": {"method": "gq", "width": 0, "seed": 0, "batch": 0, "curves": "x"}}
    assert Estimate.of([given_up, odd, strange]).taken == {}


def test_a_run_twice_as_long_is_expected_to_take_twice_the_training():
    def seconds(**settings) -> float:
        return Estimate().seconds(Job("sines", sines.Config(method="adjoint", **settings)))

    once, twice, thrice = (seconds(epochs=100 * k) for k in (1, 2, 3))
    assert thrice - twice == pytest.approx(twice - once) and once < twice < 2.01 * once
    assert seconds(width=2000) > 3 * seconds(width=1000) > 3 * seconds(width=200)


def test_the_table_of_times_is_that_of_the_committed_sweep():
    """Within a factor of three in all; else renew it: python -m quadjoint.experiments.estimate results/evening."""
    records = [r for r in store.read(ROOT / "results" / "evening").records if r["status"] == "done"]
    assert len(records) > 100
    said = sum(expected(r["experiment"], r["config"]) or 0.0 for r in records)
    assert 1 / 3 < said / sum(r["seconds"] for r in records) < 3


def test_the_table_of_times_is_made_from_records():
    def run(method: str, seconds: float, **curves) -> dict:
        config = as_dict(crossing.Config(method=method, epochs=10))
        result = {"seconds_per_gradient": 1.0, "curves": curves}
        return {"experiment": "crossing", "config": config, "seconds": seconds, "result": result}

    def made(*records: dict) -> list[tuple[float, float, float]]:
        return [(cell.step, cell.once, cell.evaluation) for cell in summarise(records)]

    # Ten steps of a second. What both did besides is evaluation, the same for all methods; the rest was done once.
    assert made(run("direct", 18.0), run("adjoint", 38.0)) == [(1.0, 0.0, 0.8), (1.0, 20.0, 0.8)]
    assert made(run("direct", 18.0, evaluation_seconds=[0.3] * 10)) == [(1.0, 5.0, 0.3)]


def test_the_clock_is_expected_to_take_the_steps_of_its_methods():
    job = Job("clock", clock.Config(task="sines", width=200, methods="adjoint gq-paper", turns=10, before=0))
    one = Job("clock", clock.Config(task="sines", width=200, methods="adjoint", turns=10, before=0))
    other = Job("clock", clock.Config(task="sines", width=200, methods="gq-paper", turns=10, before=0))
    seconds = Estimate().seconds
    assert seconds(job) == pytest.approx(seconds(one) + seconds(other)) and seconds(one) > seconds(other) > 0
    theirs = Job("clock", clock.Config(task="sines", width=200, methods="paper:adjoint", turns=10, before=0))
    assert seconds(theirs) > seconds(one)  # not timed yet: a multiple of ours
    found = {"seconds_per_gradient": 2.0, "cpu_seconds_per_gradient": 1.0}
    record = {
        "experiment": "clock",
        "config": as_dict(one.config),
        "seconds": 50.0,
        "result": {"methods": {"adjoint": found, "paper:gq": found}},
    }
    cells = summarise([record])
    assert [(c.experiment, c.settings["method"], c.step) for c in cells] == [
        ("clock", "adjoint", 1.0),  # without waiting for a processor
        ("clock", "paper:gq", 1.0),
    ]
