"""Steps of each sample's own: every sample is solved as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.counting import counting
from torch import Tensor

import quadjoint as qj
from independent.helpers import ALONE, DTYPE, oscillators, relaxing

TIGHT: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}
METHODS = ["dopri5", "tsit5", "dopri8", "bosh3", "adaptive_heun", "fehlberg2"]
TIMES = torch.linspace(0.0, 2.0, 6, dtype=DTYPE)
NAN = float("nan")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("controller", ["i", "pi", "pid"])
def test_a_batch_is_its_samples_one_by_one(method: str, controller: str) -> None:
    """States to rounding, steps to the last one, whatever the companions; also against solves with shared steps."""
    f, y0 = relaxing(0.5, 2.0, 8.0)
    settings: dict[str, Any] = {"method": method, "rtol": 1e-4, "atol": 1e-6, "options": {"controller": controller}}
    with torch.no_grad():
        sol = qj.solve(f, y0, TIMES, independent=True, **settings)
        alone = [qj.solve(f.alone(b), y0[b : b + 1], TIMES, **settings) for b in range(3)]
    assert sol.stats.accepted_steps.tolist() == [one.stats.accepted_steps for one in alone]
    assert sol.stats.rejected_steps.tolist() == [one.stats.rejected_steps for one in alone]
    torch.testing.assert_close(sol.ys, torch.cat([one.ys for one in alone], dim=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_in_any_order_and_any_company(dtype: torch.dtype) -> None:
    f, y0 = relaxing(0.5, 90.0, 2.0, 13.0)
    f, y0, t = f.to(dtype), y0.to(dtype), TIMES.to(dtype)
    f.rates = f.rates.to(dtype)
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == DTYPE else {"rtol": 1e-5, "atol": 1e-6}
    with torch.no_grad():
        whole = qj.odeint(f, y0, t, independent=True)
        for order in ([2, 0, 3, 1], [1], [3, 3, 0], [0, 1, 2]):
            part, _ = relaxing(*f.rates[order, 0].tolist())
            part.rates = part.rates.to(dtype)
            ys = qj.odeint(part.to(dtype), y0[order], t, independent=True)
            torch.testing.assert_close(ys, whole[:, order], **close)


def test_finished_samples_change_nothing() -> None:
    """Of two samples, one with a thousandth of the other's time: it ends bit for bit where it ends alone."""
    f, y0 = relaxing(3.0, 3.0)
    rows = torch.tensor([[0.0, 0.01], [0.0, 10.0]], dtype=DTYPE)
    with torch.no_grad():
        both = qj.solve(f, y0, rows, independent=True)
        alone = qj.solve(f.alone(0), y0[:1], rows[:1], independent=True)
    assert both.stats.accepted_steps[1] > 10 * both.stats.accepted_steps[0]
    assert both.ys[-1, 0].tolist() == alone.ys[-1, 0].tolist()


def test_times_per_sample_padding_and_directions() -> None:
    """Rows of times of their own, some padded, one backwards in time, one with a single time."""
    rows = torch.tensor(
        [[0.0, 0.3, 0.9, 1.6], [0.5, 0.6, NAN, NAN], [2.0, 1.1, 0.4, NAN], [1.0, NAN, NAN, NAN]], dtype=DTYPE
    )
    f, y0 = relaxing(1.0, 30.0, 0.7, 5.0)
    with torch.no_grad():
        ys = qj.odeint(f, y0, rows, independent=True, **TIGHT)
        assert ys.shape == (4, 4, 2)
        for b, row in enumerate(rows):
            kept = row[~torch.isnan(row)]
            one = qj.odeint(f.alone(b), y0[b : b + 1], kept, options=ALONE, **TIGHT)
            torch.testing.assert_close(ys[: len(kept), b], one[:, 0], rtol=1e-12, atol=1e-12)
            assert torch.equal(ys[len(kept) :, b], ys[-1:, b].expand(4 - len(kept), 2))


def test_decreasing_times() -> None:
    y0 = torch.tensor([[1.0], [2.0]], dtype=DTYPE)
    t = torch.tensor([1.0, 0.4, -0.5], dtype=DTYPE)
    rates = torch.tensor([[1.0], [3.0]], dtype=DTYPE)
    ys = qj.odeint(lambda t, y: -rates * y, y0, t, independent=True, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ys, y0 * torch.exp(-rates * (t - 1.0)[:, None, None]), rtol=1e-7, atol=0.0)


def test_states_of_several_tensors() -> None:
    """The error of a sample is the largest of its tensors', as for one sample alone."""
    rates = torch.tensor([1.0, 40.0], dtype=DTYPE)

    def make(rates: Tensor) -> Any:
        return lambda t, y: {"x": -rates[:, None] * y["x"], "v": (y["v"][0] * torch.cos(t.reshape(-1, 1, 1)),)}

    y0 = {"x": torch.ones(2, 3, dtype=DTYPE), "v": (torch.ones(2, 2, 2, dtype=DTYPE),)}
    with torch.no_grad():
        ys = qj.odeint(make(rates), y0, TIMES, independent=True, **TIGHT)
        for b in range(2):
            part = {"x": y0["x"][b : b + 1], "v": (y0["v"][0][b : b + 1],)}
            one = qj.odeint(make(rates[b : b + 1]), part, TIMES, options=ALONE, **TIGHT)
            torch.testing.assert_close(ys["x"][:, b : b + 1], one["x"], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(ys["v"][0][:, b : b + 1], one["v"][0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
def test_states_of_any_shape(shape: tuple[int, ...]) -> None:
    y0 = torch.rand(shape, dtype=DTYPE, generator=torch.Generator().manual_seed(0)) + 0.5
    rates = torch.tensor([0.5, 1.0, 20.0], dtype=DTYPE).reshape(3, *(1,) * (len(shape) - 1))

    def f(t: Tensor, y: Tensor) -> Tensor:
        assert t.shape == rates.shape
        return -rates * y

    ys = qj.odeint(f, y0, TIMES, independent=True, rtol=1e-8, atol=1e-10)
    exact = y0 * torch.exp(-rates * TIMES.reshape(-1, *(1,) * len(shape)))
    torch.testing.assert_close(ys, exact, rtol=1e-6, atol=1e-8)


def test_complex_states() -> None:
    rates = torch.tensor([[1.0 + 2.0j], [0.5 - 20.0j]], dtype=torch.complex128)
    y0 = torch.ones(2, 1, dtype=torch.complex128)
    ys = qj.odeint(lambda t, y: rates * y, y0, TIMES, independent=True, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(ys, torch.exp(rates * TIMES[:, None, None]), rtol=1e-5, atol=1e-6)


def test_options_of_the_steps() -> None:
    """A norm sees one sample; the first, the least and the longest step hold for each."""
    f, y0 = relaxing(0.5, 20.0)
    lengths: list[Tensor] = []
    f.callback_accept_step = lambda t, y, dt: lengths.append(dt)

    def largest(y: Tensor) -> Tensor:
        assert y.shape == (2,)
        return y.abs().max()

    with torch.no_grad():
        sol = qj.solve(
            f, y0, TIMES, independent=True, options={"norm": largest, "max_step": 0.05, "first_step": 0.01}, **TIGHT
        )
        taken = torch.stack(lengths)
        assert float(taken.max()) <= 0.05 * 1.02 and torch.equal(taken[0], torch.full((2,), 0.01, dtype=DTYPE))
        assert (taken > 0).sum(0).tolist() == sol.stats.accepted_steps.tolist()
        for b in range(2):
            one = qj.odeint(
                f.alone(b),
                y0[b : b + 1],
                TIMES,
                options={"norm": lambda y: y.abs().max(), "max_step": 0.05, "first_step": 0.01, **ALONE},
                **TIGHT,
            )
            torch.testing.assert_close(sol.ys[:, b], one[:, 0], rtol=1e-12, atol=1e-12)
        held = qj.solve(f, y0, TIMES[[0, -1]], independent=True, options={"min_step": 0.25})
    assert held.stats.accepted_steps[1] == 8 and held.stats.rejected_steps.tolist() == [0, 0]


def test_tolerances_of_samples() -> None:
    f, y0 = relaxing(1.0, 1.0)
    y0 = y0[:1].expand(2, 2)
    atol = torch.tensor([[1e-3], [1e-9]], dtype=DTYPE)
    with torch.no_grad():
        steps = qj.solve(f, y0, TIMES, independent=True, rtol=0.0, atol=atol).stats.accepted_steps
    assert steps[1] > 3 * steps[0]


def test_oscillators_take_no_more_evaluations_than_torchode() -> None:
    """256 Van der Pol oscillators: torchode's dopri5 with this controller makes 1994 evaluations, shared steps 6068."""
    f, y0 = oscillators(256)
    control = {"controller": qj.PIDController(p=0.2, i=0.5)}
    with torch.no_grad():
        sol = qj.solve(f, y0, torch.tensor([0.0, 20.0]), independent=True, rtol=1e-5, atol=1e-6, options=control)
    assert sol.stats.forward_evaluations <= 1994
    assert sol.stats.accepted_steps.min() < sol.stats.accepted_steps.max() / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_samples_cost_little_more_than_shared_steps(dtype: torch.dtype) -> None:
    """Operations dispatched in a step attempted: at most 30 more than if the batch shares it, whatever f is."""
    f, y0 = qj.nn.TimeMLP(2, width=16).to(dtype), torch.ones(8, 2, dtype=dtype)
    per_step = []
    for independent in (False, True):
        counted = []
        for end in (2.0, 40.0):
            t = torch.tensor([0.0, end], dtype=DTYPE)
            with torch.no_grad(), counting() as counts:
                sol = qj.solve(f, y0, t, independent=independent, rtol=1e-6, atol=1e-6, options={"max_step": 0.5})
            stats = sol.stats
            steps = torch.as_tensor(stats.accepted_steps).max() + torch.as_tensor(stats.rejected_steps).max()
            counted.append((counts.totals()["kernels"], int(steps)))
        (few, short), (many, long) = counted
        per_step.append((many - few) / (long - short))
    assert per_step[1] <= per_step[0] + 30


def test_one_look_of_the_host_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of samples: numbers are read once an attempt, and a few times for the whole solve."""
    reads = 0

    def counted(method: Any) -> Any:
        def wrapped(self: Tensor, *args: Any) -> Any:
            nonlocal reads
            reads += 1
            return method(self, *args)

        return wrapped

    f, y0 = relaxing(0.5, 2.0, 30.0)
    with torch.no_grad():
        f(TIMES[0], y0)
        for name in ("tolist", "item", "__bool__", "__float__", "__int__"):
            monkeypatch.setattr(Tensor, name, counted(getattr(Tensor, name)))
        sol = qj.solve(f, y0, TIMES, independent=True, **TIGHT)
        total = reads
        monkeypatch.undo()
    attempts = (sol.stats.forward_evaluations - 2) // 6
    assert attempts >= sol.stats.accepted_steps.max() and total <= attempts + 10
