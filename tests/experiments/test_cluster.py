"""Runs as tasks of a Ray cluster; here of one that is simulated, so that this is also tested where there is no Ray."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from quadjoint.experiments import crossing, scheduler, store
from quadjoint.experiments.cluster import on_ray
from quadjoint.experiments.execute import Job
from quadjoint.experiments.faults import Halt, Refusal
from quadjoint.experiments.scheduler import sweep

JOBS = [Job("crossing", crossing.Config(method="discrete", width=4, epochs=1, seed=seed)) for seed in range(3)]


class Lost(Exception):
    """Ray's word for a machine that is gone."""


class Ray(ModuleType):
    """As much of Ray as is used here: two places; tasks are done when they are asked for."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.exceptions = SimpleNamespace(RayError=Lost)
        self.running = False

    def init(self, **options: object) -> None:
        if options.get("address") == "auto":
            raise ConnectionError("Could not find\nany running instance")
        self.running = True

    def shutdown(self) -> None:
        self.running = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **options: object) -> Callable[..., SimpleNamespace]:
        def later(task: Callable[..., object]) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda *arguments: lambda: task(*arguments))

        return later

    def wait(self, pending: list, num_returns: int, timeout: float) -> tuple[list, list]:
        assert len(pending) <= 2
        return pending[:num_returns], pending[num_returns:]

    def get(self, task: Callable[[], object]) -> object:
        return task()


@pytest.fixture
def ray(monkeypatch) -> Ray:
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def test_all_runs_are_done_and_kept(ray, tmp_path):
    assert sweep(JOBS, on_ray("local", tmp_path), tmp_path, lambda event: None) == []
    assert store.read(tmp_path).keys() == {job.key for job in JOBS} and not ray.running


def test_a_lost_machine_and_a_fault_of_the_program_do_not_stop_the_others(ray, tmp_path, monkeypatch):
    def execute(job, out, context):
        if job == JOBS[1]:
            raise ZeroDivisionError("a fault")
        return record | {"key": job.key}

    def get(task):
        if task is first:
            raise Lost("the node died")
        return task()

    def wait(pending, num_returns, timeout):
        nonlocal first
        first = first or pending[0]
        return pending[:1], pending[1:]

    record = {"schema": 1, "experiment": "crossing", "config": {}, "status": "done", "result": {}}
    first = None
    monkeypatch.setattr(scheduler, "execute", execute)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    failures = sweep(JOBS, on_ray("local", tmp_path), tmp_path, lambda event: None)
    assert [failure.job for failure in failures] == JOBS[:2]
    assert failures[0].message == "the node died" and "ZeroDivisionError: a fault" in failures[1].message


def test_a_full_disk_stops_all(ray, tmp_path, monkeypatch):
    done: list[Job] = []

    def execute(job, out, context):
        done.append(job)
        raise Halt("no room")

    monkeypatch.setattr(scheduler, "execute", execute)
    with pytest.raises(Halt, match="no room"):
        sweep(JOBS, on_ray("local", tmp_path), tmp_path, lambda event: None)
    assert len(done) == 1 and not ray.running


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("auto", "no Ray cluster answers at 'auto': Could not find any running instance"),
        ("127.0.0.1:9", "no Ray cluster answers at '127.0.0.1:9': .*refused"),
        ("ray://127.0.0.1:9", "no Ray cluster answers at 'ray://127.0.0.1:9': .*refused"),
        ("127.0.0.1:99999", "no Ray cluster answers at '127.0.0.1:99999'"),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_sentence(ray, tmp_path, address, words):
    with pytest.raises(Refusal, match=words) as refusal:
        sweep(JOBS, on_ray(address, tmp_path), tmp_path, lambda event: None)
    assert "\n" not in str(refusal.value)


def test_without_ray_that_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Refusal, match="--ray needs Ray: pip install ray"):
        sweep(JOBS, on_ray("local", tmp_path), tmp_path, lambda event: None)
