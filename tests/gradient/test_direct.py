"""Gradients against finite differences and closed forms, and dynamics that differentiate by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import problems
import quadjoint as qj
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA

DTYPE = torch.float64
TIMES = torch.tensor([0.1, 0.43, 0.97], dtype=DTYPE)
METHODS = [m for m in qj.METHODS if m not in ("scipy_solver", "fixed_adams") and not m.startswith("my_")]


def steady(method: str) -> dict[str, Any]:
    """Options under which the steps do not depend on the state, so that the solve is a smooth function of its input."""
    if method == "alf" or (method in RUNGE_KUTTA and RUNGE_KUTTA[method].adaptive):
        h = 0.013 if method == "alf" or RUNGE_KUTTA[method].order < 3 else 0.053
        return {"first_step": h, "min_step": h, "max_step": h}
    if "adams" in method:
        return {"step_size": 0.023, "max_order": 5}
    return {"step_size": 0.053}


def pendulum(a: Tensor, b: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[1], -a * torch.sin(y[0]) + b * torch.cos(3 * t) * y[1]])

    return f


def leaf(*values: float) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=DTYPE, requires_grad=True)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_gradcheck_in_state_times_and_parameters(method: str, backwards: bool) -> None:
    def solve(y0: Tensor, t: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return qj.odeint(
            pendulum(a, b), y0, t, method=method, options=steady(method), rtol=1e-10, atol=1e-10, gradient="direct"
        )

    t = (TIMES.flip(0) if backwards else TIMES).clone().requires_grad_()
    inputs = (leaf(0.7, -0.4), t, leaf(1.2), leaf(0.3))
    # Times of adaptive steps get the derivative of the solution, which the discretised one has to its accuracy.
    assert gradcheck(solve, inputs, eps=1e-6, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("interp", ["linear", "cubic"])
@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
@pytest.mark.parametrize("gradient", ["direct", "discrete"])
def test_fixed_grids_are_differentiated_exactly_in_the_times(gradient: str, method: str, interp: str) -> None:
    """Also where the steps are so long that the solution is wrong."""

    def grid(f: Any, y0: Tensor, t: Tensor) -> Tensor:
        return torch.stack([t[0], 0.6 * t[0] + 0.4 * t[-1], t[-1]])

    def solve(y0: Tensor, t: Tensor, a: Tensor) -> Tensor:
        options = {"grid_constructor": grid, "interp": interp}
        return qj.odeint(pendulum(a, a), y0, t, method=method, options=options, gradient=gradient)

    t = torch.tensor([0.1, 0.9, 1.7], dtype=DTYPE, requires_grad=True)
    assert gradcheck(solve, (leaf(0.7, -0.4), t, leaf(1.2)), atol=1e-7)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_gradcheck_of_complex_states(method: str) -> None:
    def solve(y0: Tensor, t: Tensor, c: Tensor) -> Tensor:
        return qj.odeint(
            lambda t, y: c * y * torch.exp(-y * y.conj()) + t,
            y0,
            t,
            method=method,
            options=steady(method),
            gradient="direct",
        )

    c = torch.tensor(-0.3 + 1.1j, dtype=torch.complex128, requires_grad=True)
    y0 = torch.tensor([0.4 - 0.2j, 0.1 + 0.7j], dtype=torch.complex128, requires_grad=True)
    assert gradcheck(solve, (y0, TIMES.clone().requires_grad_(), c), atol=1e-5)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_second_derivatives(method: str) -> None:
    def solve(y0: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return qj.odeint(pendulum(a, b), y0, TIMES[:2], method=method, options=steady(method), gradient="direct")

    assert gradgradcheck(solve, (leaf(0.7, -0.4), leaf(1.2), leaf(0.3)), atol=1e-6)


@pytest.mark.parametrize("name", problems.PROBLEMS)
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dopri8", "rk4", "implicit_adams"])
def test_gradients_of_closed_forms(method: str, name: str) -> None:
    problem = problems.PROBLEMS[name]()
    options = {} if method in ("dopri5", "tsit5", "dopri8") else {"step_size": 0.02}
    if method == "implicit_adams":
        options |= {"max_order": 6, "max_iters": 20}

    def solve(y0: problems.State, t: Tensor) -> problems.State:
        return qj.odeint(problem, y0, t, method=method, rtol=1e-9, atol=1e-9, gradient="direct", options=options)

    for t in (TIMES, TIMES.flip(0)):
        exact = problems.gradients(problem, problem.exact, t)
        assert problems.agree(problems.gradients(problem, solve, t), exact, 1e-5)


class Flow(nn.Module):
    """A linear flow with the logarithm of its density: (y A^T, -trace A), the trace found by autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = problems.Linear()
        self.y0 = (self.linear.y0, torch.zeros(3, dtype=DTYPE))

    def forward(self, t: Tensor, y: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = y[0]
        dz = self.linear(t, z) * torch.exp(-t)
        rows = [torch.autograd.grad(dz[:, i].sum(), z, create_graph=True)[0][:, i] for i in range(2)]
        return dz, -(rows[0] + rows[1])

    def exact(self, y0: tuple[Tensor, ...], t: Tensor) -> tuple[Tensor, ...]:
        clock = torch.exp(-t[0]) - torch.exp(-t)  # the integral of exp(-t)
        z = self.linear.exact(y0[0], clock)
        return z, y0[1] - clock[:, None] * torch.trace(self.linear.a)


class Hamiltonian(nn.Module):
    """H = p^2 / 2 + w^2 q^2 / 2 for a batch of (q, p); the equations of motion by autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.4, dtype=DTYPE))
        self.y0 = torch.tensor([[1.0, 0.3], [-0.2, 0.8], [0.5, 0.5]], dtype=DTYPE)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        energy = (y[:, 1] ** 2 + self.w**2 * y[:, 0] ** 2).sum() / 2
        (slope,) = torch.autograd.grad(energy, y, create_graph=True)
        return torch.stack([slope[:, 1], -slope[:, 0]], dim=1)

    def exact(self, y0: Tensor, t: Tensor) -> Tensor:
        angle = (self.w * (t - t[0])).reshape(-1, 1)
        q = y0[:, 0] * torch.cos(angle) + y0[:, 1] / self.w * torch.sin(angle)
        p = y0[:, 1] * torch.cos(angle) - y0[:, 0] * self.w * torch.sin(angle)
        return torch.stack([q, p], dim=-1)


class CarefulHamiltonian(Hamiltonian):
    """The same, written as one must for torchdiffeq: switches grad on and marks its input."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            return super().forward(t, y.requires_grad_(True))


EVERY_GRADIENT = [
    "direct",
    "gq",
    "gq-paper",
    "adjoint",
    "seminorm",
    "discrete",
    "auto",
    qj.DiscreteAdjoint(mode="joint"),
    qj.DiscreteAdjoint(mode="stacked"),
    qj.DiscreteAdjoint(keep="states", max_states=2),
    qj.GaussLegendre(rtol=1e-8),
]


@pytest.mark.filterwarnings("ignore:The dynamics .* cannot be evaluated as a stack:quadjoint.QuadjointWarning")
@pytest.mark.parametrize("gradient", EVERY_GRADIENT, ids=str)
@pytest.mark.parametrize("problem", [Flow, Hamiltonian, CarefulHamiltonian], ids=lambda c: c.__name__)
def test_dynamics_that_differentiate_by_themselves(problem: type[nn.Module], gradient: Any) -> None:
    f = problem()
    t = torch.tensor([0.1, 0.6, 1.4], dtype=DTYPE)

    def solve(y0: problems.State, t: Tensor) -> problems.State:
        return qj.odeint(f, y0, t, rtol=1e-9, atol=1e-9, gradient=gradient)

    exact = f.exact(f.y0, t)
    with torch.no_grad():
        assert problems.error(solve(f.y0, t), exact) < 1e-7
    tolerance = 1e-2 if gradient == "gq-paper" else 1e-5  # one node in ten evaluations is what the paper takes
    assert problems.agree(problems.gradients(f, solve, t), problems.gradients(f, f.exact, t), tolerance)


def test_dynamics_that_differentiate_with_frozen_parameters() -> None:
    """Nothing requires grad but the input that is made for the dynamics."""
    f = Hamiltonian().eval().requires_grad_(False)
    t = torch.tensor([0.0, 1.0], dtype=DTYPE)
    ys = qj.odeint(f, f.y0, t, rtol=1e-8, atol=1e-8)
    assert problems.error(ys, f.exact(f.y0, t)) < 1e-6


def test_nothing_is_recorded_without_grad() -> None:
    f = Hamiltonian()
    sol = qj.solve(f, f.y0, TIMES, gradient="discrete")
    assert sol.ys.requires_grad
    with torch.no_grad():
        assert not qj.odeint(f, f.y0, TIMES, gradient="direct").requires_grad


def test_dynamics_that_differentiate_are_not_recorded_for_nothing() -> None:
    """With frozen parameters the result depends on nothing; with others it does, also where those come in late."""
    f = Hamiltonian().requires_grad_(False)
    assert not qj.odeint(f, f.y0, TIMES, gradient="direct").requires_grad
    f.w.requires_grad_()
    assert qj.odeint(f, f.y0, TIMES, gradient="direct").requires_grad
    late = leaf(0.5)

    def dynamics(t: Tensor, y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad((y**2).sum(), y, create_graph=True)
        return -slope * (late if t > 0.5 else 1.0)

    ys = qj.odeint(
        dynamics, f.y0, TIMES, gradient="direct", options={"jump_t": TIMES.new_tensor([0.5])}, rtol=1e-8, atol=1e-8
    )
    (found,) = torch.autograd.grad(ys[-1].sum(), late)
    assert torch.allclose(found, -2 * 0.47 * ys[-1].detach().sum(), rtol=1e-6)
