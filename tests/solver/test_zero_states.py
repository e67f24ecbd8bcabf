"""Implicit steps from a state of zero, beside one, and towards one: stages have no scale but their own.

All implicit methods take the steps of a grid here, whose stages are found to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj

IMPLICIT = [name for name, tableau in qj.TABLEAUS.items() if not tableau.explicit and not name.startswith("my_")]
ADAPTIVE = ["trbdf2", "kvaerno3", "kvaerno5", "radauIIA5"]
DTYPES = [torch.float64, torch.float32]
GRID: dict[str, Any] = {"options": {"step_size": 0.125}}


def forced(t: Tensor, y: Tensor) -> Tensor:
    """Its solution from zero is (cos t + sin t - exp(-t)) / 2."""
    return torch.cos(t) - y


def grows(t: Tensor, y: Tensor) -> Tensor:
    """Its solution from zero is tan(t)."""
    return 1.0 + y * y


def end(f: Callable[[Tensor, Tensor], Tensor], y0: Tensor, name: str, *, until: float = 1.0, **settings: Any) -> Tensor:
    t = torch.tensor([0.0, until], dtype=y0.dtype.to_real())
    with torch.no_grad():
        return qj.odeint(f, y0, t, method=name, **{**GRID, **settings})[-1]


def rounding(dtype: torch.dtype) -> dict[str, float]:
    eps = torch.finfo(dtype).eps
    return {"rtol": 256 * eps, "atol": 256 * eps}


@pytest.mark.parametrize("f", [forced, grows])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_the_origin_of_the_state_makes_no_difference(name: str, dtype: torch.dtype, f: Any) -> None:
    """u = y + 1 has the same steps, moved by one."""
    zero = torch.zeros(1, dtype=dtype)
    moved = end(lambda t, u: f(t, u - 1.0), zero + 1.0, name) - 1.0
    torch.testing.assert_close(end(f, zero, name), moved, **rounding(dtype))


@pytest.mark.parametrize("name", IMPLICIT)
def test_solutions_from_zero_are_the_known_ones(name: str) -> None:
    zero, t = torch.zeros(1, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    for f, exact in ((forced, 0.5 * (torch.cos(t) + torch.sin(t) - torch.exp(-t))), (grows, torch.tan(t))):
        found = end(f, zero, name, until=0.5, options={"step_size": 1.0 / 64})
        torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-2 if name == "implicit_euler" else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_one_step_across_the_whole_interval(name: str, dtype: torch.dtype) -> None:
    """The stability function and its forcing: with f = a - y the step is a (1 - R(-1)), whatever a is."""
    for size in (1.0, 1e-6, 1e6):
        found = end(lambda t, y, a=size: a - y, torch.zeros(1, dtype=dtype), name, options={"step_size": 1.0})
        expected = size * (1.0 - qj.TABLEAUS[name].stability(-1.0).real)
        assert float(found) == pytest.approx(expected, rel=32 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_from_zero_to_an_equilibrium(dtype: torch.dtype) -> None:
    """The trapezoidal rule has R(-2) = 0. Half of the step leads there already, and its rounding is all there is."""
    for n in range(12):
        rate, goal = 3.0 + 0.1 * n, 1e6 * (1.0 + 0.37 * n)
        zero, h = torch.zeros(1, dtype=dtype), 2.0 / rate
        with torch.no_grad():
            t = torch.tensor([0.0, h], dtype=torch.float64)
            found = qj.odeint(lambda t, y, k=rate, m=goal: -k * (y - m), zero, t, method="trapezoid")[-1]
        torch.testing.assert_close(found, torch.full_like(zero, goal), **rounding(dtype))


@pytest.mark.parametrize("f", [forced, grows])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_a_row_of_zeros_beside_ordinary_rows(name: str, dtype: torch.dtype, f: Any) -> None:
    y0 = torch.tensor([[0.5, -0.3], [0.0, 0.0], [-1.0, 0.0]], dtype=dtype)
    alone = torch.cat([end(f, row[None], name, until=0.5) for row in y0])
    torch.testing.assert_close(end(f, y0, name, until=0.5), alone, **rounding(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_what_stays_zero_is_exactly_zero(name: str, dtype: torch.dtype) -> None:
    y0 = torch.tensor([[0.0, 0.0], [1.0, 0.5]], dtype=dtype)
    found = end(lambda t, y: -y - y * y, y0, name)
    assert torch.equal(found[0], torch.zeros(2, dtype=dtype))
    assert torch.equal(end(lambda t, y: -y - y * y, y0[:1], name), found[:1])


@pytest.mark.parametrize("name", IMPLICIT)
def test_complex_states_and_several_tensors(name: str) -> None:
    zero = torch.zeros(2, dtype=torch.complex128)
    found = end(lambda t, y: 1.0 - 1j * y, zero, name, options={"step_size": 1.0})
    expected = -1j * (1.0 - qj.TABLEAUS[name].stability(-1j))
    torch.testing.assert_close(found, torch.full_like(zero, complex(expected)), **rounding(torch.float64))
    pair = (torch.zeros(1, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64))
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    with torch.no_grad():
        a, b = qj.odeint(lambda t, y: (forced(t, y[0]), grows(t, y[1])), pair, t, method=name, **GRID)
    torch.testing.assert_close(a[-1], end(forced, pair[0], name), **rounding(torch.float64))
    torch.testing.assert_close(b[-1], end(grows, pair[1], name), **rounding(torch.float64))


# States that settle at zero -------------------------------------------------------------------------------------------


def difference(t: Tensor, y: Tensor) -> Tensor:
    """Settles at zero, where it is a difference of numbers that are not: its rounding exceeds the state."""
    return 3.0 * (torch.tanh(0.7 - y) - torch.tanh(torch.full_like(y, 0.7)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_an_equilibrium_at_zero_is_found_to_the_rounding_of_f(name: str, dtype: torch.dtype) -> None:
    for start in (1.0, 0.0):
        found = end(difference, torch.full((1,), start, dtype=dtype), name, until=32.0, options={"step_size": 0.5})
        assert float(found.abs()) < 4.0 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_rows_beside_one_at_rest_are_found_to_their_own_rounding(name: str, dtype: torch.dtype) -> None:
    """Their changes are what counts, once those of the row at rest do not get any smaller."""
    rate = torch.tensor([[1.0], [0.0]], dtype=dtype)

    def f(t: Tensor, y: Tensor, rate: Tensor = rate) -> Tensor:
        return rate * (0.1 * 3 - (y + 0.3)) + (1.0 - rate) * (torch.cos(3.0 * t) - y**3)

    y0 = torch.tensor([[0.0], [1.5]], dtype=dtype)
    alone = end(lambda t, y: f(t, y, rate[1:]), y0[1:], name)
    torch.testing.assert_close(end(f, y0, name)[1:], alone, **rounding(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IMPLICIT)
def test_the_unit_of_the_state_makes_no_difference(name: str, dtype: torch.dtype) -> None:
    """States far below atol are found to their own rounding as well."""
    y0, unit = torch.tensor([[0.5, -0.3], [1.2, 0.0]], dtype=dtype), 2.0**-40
    found = end(lambda t, y: unit * (torch.cos(t) - torch.sinh(y / unit)), unit * y0, name)
    torch.testing.assert_close(
        found / unit, end(lambda t, y: torch.cos(t) - torch.sinh(y), y0, name), rtol=0.0, atol=0.0
    )


def test_atol_bounds_what_is_taken_for_rounding() -> None:
    """Jumps of f by 1e-15 are rounding, unless atol says that so much counts."""

    def jumps(t: Tensor, y: Tensor) -> Tensor:
        return torch.where(y > 0.3e-15, -1e-15, 1e-15).to(y) + 0.0 * y

    zero = torch.zeros(1, dtype=torch.float64)
    assert float(end(jumps, zero, "implicit_euler").abs()) < 1e-14
    with pytest.raises(qj.SolveError, match="did not converge"):
        end(jumps, zero, "implicit_euler", atol=1e-20)


# Steps that are chosen, and gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [forced, grows])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_samples_that_begin_at_zero_with_steps_of_their_own(name: str, dtype: torch.dtype, f: Any) -> None:
    y0 = torch.tensor([[0.0], [0.2], [0.0]], dtype=dtype)
    settings: dict[str, Any] = {"options": None, "rtol": 1e-5, "atol": 1e-6}
    own, shared = (end(f, y0, name, independent=independent, **settings) for independent in (True, False))
    exact = end(f, y0.double(), "kvaerno5", options=None, rtol=1e-8, atol=1e-9).to(dtype)
    torch.testing.assert_close(own, exact, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(shared, exact, rtol=1e-3, atol=1e-4)
    still = end(lambda t, y: -y, torch.zeros(2, 1, dtype=dtype), name, independent=True, **settings)
    assert torch.equal(still, torch.zeros_like(still))


@pytest.mark.parametrize("name", IMPLICIT)
def test_gradients_from_zero(name: str) -> None:
    """Of the steps, by central differences; and that of the ODE, to the error of the steps."""
    w = torch.tensor([0.7, -0.4], dtype=torch.float64)
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)

    def loss(w: Tensor, start: Tensor, gradient: str) -> Tensor:
        f = lambda t, y: torch.cos(w[0] * t) - w[1] * y - torch.sin(w[0] * y)  # noqa: E731
        options = {"step_size": 1.0 / 32 if gradient == "gq" else 0.25}
        y0 = torch.stack([torch.zeros_like(start), start]).reshape(2, 1)
        return qj.odeint(f, y0, t, method=name, gradient=gradient, options=options)[-1].square().sum()

    found = {}
    for gradient in ("direct", "discrete", "gq"):
        leaves = [w.clone().requires_grad_(), torch.zeros((), dtype=torch.float64, requires_grad=True)]
        found[gradient] = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(*leaves, gradient), leaves)])
    torch.testing.assert_close(found["direct"], found["discrete"], rtol=1e-11, atol=1e-12)
    point, eps, slopes = torch.cat([w, torch.zeros(1, dtype=torch.float64)]), 1e-5, []
    with torch.no_grad():
        for unit in torch.eye(3, dtype=torch.float64):
            up, down = (loss(x[:2], x[2], "direct") for x in (point + eps * unit, point - eps * unit))
            slopes.append((up - down) / (2 * eps))
    torch.testing.assert_close(found["discrete"], torch.stack(slopes), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        found["gq"], found["discrete"], rtol=0.3 if name == "implicit_euler" else 0.02, atol=2e-3
    )
