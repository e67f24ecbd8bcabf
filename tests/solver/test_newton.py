"""Newton's iteration: which Jacobians and linear solvers it uses, what a user may give, and what failing ones say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import quadjoint as qj
from quadjoint.solver.methods import jacobian

DTYPE = torch.float64
T = torch.tensor([0.0, 0.3], dtype=DTYPE)


def reaction(t: Tensor, y: Tensor) -> Tensor:
    """Every sample by itself, stiff."""
    a, b = y.unbind(-1)
    return torch.stack([-100.0 * a + b * b, a - b - 0.1 * torch.sin(t) * b], dim=-1)


def diffusion(t: Tensor, y: Tensor) -> Tensor:
    """A line of numbers, each of which depends on its neighbours."""
    return 400.0 * (torch.roll(y, 1) - 2.0 * y + torch.roll(y, -1)) - y**3


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("solver", ["auto", "batched", "dense", "krylov"])
@pytest.mark.parametrize("name", ["kvaerno5", "radauIIA5"])
def test_linear_solvers_agree(name: str, solver: str) -> None:
    y0 = torch.tensor([[1.0, 0.5], [0.2, 2.0], [-1.0, 0.1]], dtype=DTYPE)
    settings: dict[str, Any] = {"method": name, "rtol": 1e-8, "atol": 1e-10}
    with torch.no_grad():
        expected = qj.odeint(reaction, y0, T, **settings)
        found = qj.odeint(reaction, y0, T, options={"linear_solver": solver}, **settings)
    assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_rows_that_depend_on_each_other_are_noticed() -> None:
    """Jacobians of every row alone would be wrong here; the solve agrees with the one of the state as a whole."""
    y0 = torch.cos(torch.arange(12, dtype=DTYPE)).reshape(4, 3)

    def mixed(t: Tensor, y: Tensor) -> Tensor:
        return -50.0 * (y - y.mean(0)) - y**3

    with torch.no_grad():
        found = qj.solve(mixed, y0, T, method="kvaerno5", rtol=1e-7, atol=1e-9)
        whole = qj.solve(
            lambda t, y: mixed(t, y.view(4, 3)).view(-1), y0.view(-1), T, method="kvaerno5", rtol=1e-7, atol=1e-9
        )
    assert torch.allclose(found.ys.view(2, -1), whole.ys, rtol=1e-12)
    assert found.stats.accepted_steps == whole.stats.accepted_steps


@pytest.mark.parametrize("name", ["kvaerno5", "radauIIA5"])
def test_nothing_quadratic_is_made_of_a_large_state(name: str) -> None:
    """Of 4096 numbers a matrix would have 16 million; the Krylov spaces stay far below."""
    n = 4096
    y0 = torch.sin(torch.linspace(0.0, 40.0, n, dtype=DTYPE))
    t = torch.tensor([0.0, 0.01], dtype=DTYPE)
    with torch.no_grad(), Largest() as watch:
        y = qj.odeint(diffusion, y0, t, method=name, rtol=1e-4, atol=1e-5)[-1]
    assert watch.largest < 400 * n
    with torch.no_grad():
        exact = qj.odeint(diffusion, y0, t, method="dopri5", rtol=1e-8, atol=1e-9)[-1]
    assert torch.allclose(y, exact, atol=1e-4)


def test_a_jacobian_of_the_users() -> None:
    """For every sample, or for the state as a whole; it replaces autograd's."""
    y0 = torch.tensor([[1.0, 0.5], [0.2, 2.0]], dtype=DTYPE)
    calls = []

    def matrix(t: Tensor, y: Tensor) -> Tensor:
        calls.append(float(t))
        out = torch.zeros(*y.shape, 2, dtype=y.dtype)
        out[:, 0, 0], out[:, 0, 1] = -100.0, 2.0 * y[:, 1]
        out[:, 1, 0], out[:, 1, 1] = 1.0, -1.0 - 0.1 * torch.sin(t)
        return out

    def opaque(t: Tensor, y: Tensor) -> Tensor:
        return torch.as_tensor(reaction(t, y).numpy())  # autograd does not see through it

    settings: dict[str, Any] = {"method": "kvaerno5", "rtol": 1e-8, "atol": 1e-10}
    with torch.no_grad():
        expected = qj.odeint(reaction, y0, T, **settings)
        found = qj.odeint(opaque, y0, T, options={"jacobian": matrix}, **settings)
        whole = qj.odeint(
            reaction, y0, T, options={"jacobian": lambda t, y: torch.block_diag(*matrix(t, y))}, **settings
        )
    assert calls and torch.allclose(found, expected, rtol=1e-7) and torch.allclose(whole, expected, rtol=1e-7)


def test_a_linear_solver_of_the_users() -> None:
    """It is given v -> (I - h A (x) J) v and a right-hand side."""
    calls = []

    def solve(apply: Any, r: Tensor) -> Tensor:
        calls.append(r.shape)
        unit = torch.eye(r.numel(), dtype=r.dtype)
        matrix = torch.stack([apply(e.reshape(r.shape)).reshape(-1) for e in unit], dim=1)
        return torch.linalg.solve(matrix, r.reshape(-1)).reshape(r.shape)

    y0 = torch.tensor([[1.0, 0.5]], dtype=DTYPE)
    with torch.no_grad():
        expected = qj.odeint(reaction, y0, T, method="kvaerno3", rtol=1e-6)
        found = qj.odeint(reaction, y0, T, method="kvaerno3", rtol=1e-6, options={"linear_solver": solve})
    assert calls and torch.allclose(found, expected, rtol=1e-5)


def test_jacobians_and_factors_are_reused() -> None:
    """Of a linear problem, one Jacobian and few evaluations a stage are enough."""
    calls = []

    def matrix(t: Tensor, y: Tensor) -> Tensor:
        calls.append(t)
        return torch.full((1, 1, 1), -1000.0, dtype=DTYPE)

    with torch.no_grad():
        sol = qj.solve(
            lambda t, y: -1000.0 * (y - torch.cos(t)),
            torch.ones(1, 1, dtype=DTYPE),
            torch.tensor([0.0, 10.0], dtype=DTYPE),
            method="kvaerno5",
            rtol=1e-6,
            options={"jacobian": matrix},
        )
    assert len(calls) == 1
    assert sol.stats.forward_evaluations < 14 * (sol.stats.accepted_steps + sol.stats.rejected_steps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_across_a_kink_are_solved_to_rounding(dtype: torch.dtype) -> None:
    """f is linear on both sides, so that one iteration is enough in all steps but the one across."""
    h, y = 0.01, 0.503
    y0, t = torch.tensor([y], dtype=dtype), h * torch.arange(201, dtype=DTYPE)
    with torch.no_grad():
        found = qj.odeint(lambda t, y: -1.0 - 10.0 * torch.relu(y), y0, t, method="implicit_euler")
    for state in found[1:]:
        y = (y - h) / (1.0 + 10.0 * h) if y > h else y - h
        assert float(state) == pytest.approx(y, abs=64 * torch.finfo(dtype).eps)


def test_a_failing_iteration_on_a_grid_says_where_and_what_to_do() -> None:
    with pytest.raises(qj.SolveError, match=r"did not converge at t = 0 .*still change by .*step_size.*'kvaerno5'"):
        qj.odeint(
            lambda t, y: torch.where(y > 0.0, -torch.ones_like(y), torch.ones_like(y)),
            torch.ones(1, 1, dtype=DTYPE) * 0.3,
            torch.tensor([0.0, 1.0], dtype=DTYPE),
            method="implicit_euler",
        )


def test_a_failing_iteration_shortens_an_adaptive_step() -> None:
    """The first step is far too long for Newton's iteration to converge; the solve goes on with shorter ones."""
    t = torch.tensor([0.0, 1.0], dtype=DTYPE)
    with torch.no_grad():
        sol = qj.solve(
            lambda t, y: 20.0 * torch.sin(20.0 * y),
            torch.full((1, 1), 0.1, dtype=DTYPE),
            t,
            method="kvaerno5",
            rtol=1e-6,
            options={"first_step": 1.0},
        )
    assert sol.stats.rejected_steps > 0
    assert float(sol.ys[-1]) == pytest.approx(torch.pi / 20.0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_iters": 0}, ValueError, "max_iters.*whole number from 1 on"),
        ({"jacobian": 3}, TypeError, "callable as jacobian"),
        ({"linear_solver": "krilov"}, ValueError, "linear_solver.*'krylov'"),
        ({"jacobian": lambda t, y: torch.zeros(3)}, ValueError, r"shape \(3,\).*\(1, 2, 2\).*\(2, 2\)"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        qj.odeint(reaction, torch.ones(1, 2, dtype=DTYPE), T, method="kvaerno5", options=options)


def test_functions_that_autograd_cannot_differentiate_are_refused_in_words() -> None:
    def numpy(t: Tensor, y: Tensor) -> Tensor:
        return torch.as_tensor(-y.numpy())

    with torch.no_grad(), pytest.raises(qj.SolveError, match=r"autograd refuses.*options\['jacobian'\]"):
        qj.odeint(numpy, torch.ones(1, 2, dtype=DTYPE), T, method="kvaerno5")


@pytest.mark.parametrize("independent", [False, True])
def test_a_step_is_factorised_once(monkeypatch: pytest.MonkeyPatch, independent: bool) -> None:
    """The stages of a diagonally implicit method and the filter of its error share their matrix."""
    calls = []
    original = jacobian.factorize
    monkeypatch.setattr(jacobian, "factorize", lambda *args: calls.append(args[0]) or original(*args))
    y0 = torch.tensor([[1.0, 0.5], [0.2, 2.0]], dtype=DTYPE)
    settings: dict[str, Any] = {"method": "kvaerno5", "rtol": 1e-6, "independent": independent}
    with torch.no_grad():
        stats = qj.solve(lambda t, y: reaction(t.new_zeros(()), y), y0, T, **settings).stats
    steps = torch.as_tensor(stats.accepted_steps) + torch.as_tensor(stats.rejected_steps)
    assert 0 < len(calls) <= int(steps.max()) + 2


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("method", ["trbdf2", "kvaerno3", "kvaerno5", "radauIIA5"])
def test_a_state_of_one_complex_number(method: str, shape: tuple[int, ...]) -> None:
    """y' = i y turns it once around zero."""
    y0 = torch.ones(shape, dtype=torch.complex128)
    t = torch.tensor([0.0, 2.0 * math.pi], dtype=torch.float64)
    with torch.no_grad():
        y = qj.odeint(lambda t, y: 1j * y, y0, t, method=method, rtol=1e-5, atol=1e-5)[-1]
    torch.testing.assert_close(y, y0, rtol=0.0, atol=1e-2)
