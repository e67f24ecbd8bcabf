"""Several processes: replicas (20.14), shards (20.12), and an error in one of them (20.16)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import quadjoint as qj
from trust import processes
from trust.helpers import DTYPE, GRADIENTS, Field, assert_close, cases, environment, name_of, normal, times

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return processes.run(tmp_path_factory.mktemp("processes"))


def within(gradient: Any) -> float:
    """Relative error with four steps of a fourth-order method."""
    return 1e-2 if gradient == "gq-paper" else 1e-3 if gradient in ("gq", "adjoint", "seminorm") else 1e-9


def assert_right(found: processes.Found, gradient: Any) -> None:
    assert isinstance(found, dict), found
    wanted = processes.alone(gradient)
    unused = [name for name in found if name not in wanted]
    assert_close([found[name] for name in wanted], list(wanted.values()), within=within(gradient))
    for name in unused:
        assert found[name] is not None and not found[name].any(), f"{name} is not used and has no zeros"


@pytest.mark.parametrize("gradient", cases(processes.REPLICATED))
def test_replicas_have_the_gradients_of_one_process(results: Any, gradient: Any) -> None:
    for rank in results:
        for found in rank["replicated"][name_of(gradient)]:
            assert_right(found, gradient)


@pytest.mark.parametrize(
    ("kind", "gradient"),
    cases(["unused", "unused, static graph"], processes.REPLICATED),
)
def test_replicas_with_an_unused_parameter_in_every_iteration(results: Any, kind: str, gradient: Any) -> None:
    """Also without find_unused_parameters: the solve hands zeros to parameters that the dynamics do not use."""
    for rank in results:
        for found in rank[kind][name_of(gradient)]:
            assert_right(found, gradient)


@pytest.mark.parametrize(("kind", "gradient"), cases(["accumulated", "accumulated shards"], processes.REPLICATED))
def test_gradients_are_accumulated_before_they_are_exchanged(results: Any, kind: str, gradient: Any) -> None:
    """Under no_sync, or set_requires_gradient_sync(False) of shards, for the first half of a batch."""
    for rank in results:
        for found in rank[kind][name_of(gradient)]:
            assert_right(found, gradient)


@pytest.mark.parametrize("gradient", cases(processes.REPLICATED))
def test_shards_of_the_whole_model_have_the_gradients_of_one_process(results: Any, gradient: Any) -> None:
    for rank in results:
        for found in rank["sharded"][name_of(gradient)]:
            assert_right(found, gradient)


@pytest.mark.parametrize("gradient", cases(processes.REPLICATED))
def test_shards_of_the_dynamics_are_right_or_refused_in_words(results: Any, gradient: Any) -> None:
    for rank in results:
        for found in rank["dynamics sharded"][name_of(gradient)]:
            if isinstance(found, str):
                assert re.search("fully_shard|FSDP", found), found
            else:
                assert_right(found, gradient)


class Unused(Field):
    """Dynamics with a parameter that they use only if they are told to, and one that they never use."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Parameter(torch.ones(2, dtype=DTYPE))
        self.seldom = nn.Parameter(torch.ones((), dtype=DTYPE))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return super().forward(t, y) * (self.seldom if float(t) > 5.0 else 1.0)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_unused_parameters_have_zeros_in_every_iteration(gradient: Any, learnable: bool) -> None:
    f, y0 = Unused(), normal(4, 3).requires_grad_(learnable)
    for _ in range(3):
        f.zero_grad()
        qj.odeint(f, y0, times(0.0, 1.0), gradient=gradient).sum().backward()
        for p in (f.never, f.seldom):
            assert p.grad is not None and torch.equal(p.grad, torch.zeros_like(p))


SCRIPT = """
import os
import sys
from pathlib import Path
import torch
import quadjoint as qj
from quadjoint.experiments import sines
from quadjoint.experiments.execute import Job
from quadjoint.experiments.scheduler import sweep, together
from quadjoint.experiments.workers import join, leave

plain, calls = qj.nn.TimeMLP.forward, 0


def forward(self, t, y):
    global calls
    calls += 1
    return plain(self, t, y) * (float("nan") if calls > 100 and os.environ["RANK"] == "1" else 1.0)


qj.nn.TimeMLP.forward = forward
out = Path(sys.argv[1])
job = Job("sines", sines.Config(method="discrete", width=5, epochs=50, times=6))
team = join()
try:
    for event in sweep([job], together(team, out), out, lambda event: None, team):
        print(event.message, file=sys.stderr)
finally:
    leave(team)
"""


@pytest.mark.slow
def test_an_error_in_one_process_of_a_team_ends_all(tmp_path: Path) -> None:
    """Dynamics that are NaN in one of two processes: both end, and the reason is said or written down."""
    script, out = tmp_path / "job.py", tmp_path / "out"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    process = subprocess.Popen(
        [*command, str(out)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            process.terminate()  # upon which torchrun ends those that it has started
            process.communicate()
    written = "".join(path.read_text() for path in out.rglob("*.jsonl")) if out.exists() else ""
    assert "not finite" in said + written
