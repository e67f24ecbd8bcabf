"""Properties of random solves: small networks, shapes, tuples, dtypes, observation patterns, methods, directions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import quadjoint as qj

few = settings(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
fewer = settings(few, max_examples=5)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qj.QuadjointWarning)
        yield


class Net(nn.Module):
    """dy/dt = V tanh(U [y, t] + b) - y / 2 on the last dimension; a tuple state is coupled through its means."""

    def __init__(self, features: int, width: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        draw = {"generator": g, "dtype": torch.float64}
        self.U = nn.Parameter((torch.randn(width, features + 1, **draw) / features**0.5).to(dtype))
        self.b = nn.Parameter(torch.randn(width, **draw).to(dtype))
        self.V = nn.Parameter((torch.randn(features, width, **draw) / width**0.5).to(dtype))

    def one(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(torch.cat([y, t.expand(*y.shape[:-1], 1)], -1) @ self.U.T + self.b) @ self.V.T - 0.5 * y

    def forward(self, t: Tensor, y: Any) -> Any:
        if isinstance(y, Tensor):
            return self.one(t, y)
        shift = sum(part.mean() for part in y)
        return tuple(self.one(t, part) + 0.1 * shift for part in y)


@dataclass(frozen=True)
class Case:
    """A random problem; everything is drawn from ``seed`` so that a failing example is short to print."""

    shape: tuple[int, ...]
    parts: int
    width: int
    dtype: torch.dtype
    pattern: str
    decreasing: bool
    method: str
    seed: int

    def net(self) -> Net:
        return Net(self.shape[-1], self.width, self.seed, self.dtype)

    def y0(self) -> Any:
        g = torch.Generator().manual_seed(self.seed + 1)
        parts = tuple(
            torch.randn(self.shape, generator=g, dtype=torch.float64).to(self.dtype) for _ in range(self.parts)
        )
        return parts[0] if self.parts == 1 else parts

    def times(self) -> Tensor:
        rng = np.random.default_rng(self.seed)
        inside = {
            "two": [],
            "regular": np.linspace(0, 1, 12)[1:-1],  # falls on the steps of fixed grids
            "clustered": 0.5 + 1e-6 * np.arange(1, 6),
            "irregular": rng.uniform(0.01, 0.99, 7),
            "hundreds": rng.uniform(0.001, 0.999, 150),
        }[self.pattern]
        t = np.unique(np.concatenate([[0.0, 1.0], inside]))
        return torch.as_tensor(t[::-1].copy() if self.decreasing else t)


def cases(
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32),
    methods: tuple[str, ...] = ("dopri5", "tsit5", "bosh3", "dopri8", "rk4", "euler", "midpoint"),
    parts: int = 2,
    shapes: tuple[tuple[int, ...], ...] = ((2,), (3, 2), (2, 3, 2), (5, 1), (4, 9)),
    directions: tuple[bool, ...] = (False, True),
) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        shape=st.sampled_from(shapes),
        parts=st.integers(1, parts),
        width=st.integers(1, 8),
        dtype=st.sampled_from(dtypes),
        pattern=st.sampled_from(["two", "regular", "clustered", "irregular", "hundreds"]),
        decreasing=st.sampled_from(directions),
        method=st.sampled_from(methods),
        seed=st.integers(0, 10_000),
    )


def tensors(y: Any) -> tuple[Tensor, ...]:
    return (y,) if isinstance(y, Tensor) else y


def gradients(case: Case, gradient: Any, **more: Any) -> tuple[list[Tensor], qj.Stats]:
    """Outputs and gradients (in y0 and in the parameters) of a random linear functional of the observations."""
    f, y0 = case.net(), case.y0()
    for part in tensors(y0):
        part.requires_grad_()
    sol = qj.solve(f, y0, case.times(), **{"method": case.method, "gradient": gradient, "rtol": 1e-4, **more})
    g = torch.Generator().manual_seed(3)
    loss = sum((ys * torch.randn(ys.shape, generator=g, dtype=torch.float64).to(ys)).sum() for ys in tensors(sol.ys))
    assert isinstance(loss, Tensor)
    inputs = [*tensors(y0), *f.parameters()]
    found = torch.autograd.grad(loss, inputs)
    return [*(ys.detach() for ys in tensors(sol.ys)), *found], sol.stats


def relative(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm().clamp(min=1e-6)) for a, b in zip(found, expected, strict=True))


@few
@given(
    case=cases(),
    mode=st.sampled_from(["auto", "joint", "stacked"]),
    keep=st.sampled_from(["stages", "states"]),
    limit=st.sampled_from([None, 1, 3]),
)
def test_discrete_is_direct(case: Case, mode: str, keep: str, limit: int | None) -> None:
    how = qj.DiscreteAdjoint(mode=mode, keep=keep, max_states=limit)
    error = relative(gradients(case, how)[0], gradients(case, "direct")[0])
    assert error < (1e-9 if case.dtype == torch.float64 else 1e-3)


@fewer
@given(case=cases(dtypes=(torch.float64,), methods=("dopri5", "tsit5", "dopri8")), rtol=st.sampled_from([1e-3, 1e-6]))
def test_quadrature_adjoint_is_as_exact_as_it_says(case: Case, rtol: float) -> None:
    """With tight solves on both sides, the error that is left is the quadrature's, which must be within its claim."""
    how = qj.GaussLegendre(rtol=rtol)
    found, stats = gradients(case, how, rtol=1e-9, atol=1e-10)
    exact, _ = gradients(case, "direct", rtol=1e-9, atol=1e-10)
    assert stats.gradient_error is not None and stats.gradient_error <= rtol
    count = 3  # the parameters come last
    flat = [torch.cat([g.reshape(-1) for g in gs[-count:]]) for gs in (found, exact)]
    assert float((flat[0] - flat[1]).norm() / flat[1].norm()) <= rtol + 1e-6
    assert relative(found[:-count], exact[:-count]) < 1e-6


@few
@given(
    case=cases(dtypes=(torch.float64,), methods=("dopri5", "tsit5", "rk4"), parts=1),
    rows=st.integers(1, 700),
    gradient=st.sampled_from(["gq", "gq-paper", "stacked"]),
)
def test_results_do_not_depend_on_the_chunk_size(case: Case, rows: int, gradient: str) -> None:
    how = qj.DiscreteAdjoint(mode=gradient) if gradient == "stacked" else gradient
    expected, _ = gradients(case, how)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("products.CHUNK_ROWS", "discrete.deferred.CHUNK_ROWS", "collocation.gauss_legendre.ROWS"):
            patch.setattr(f"quadjoint.gradient.{name}", rows)
        assert relative(gradients(case, how)[0], expected) < 1e-10


@few
@given(
    case=cases(dtypes=(torch.float64,), parts=1, shapes=((3, 2), (7, 2), (4, 9))),
    gradient=st.sampled_from(["direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm"]),
)
def test_results_do_not_depend_on_the_order_of_the_batch(case: Case, gradient: str) -> None:
    y0, t = case.y0(), case.times()
    order = torch.randperm(len(y0), generator=torch.Generator().manual_seed(case.seed))
    results = []
    for start in (y0, y0[order]):
        f, start = case.net(), start.clone().requires_grad_()
        ys = qj.odeint(f, start, t, method=case.method, gradient=gradient, rtol=1e-4)
        results.append([ys.detach(), *torch.autograd.grad((ys**2).sum(), [start, *f.parameters()])])
    (ys, in_y, *in_f), (shuffled, in_shuffled, *in_f2) = results
    # The error norm is summed in another order, so step sizes agree to rounding only.
    assert relative([shuffled, in_shuffled, *in_f2], [ys[:, order], in_y[order], *in_f]) < 1e-6


@fewer
@given(
    case=cases(dtypes=(torch.float64,), methods=("dopri5", "tsit5", "dopri8"), parts=1, shapes=((3, 2), (4, 9))),
    gradient=st.sampled_from(["direct", "discrete", "gq"]),
)
def test_times_per_sample_are_a_loop_over_samples(case: Case, gradient: str) -> None:
    f, y0, t = case.net(), case.y0(), case.times()
    rates = torch.linspace(0.5, 1.3, len(y0), dtype=torch.float64)[:, None]
    times = rates * t + 0.1 * rates
    tight = {"method": case.method, "gradient": gradient, "rtol": 1e-9, "atol": 1e-10}
    together = qj.odeint(f, y0, times, **tight)
    loop = torch.stack([qj.odeint(f, y0[b], times[b], **tight) for b in range(len(y0))], dim=1)
    found = torch.autograd.grad((together**2).sum(), list(f.parameters()))
    expected = torch.autograd.grad((loop**2).sum(), list(f.parameters()))
    assert relative([together.detach(), *found], [loop.detach(), *expected]) < 1e-6
