"""Auto keeps within ``memory_limit``, in the first solve as in later ones, whatever is known before (12.18, 20.15)."""

from __future__ import annotations

import builtins
import functools
import io
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import quadjoint as qj
from gradient.helpers import LiveMemory
from trust.helpers import Field, normal, times

MIB = 2**20
LIMIT = 6 * MIB
ROWS = 256


def fixed(steps: int) -> dict[str, Any]:
    return {"method": "rk4", "options": {"step_size": 1.0 / steps}}


ADAPTIVE: dict[str, Any] = {"method": "dopri5", "rtol": 1e-9, "atol": 1e-11}


def peak(gradient: Any, settings: dict[str, Any], *, before: dict[str, Any] | None = None, dim: int = 2) -> int:
    """Bytes that a forward and backward pass hold at most, perhaps after another solve of the same function."""
    f, y0 = Field(dim, 64), normal(ROWS, dim).requires_grad_()
    if before is not None:
        qj.odeint(f, y0, times(0.0, 1.0), gradient=gradient, **before).sum().backward()
        f.zero_grad()
    with LiveMemory() as memory:
        qj.odeint(f, y0, times(0.0, 1.0), gradient=gradient, **settings)[-1].square().sum().backward()
    return memory.peak


@functools.cache
def working(dim: int) -> int:
    """What the leanest backward pass needs for a step: the inputs, one evaluation with its graph, the gradients."""
    return peak(qj.DiscreteAdjoint(max_states=1, mode="joint", activations=0), fixed(2), dim=dim)


def test_a_fixed_grid_tells_how_many_evaluations_there_will_be() -> None:
    assert peak("direct", fixed(40)) > 2 * LIMIT
    assert peak(qj.Auto(memory_limit=LIMIT), fixed(40)) <= LIMIT + working(2)


def test_an_earlier_solve_with_fewer_steps_does_not_mislead() -> None:
    assert peak(qj.Auto(memory_limit=LIMIT), fixed(40), before=fixed(4)) <= LIMIT + working(2)


def test_adaptive_steps_keep_to_the_limit_in_the_first_solve() -> None:
    assert peak("direct", ADAPTIVE) > 2 * LIMIT
    assert peak(qj.Auto(memory_limit=LIMIT), ADAPTIVE) <= LIMIT + working(2)


def test_adaptive_steps_keep_to_the_limit_in_later_solves() -> None:
    longer = {**ADAPTIVE, "rtol": 1e-12, "atol": 1e-14}
    assert peak(qj.Auto(memory_limit=LIMIT), longer, before=longer) <= LIMIT + working(2)


@pytest.mark.parametrize("before", [None, fixed(40)], ids=["first solve", "later solve"])
def test_stages_that_do_not_fit_are_computed_again_from_checkpoints(before: dict[str, Any] | None) -> None:
    """Four stages of 256 x 64 numbers in each of 40 steps are 20 MiB."""
    assert peak(qj.Auto(memory_limit=LIMIT), fixed(40), before=before, dim=64) <= LIMIT + working(64)


def test_a_limit_changes_the_memory_and_not_the_gradient() -> None:
    found = []
    for limit in (None, LIMIT, 1):
        f = Field(2, 64)
        ys = qj.odeint(f, normal(ROWS, 2), times(0.0, 1.0), gradient=qj.Auto(memory_limit=limit), **fixed(5))
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(ys[-1].square().sum(), f.parameters())]))
    for g in found[1:]:
        torch.testing.assert_close(g, found[0], rtol=1e-10, atol=1e-12)


def test_implicit_steps_keep_to_the_limit_of_direct() -> None:
    """Past the limit memory grows by a state a step, if at all; compiled steps are recorded in the same way."""

    def growth(gradient: qj.Gradient) -> int:
        short, long = ({**fixed(steps), "method": "trapezoid"} for steps in (20, 60))
        return peak(gradient, long) - peak(gradient, short)

    assert growth(qj.Direct()) > 4 * MIB
    assert growth(qj.Direct(memory_limit=MIB // 2)) < MIB


def test_a_limit_of_direct_changes_no_gradient_through_implicit_steps() -> None:
    found = []
    for limit in (None, 1):
        f, tight = Field(2, 8), {"rtol": 1e-8, "atol": 1e-8, "method": "kvaerno5"}
        sol = qj.solve(f, normal(4, 2), times(0.0, 1.0), gradient=qj.Direct(memory_limit=limit), **tight)
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(sol.ys[-1].square().sum(), f.parameters())]))
        assert ("by discrete" in sol.stats.reason) == (limit is not None)
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)


def test_no_activations_are_kept_if_none_are_asked_for() -> None:
    """Whatever the limit: 40 steps of 4 evaluations, whose graphs would be kept."""
    none = peak(qj.DiscreteAdjoint(mode="joint", activations=0), fixed(40))
    limited = peak(qj.DiscreteAdjoint(mode="joint", activations=0, memory_limit=2**30), fixed(40))
    assert limited == none < peak(qj.DiscreteAdjoint(mode="joint", memory_limit=2**30), fixed(40))


def test_auto_keeps_to_the_limit_inside_of_a_checkpoint() -> None:
    """Stages of 256 x 64 numbers, four in each of 40 steps, are 20 MiB."""

    def measured(gradient: qj.Gradient) -> int:
        f, y0 = Field(64, 64), normal(ROWS, 64).requires_grad_()
        t = times(0.0, 1.0)
        with LiveMemory() as memory:
            solve = functools.partial(qj.odeint, f, gradient=gradient, **fixed(40))
            checkpoint(lambda y: solve(y, t), y0, use_reentrant=False)[-1].square().sum().backward()
        return memory.peak

    assert measured(qj.Auto(memory_limit=LIMIT)) <= LIMIT + 2 * working(64)


@pytest.mark.parametrize("independent", [False, True])
def test_gq_keeps_to_its_limit(independent: bool) -> None:
    """Polynomials of 256 x 64 numbers with six coefficients, in some forty steps; the gradient stays the same."""
    peaks, found = [], []
    for limit in (None, LIMIT):
        f, y0 = Field(64, 64), normal(ROWS, 64).requires_grad_()
        how = qj.GaussLegendre(solve="iterate", memory_limit=limit)
        with LiveMemory() as memory:
            ys = qj.odeint(f, y0, times(0.0, 3.0), gradient=how, rtol=1e-9, atol=1e-9, independent=independent)
            found.append(torch.autograd.grad(ys[-1].square().sum(), y0)[0])
        peaks.append(memory.peak)
    assert peaks[0] > 3 * LIMIT
    assert peaks[1] <= LIMIT + 2 * working(64)
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-11)


def test_the_limit_is_that_of_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that may have 100 MiB it is 25 MiB, however much is in use: the choice must not depend on that."""
    files = {
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/memory.max": f"{100 * MIB}\n",
        "/sys/fs/cgroup/memory.current": f"{20 * MIB}\n",
    }
    plain = builtins.open

    def opened(file: Any, *arguments: Any, **more: Any) -> Any:
        if str(file) in files:
            return io.StringIO(files[str(file)])
        if str(file).startswith("/sys/fs/cgroup"):
            raise FileNotFoundError(file)
        return plain(file, *arguments, **more)

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(io, "open", opened)
    found = qj.explain(Field(), normal(4, 3), times(0.0, 1.0), show=False)
    assert found.memory_limit == 25 * MIB
