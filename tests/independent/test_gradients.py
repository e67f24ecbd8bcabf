"""Gradients of batches with steps of each sample's own, against those of the samples one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from independent.helpers import ALONE, DTYPE, Relaxing, relaxing
from quadjoint.gradient.discrete import checkpoints

NAN = float("nan")
TIMES = torch.linspace(0.0, 2.0, 6, dtype=DTYPE)
EXACT: dict[str, Any] = {
    "direct": "direct",
    "direct-limited": qj.Direct(memory_limit=20_000),
    "discrete": "discrete",
    "states": qj.DiscreteAdjoint(keep="states"),
    "recomputed": qj.DiscreteAdjoint(activations=0),
    "stacked": qj.DiscreteAdjoint(mode="stacked"),
    "checkpoints": qj.DiscreteAdjoint(max_states=4),
    "auto": "auto",
}
GQ: dict[str, Any] = {
    "gq": "gq",
    "iterate": qj.GaussLegendre(solve="iterate"),
    "dense": qj.GaussLegendre(solve="dense"),
    "checkpoints": qj.GaussLegendre(max_states=4),
}


def weights(shape: torch.Size) -> Tensor:
    return torch.randn(shape, dtype=DTYPE, generator=torch.Generator().manual_seed(2))


def gradients(f: Relaxing, y0: Tensor, t: Tensor, weight: Tensor, **settings: Any) -> list[Tensor]:
    """Of a weighted sum of all observations, in the initial states and the parameters."""
    start = y0.clone().requires_grad_()
    ys = qj.odeint(f, start, t, **settings)
    return list(torch.autograd.grad((ys * weight).sum(), [start, *f.parameters()]))


def one_by_one(f: Relaxing, y0: Tensor, t: Tensor, weight: Tensor, **settings: Any) -> list[Tensor]:
    if not settings.get("independent"):
        settings["options"] = ALONE
    found = [gradients(f.alone(b), y0[b : b + 1], t, weight[:, b : b + 1], **settings) for b in range(len(y0))]
    return [
        torch.cat([g[0] for g in found]),
        *(torch.stack(parts).sum(0) for parts in list(zip(*found, strict=True))[1:]),
    ]


def largest_error(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))


@pytest.mark.parametrize("how", EXACT)
def test_exact_gradients_are_those_of_the_samples_one_by_one(how: str) -> None:
    """With observations inside of steps, steps that some of the samples reject, and samples that end long before."""
    f, y0 = relaxing(0.2, 3.0, 60.0)
    weight = weights(torch.Size([len(TIMES), 3, 2]))
    settings: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
    exact = one_by_one(f, y0, TIMES, weight, gradient="discrete", **settings)
    found = gradients(f, y0, TIMES, weight, independent=True, gradient=EXACT[how], **settings)
    assert largest_error(found, exact) < 1e-12


@pytest.mark.parametrize(("how", "error"), [("direct", 1e-10), ("discrete", 1e-10), ("gq", 1e-6)])
def test_five_and_five_hundred_steps_in_one_batch(how: str, error: float) -> None:
    f, y0 = relaxing(0.05, 800.0)
    weight = weights(torch.Size([len(TIMES), 2, 2]))
    settings: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
    with torch.no_grad():
        steps = qj.solve(f, y0, TIMES, independent=True, **settings).stats.accepted_steps
    assert steps[0] <= 8 and steps[1] >= 500
    exact = one_by_one(f, y0, TIMES, weight, gradient=how, **settings)
    found = gradients(f, y0, TIMES, weight, independent=True, gradient=how, **settings)
    assert largest_error(found, exact) < error


@pytest.mark.parametrize("how", GQ)
def test_gq_is_as_right_as_one_by_one(how: str) -> None:
    """Both are gradients of the ODE along the same steps."""
    f, y0 = relaxing(0.2, 3.0, 20.0)
    weight = weights(torch.Size([len(TIMES), 3, 2]))
    settings: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-9}
    exact = one_by_one(f, y0, TIMES, weight, gradient="gq", **settings)
    found = gradients(f, y0, TIMES, weight, independent=True, gradient=GQ[how], **settings)
    assert largest_error(found, exact) < 1e-6


@pytest.mark.parametrize("method", ["tsit5", "dopri8", "bosh3", "adaptive_heun"])
@pytest.mark.parametrize("how", ["direct", "discrete", "checkpoints"])
def test_every_method(method: str, how: str) -> None:
    """Also those whose continuous extension needs further stages, and those whose last stage is not the next one."""
    f, y0 = relaxing(0.3, 6.0)
    weight = weights(torch.Size([len(TIMES), 2, 2]))
    settings: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-5, "method": method}
    exact = one_by_one(f, y0, TIMES, weight, gradient="discrete", **settings)
    found = gradients(f, y0, TIMES, weight, independent=True, gradient=EXACT[how], **settings)
    assert largest_error(found, exact) < 1e-12


def test_oscillators() -> None:
    """Van der Pol's, gradients in mu and in the start to 1e-6; in single precision against batches of one sample.

    There, rounding alone decides about the first step, which is found from a difference of f.
    """
    mu, y0 = torch.linspace(1.0, 8.0, 3)[:, None], torch.ones(3, 2)

    def gradient(y0: Tensor, mu: Tensor, **settings: Any) -> tuple[Tensor, ...]:
        y, m = y0.clone().requires_grad_(), mu.clone().requires_grad_()
        f = lambda t, y: torch.cat([y[:, 1:], m * (1 - y[:, :1] ** 2) * y[:, 1:] - y[:, :1]], dim=1)  # noqa: E731
        ys = qj.odeint(f, y, torch.tensor([0.0, 3.0]), gradient="discrete", options=ALONE, **settings)
        return torch.autograd.grad(ys[-1].sum(), (y, m))

    for dtype in (torch.float32, torch.float64):
        found = gradient(y0.to(dtype), mu.to(dtype), independent=True)
        for b in range(3):
            alone = gradient(y0[b : b + 1].to(dtype), mu[b : b + 1].to(dtype), independent=dtype == torch.float32)
            for batch, one in zip(found, alone, strict=True):
                torch.testing.assert_close(batch[b : b + 1], one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["direct", "discrete", "gq"])
def test_gradients_in_times_and_padding(how: str) -> None:
    """dL/dt of rows of times, one backwards, against finite differences of the whole solve."""
    f, y0 = relaxing(0.7, 4.0, 1.0)
    rows = torch.tensor([[0.0, 0.4, 1.0], [0.2, 0.9, NAN], [1.5, 0.7, 0.1]], dtype=DTYPE)
    weight = weights(torch.Size([3, 3, 2]))

    def loss(t: Tensor) -> Tensor:
        ys = qj.odeint(f, y0, t, independent=True, rtol=1e-10, atol=1e-12, gradient=how)
        return (ys * weight)[:2].sum() + (ys * weight)[2, [0, 2]].sum()

    t = rows.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(t), t)
    for b, k in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]:
        step = torch.zeros_like(rows)
        step[b, k] = 1e-5
        with torch.no_grad():
            difference = (loss(rows + step) - loss(rows - step)) / 2e-5
        assert float(found[b, k]) == pytest.approx(float(difference), rel=1e-5, abs=1e-6)
    shared = TIMES[[0, -1]].clone().requires_grad_()
    ys = qj.odeint(f, y0, shared, independent=True, gradient=how)
    (found,) = torch.autograd.grad(ys[-1].sum(), shared)
    torch.testing.assert_close(found[1], f(shared[1], ys[-1]).sum().detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("how", ["direct", "discrete", "gq"])
def test_second_derivatives(how: str) -> None:
    """Of y' = -k y for two rates: d^2 y(1) / dk^2 = y0 exp(-k), and mixed ones with the initial state."""
    k = torch.tensor([[1.0], [15.0]], dtype=DTYPE, requires_grad=True)
    y0 = torch.tensor([[2.0], [1.0]], dtype=DTYPE, requires_grad=True)
    t = torch.tensor([0.0, 0.3, 1.0], dtype=DTYPE)
    ys = qj.odeint(lambda t, y: -k * y, y0, t, independent=True, rtol=1e-9, atol=1e-11, gradient=how)
    in_k, in_y = torch.autograd.grad(ys[1:].sum(), (k, y0), create_graph=True)
    (twice,) = torch.autograd.grad(in_k.sum(), k, retain_graph=True)
    (mixed,) = torch.autograd.grad(in_y.sum(), k)
    times = t[1:, None, None]
    torch.testing.assert_close(twice, (times**2 * y0 * torch.exp(-k * times)).sum(0).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mixed, (-times * torch.exp(-k * times)).sum(0).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["direct", "direct-limited", "discrete", "checkpoints", "gq"])
def test_gradients_of_the_continuous_solution(how: str) -> None:
    """States asked for after the solve, at times of each sample's own, are as differentiable as observations."""
    f, y0 = relaxing(0.5, 40.0)
    asked = torch.tensor([[0.3, 1.1, 1.99], [0.01, 0.7, 1.9]], dtype=DTYPE)
    ends = torch.tensor([[0.0, 2.0]] * 2, dtype=DTYPE)
    observed = torch.cat([ends[:, :1], asked, ends[:, 1:]], dim=1)
    weight = weights(torch.Size([3, 2, 2]))
    found = []
    for t in (ends, observed):
        start = y0.clone().requires_grad_()
        sol = qj.solve(f, start, t, independent=True, rtol=1e-5, atol=1e-7, gradient={**EXACT, **GQ}[how])
        states = sol(asked) if t is ends else sol.ys[1:4]
        found.append(torch.autograd.grad((states * weight).sum() + sol.ys[-1].sum(), [start, *f.parameters()]))
    assert largest_error(found[0], found[1]) < 1e-11


def test_times_of_the_continuous_solution_are_differentiable() -> None:
    f, y0 = relaxing(0.5, 10.0)
    sol = qj.solve(f, y0, TIMES, independent=True, rtol=1e-8, atol=1e-10)
    t = torch.tensor([[0.5], [1.2]], dtype=DTYPE, requires_grad=True)
    states = sol(t)
    (found,) = torch.autograd.grad(states.sum(), t)
    torch.testing.assert_close(found, f(t, states[0]).sum(1, keepdim=True).detach(), rtol=1e-6, atol=1e-8)


def test_memory_is_bounded_by_max_states() -> None:
    """However many steps there are, so many states are kept, in the forward and in the backward pass."""
    f, y0 = relaxing(0.5, 100.0)
    kept: list[int] = []
    record = checkpoints.StepRecorder.__call__

    def watched(self: Any, step: Any) -> None:
        record(self, step)
        kept.append(len(self.states))
        assert all(r.inputs is None for r in self.records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints.StepRecorder, "__call__", watched)
        gradients(
            f, y0, TIMES, weights(torch.Size([6, 2, 2])), independent=True, gradient=qj.DiscreteAdjoint(max_states=6)
        )
    assert len(kept) > 50 and max(kept) <= 6


@pytest.mark.parametrize("gradient", ["adjoint", "seminorm", "gq-paper", "reversible"])
def test_other_gradients_are_refused_in_words(gradient: str) -> None:
    f, y0 = relaxing(1.0)
    with pytest.raises(ValueError, match=r"independent=True use gradient='discrete'|needs method='alf'"):
        qj.odeint(f, y0.requires_grad_(), TIMES, independent=True, gradient=gradient)
