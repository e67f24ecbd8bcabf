"""Solves and gradients on a device that only pretends to compute: everything is where it belongs, and as wide as y0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from devices.pretended import META, PretendedDevice, WrongTensor
from quadjoint.solver.progress import sample_bar

WIDER = (torch.float64, torch.complex128)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        assert t.device == y.device and t.dtype == y.dtype
        return self.layers(y) * torch.cos(t)


def gradient_of(
    how: Any, t: Tensor, *, forbidden: tuple[torch.dtype, ...] = WIDER, **options: Any
) -> tuple[PretendedDevice, PretendedDevice, qj.Solution]:
    """What was seen in the forward and in the backward pass."""
    f, y0 = Net().to(META), torch.ones(4, 3, device=META)
    with PretendedDevice(forbidden) as forward:
        sol = qj.solve(f, y0, t, gradient=how, **options)
    assert isinstance(sol.ys, Tensor) and sol.ys.device == META and sol.ys.dtype == torch.float32
    with PretendedDevice(forbidden) as backward:
        sol.ys.sum().backward()
    assert all(p.grad is not None and p.grad.device == META for p in f.parameters())
    return forward, backward, sol


TIMES = torch.linspace(0, 1, 5, dtype=torch.float64)
GRADIENTS = ["direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm"]


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4"])
@pytest.mark.parametrize("how", GRADIENTS)
def test_gradients(how: str, method: str) -> None:
    gradient_of(how, TIMES, method=method)


@pytest.mark.parametrize("gradient", ["direct", "discrete"])
@pytest.mark.parametrize("method", ["dopri8", "tsit5", "adaptive_heun", "euler", "midpoint"])
def test_methods(method: str, gradient: str) -> None:
    gradient_of(gradient, TIMES.float(), method=method)


@pytest.mark.parametrize("gradient", ["direct", "discrete"])
@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
def test_one_read_of_the_host_a_step_two_a_solve_and_none_backwards(method: str, gradient: str) -> None:
    """Copies to the host count as reads. The two are of the sizes in the search for the first step."""
    forward, backward, sol = gradient_of(gradient, TIMES, method=method)
    attempted = sol.stats.accepted_steps + sol.stats.rejected_steps
    assert sum(forward.reads.values()) == attempted + 2
    assert not backward.reads


@pytest.mark.parametrize("gradient", ["direct", "discrete"])
def test_the_host_reads_nothing_of_fixed_steps_but_that_they_are_finite(gradient: str) -> None:
    forward, backward, _ = gradient_of(gradient, TIMES, method="rk4", options={"step_size": 0.1})
    few = sum(forward.reads.values())
    assert few <= 1
    forward, backward, _ = gradient_of(gradient, TIMES, method="rk4", options={"step_size": 0.05})
    assert sum(forward.reads.values()) == few and not backward.reads


@pytest.mark.parametrize("gradient", ["gq-paper", "adjoint", "seminorm"])
def test_backward_solves_read_once_a_step(gradient: str) -> None:
    """And for the gradient of the loss, for the function itself and for the first step."""
    _, backward, sol = gradient_of(gradient, TIMES)
    attempted = sol.stats.backward_accepted_steps + sol.stats.backward_rejected_steps
    assert sum(backward.reads.values()) <= attempted + 4


@pytest.mark.parametrize("how", GRADIENTS)
def test_times_of_each_sample(how: str) -> None:
    """They are added up in double precision, which the device has to have; states stay in single."""
    t = TIMES * torch.arange(1, 5)[:, None]
    gradient_of(how, t, forbidden=(torch.complex128,))


@pytest.mark.parametrize("how", ["direct", "discrete", "gq"])
@pytest.mark.parametrize("method", ["radauIIA3", "trapezoid"])
def test_implicit_methods(method: str, how: str) -> None:
    gradient_of(how, TIMES, method=method)


def test_a_tensor_of_the_host_is_found_out() -> None:
    offset = torch.ones(3)
    with PretendedDevice(), pytest.raises((WrongTensor, RuntimeError)):
        qj.odeint(lambda t, y: y + offset, torch.ones(4, 3, device=META), torch.tensor([0.0, 1.0]))


def test_double_precision_is_found_out() -> None:
    with PretendedDevice(WIDER), pytest.raises(WrongTensor, match="float64"):
        qj.odeint(lambda t, y: (y.double() * 2.0).float(), torch.ones(4, 3, device=META), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(("method", "how"), [("rk4", "direct"), ("rk4", "discrete"), ("alf", "direct")])
def test_learnable_times_of_the_host_inside_of_steps(method: str, how: str) -> None:
    t = torch.linspace(0.0, 1.0, 5, requires_grad=True)
    gradient_of(how, t, method=method, options={"step_size": 0.3})
    assert t.grad is not None and t.grad.device.type == "cpu"


@pytest.mark.parametrize("event", [False, True])
def test_samples_that_end_by_themselves_with_times_of_the_host(event: bool) -> None:
    """As far as the pretended device gets, on which all four samples fail where they begin."""
    event_fn = (lambda t, y: y[:, 0] - 2.0) if event else None
    with PretendedDevice(whole=4), torch.no_grad():
        sol = qj.solve(
            Net().to(META),
            torch.ones(4, 3, device=META),
            TIMES,
            independent=True,
            event_fn=event_fn,
            options={"on_failure": "nan"},
        )
    assert sol.ys.device == META and sol.ts.device.type == "cpu"
    assert sol.event_time is None or sol.event_time.device.type == "cpu"


def test_the_bar_of_samples_with_times_of_the_host() -> None:
    seen = []
    with PretendedDevice():
        show = sample_bar(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), lambda *_: seen.append(1))
        show(torch.zeros(2, device=META), None, torch.ones(2, device=META))
    assert seen == [1]
