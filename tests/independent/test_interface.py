"""What can be asked of a batch of independent solves, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from independent.helpers import DTYPE, relaxing

TIMES = torch.linspace(0.0, 2.0, 5, dtype=DTYPE)


def test_the_continuous_solution_of_each_sample() -> None:
    """At a number, at times for all and at times for each, against the closed form."""
    rates = torch.tensor([[1.0], [25.0]], dtype=DTYPE)
    y0 = torch.ones(2, 1, dtype=DTYPE)
    sol = qj.solve(lambda t, y: -rates * y, y0, TIMES[[0, -1]], independent=True, rtol=1e-8, atol=1e-10)
    shared, own = TIMES[1:3], torch.tensor([[0.1, 1.9, 0.0], [0.01, 0.2, 2.0]], dtype=DTYPE)
    close: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(sol(0.7), torch.exp(-0.7 * rates), **close)
    torch.testing.assert_close(sol(shared), torch.exp(-rates * shared[:, None, None]), **close)
    torch.testing.assert_close(sol(own), torch.exp(-rates * own.T[:, :, None]), **close)


def test_the_continuous_solution_of_times_per_sample() -> None:
    """Steps that the batch shares, times of each sample's own: the same question, one sample backwards in time."""
    rows = torch.tensor([[0.0, 2.0], [1.0, -1.0]], dtype=DTYPE)
    y0 = torch.ones(2, 1, dtype=DTYPE, requires_grad=True)
    sol = qj.solve(lambda t, y: -y, y0, rows, rtol=1e-8, atol=1e-10)
    own = torch.tensor([[0.5, 1.5], [0.5, -0.5]], dtype=DTYPE)
    exact = torch.exp(rows[:, :1] - own).T[:, :, None]
    torch.testing.assert_close(sol(own), exact, rtol=1e-6, atol=1e-7)
    (found,) = torch.autograd.grad(sol(own)[1].sum(), y0)
    torch.testing.assert_close(found, exact[1], rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"t = -1 lies outside the solved interval of sample 0, \[0, 2\]"):
        sol(-1.0)
    with pytest.raises(ValueError, match=r"must be a number or have shape \(K,\) or \(2, K\), got \(3, 1\)"):
        sol(torch.zeros(3, 1))


def test_statistics_of_each_sample() -> None:
    f, y0 = relaxing(0.5, 50.0)
    sol = qj.solve(f, y0.requires_grad_(), TIMES, independent=True)
    stats = sol.stats
    assert stats.accepted_steps.shape == stats.rejected_steps.shape == (2,)
    assert stats.accepted_steps[1] > 3 * stats.accepted_steps[0] and isinstance(stats.forward_evaluations, int)
    assert stats.method == "direct" and "auto chose direct" in stats.reason
    assert str(sol.status) == "LAST_TIME: 2" and not bool(sol.status.failed.any())


def test_auto_bounds_its_memory() -> None:
    """What is chosen goes on by the transpose of the steps once half of the memory is used."""
    f, y0 = relaxing(0.5, 50.0)
    sol = qj.solve(f, y0.requires_grad_(), TIMES, independent=True, gradient=qj.Auto(memory_limit=10_000))
    sol.ys.sum().backward()
    assert sol.stats.method == "discrete" or "on by discrete" in sol.stats.reason


def test_layers_and_explanations() -> None:
    f, y0 = relaxing(0.5, 50.0)
    layer = qj.nn.NeuralODE(f, span=(0.0, 2.0), independent=True)
    torch.testing.assert_close(layer(y0), qj.odeint(f, y0, TIMES[[0, -1]], independent=True)[-1], rtol=0.0, atol=0.0)
    found = qj.explain(f, y0, TIMES, independent=True, show=False)
    assert "steps accepted" in str(found) and " to " in str(found)


def test_a_single_time_and_no_samples_apart() -> None:
    f, y0 = relaxing(0.5, 50.0)
    ys = qj.odeint(f, y0, TIMES[:1], independent=True)
    assert torch.equal(ys, y0[None])


def test_callbacks_see_every_sample() -> None:
    seen: dict[str, list[Tensor]] = {"step": [], "accept_step": [], "reject_step": []}
    f, y0 = relaxing(0.5, 50.0)
    for name, calls in seen.items():
        setattr(f, f"callback_{name}", lambda t, y, dt, calls=calls: calls.append(dt))
    with torch.no_grad():
        stats = qj.solve(f, y0, TIMES, independent=True, options={"first_step": 1.0}).stats
    counted = {name: (torch.stack(calls) > 0).sum(0).tolist() for name, calls in seen.items()}
    assert counted["accept_step"] == stats.accepted_steps.tolist()
    assert counted["reject_step"] == stats.rejected_steps.tolist() and sum(counted["reject_step"]) > 0
    assert [a + b for a, b in zip(counted["accept_step"], counted["reject_step"], strict=True)] == counted["step"]


def test_a_bar_over_all_samples(capsys: pytest.CaptureFixture[str]) -> None:
    f, y0 = relaxing(0.5, 5.0)
    with torch.no_grad():
        qj.solve(f, y0, TIMES, independent=True, progress=True)
    assert "100%" in capsys.readouterr().err


def test_compilation_is_said_to_have_no_effect() -> None:
    f, y0 = relaxing(0.5)
    with pytest.warns(qj.QuadjointWarning, match="compile=True has no effect with independent=True"), torch.no_grad():
        qj.odeint(f, y0, TIMES, independent=True, compile=True)


def test_transforms_of_torch_func_are_refused() -> None:
    f, y0 = relaxing(0.5)
    with pytest.raises(ValueError, match=r"independent=True cannot run inside torch.func"):
        torch.func.grad(lambda y: qj.odeint(f, y, TIMES, independent=True).sum())(y0)


def plain(t: Tensor, y: Any) -> Any:
    return -y


ONES = torch.ones(2, 1, dtype=DTYPE)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "fixed steps": ({"method": "rk4"}, r"needs an adaptive Runge-Kutta method.*method='rk4'"),
    "multistep": ({"method": "implicit_adams"}, r"needs an adaptive Runge-Kutta method"),
    "jumps": ({"options": {"jump_t": [0.5]}}, r"options\['jump_t'\] names times at which all samples end a step"),
    "steps": ({"options": {"step_t": [0.5]}}, r"options\['step_t'\] names times"),
    "failure": ({"options": {"on_failure": "ignore"}}, r"'on_failure'\] = 'ignore' is not known.*error, nan, stop"),
    "direction": (
        {"options": {"event_direction": "upwards"}, "event_fn": lambda t, y: y[:, 0]},
        r"'event_direction'\] = 'upwards' is not known. Known: both, down, up",
    ),
    "no event": ({"options": {"event_direction": "up"}}, r"'event_direction'\] needs an event_fn"),
    "horizon": (
        {"options": {"horizon": 3.0}, "event_fn": lambda t, y: y[:, 0]},
        r"the last of the times t is the horizon of each sample",
    ),
    "no samples": ({"y0": torch.ones((), dtype=DTYPE)}, r"the first dimension of y0 counts the samples"),
    "two counts": (
        {"y0": (torch.ones(2, 1, dtype=DTYPE), torch.ones(3, 1, dtype=DTYPE))},
        r"all its tensors share it; got \(2, 1\), \(3, 1\)",
    ),
    "rows": ({"t": torch.tensor([[0.0, 1.0]] * 3, dtype=DTYPE)}, r"t has times for 3 samples"),
    "a grid": (
        {"method": "kvaerno5", "options": {"grid_constructor": lambda f, y0, t: t}},
        r"options\['grid_constructor'\] fixes the steps",
    ),
    "misspelt": ({"options": {"on_failures": "nan"}}, r"'on_failures'\] is not an option of method 'dopri5'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_words(case: str) -> None:
    given, message = REFUSED[case]
    settings: dict[str, Any] = {"y0": ONES, "t": TIMES, **given}
    with pytest.raises(ValueError, match=message):
        qj.odeint(plain, settings.pop("y0"), settings.pop("t"), independent=True, **settings)


@pytest.mark.parametrize("option", ["on_failure", "event_direction"])
def test_options_of_independent_samples_need_them(option: str) -> None:
    with pytest.raises(ValueError, match=rf"options\['{option}'\] is of samples that are solved apart"):
        qj.odeint(plain, ONES, TIMES, options={option: "nan"})


def test_a_horizon_lies_ahead() -> None:
    event = lambda t, y: y[0, 0] - 0.5  # noqa: E731
    with pytest.raises(ValueError, match=r"'horizon'\] must lie past t\[0\] in the direction of t\[1\]; got -1"):
        qj.odeint(plain, ONES, TIMES[:2], event_fn=event, options={"horizon": -1.0})
    with pytest.raises(ValueError, match=r"it needs an event_fn"):
        qj.odeint(plain, ONES, TIMES, options={"horizon": 3.0})
