"""gq: Gauss-Legendre collocation on the steps of the forward solve."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

import quadjoint as qj
from gradient.helpers import TIGHT, Driven, LiveMemory, Network, flat, gradients, loss, normal, relative, times
from quadjoint.gradient.collocation.rule import collocation_rule

DENSE, ITERATED = qj.GaussLegendre(solve="dense"), qj.GaussLegendre(solve="iterate")
T = torch.linspace(0.0, 2.0, 12, dtype=torch.float64)


# The rule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1, 2, 3, 5, 8])
def test_the_rule_integrates_polynomials_up_to_every_point(q: int) -> None:
    """b_j(s) is exact for degree q - 1 up to any s, and b_j for degree 2 q - 1 up to 1."""
    rule, s = collocation_rule(q), np.linspace(0.0, 1.0, 7)
    for degree in range(q):
        values = rule.c**degree
        assert np.allclose(rule.integrals(s) @ values, s ** (degree + 1) / (degree + 1), atol=1e-14)
        assert np.allclose(rule.basis(s - 0.5) @ values, (s - 0.5) ** degree, atol=1e-11)
    for degree in range(2 * q):
        assert rule.b @ rule.c**degree == pytest.approx(1.0 / (degree + 1), abs=1e-14)
    assert np.allclose(rule.a, rule.integrals(rule.c))


# The equations --------------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    """dx_1/dt = w, dx_2/dt = w x_1, dx_3/dt = w x_2: linear dynamics with polynomials as solutions."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.w * torch.cat([torch.ones_like(y[..., :1]), y[..., :2]], dim=-1)


@pytest.mark.parametrize("how", [DENSE, ITERATED])
def test_polynomial_solutions_of_linear_dynamics_have_exact_gradients(how: qj.Gradient) -> None:
    """x_3(t) = (w t)^3 / 6 from zero, hence the sum over observations has the derivative sum t^3 w^2 / 2 in w."""
    f = Chain()
    ys = qj.odeint(f, torch.zeros(2, 3, dtype=torch.float64), T, gradient=how, rtol=1e-10, atol=1e-10)
    (found,) = torch.autograd.grad(ys[..., 2].sum(), f.w)
    assert float(found) == pytest.approx(float(2 * (T**3).sum() * 0.7**2 / 2), rel=1e-10)


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "dopri8", "rk4"])
@pytest.mark.parametrize("t", [T, T.flip(0), T[[0, -1]]])
def test_both_ways_of_solving_give_the_same(t: Tensor, method: str) -> None:
    f, y0 = Driven(3, 8, 2.0), normal(4, 3)
    options = {"options": {"step_size": 0.1}} if method == "rk4" else {}
    dense, iterated = (gradients(f, y0, t, how, method=method, **TIGHT, **options) for how in (DENSE, ITERATED))
    assert relative(iterated, dense) < 1e-8


def test_stiff_panels_are_solved_by_a_krylov_method_or_halved() -> None:
    """With steps at the limit of stability the plain iteration does not contract."""
    rates = torch.tensor([1.0, 60.0, 600.0], dtype=torch.float64, requires_grad=True)
    y0, t = torch.ones(2, 3, dtype=torch.float64), times(0.0, 0.5, 1.0)

    def found(how: qj.Gradient) -> Tensor:
        ys = qj.odeint(lambda t, y: -rates * (y - torch.cos(t)), y0, t, gradient=how, rtol=1e-4, atol=1e-4)
        return torch.autograd.grad(ys.sum(), rates)[0]

    assert relative([found(ITERATED)], [found(DENSE)]) < 1e-3


RATES = torch.tensor([0.05, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("grid", [(0.996,), (0.9, 0.97, 0.999), (0.5, 0.5004, 0.98)])
def test_a_short_step_says_nothing_of_the_contraction_in_a_long_one(grid: tuple[float, ...]) -> None:
    """Decay by two rates, whatever the lengths of neighbouring steps."""
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    options = {"first_step": grid[0], "step_t": list(grid)}

    def slope(how: qj.Gradient) -> Tensor:
        ys = qj.odeint(lambda t, y: -RATES * y, y0, times(0.0, 1.0), gradient=how, options=options)
        return torch.autograd.grad(ys[-1].sum(), y0)[0]

    assert relative([slope(ITERATED)], [torch.exp(-RATES)]) < 2e-3
    assert relative([slope(ITERATED)], [slope(DENSE)]) < 1e-4


def test_panels_of_samples_with_steps_of_their_own_are_iterated_to_the_end() -> None:
    """Both clocks run from n to n + 1 in every step, so nothing but the equations themselves shows how slowly they
    are solved."""
    y0 = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    options = {"first_step": 0.996}

    t = times(0.0, 1.0)
    ys = qj.odeint(lambda t, y: -RATES * y, y0, t, gradient=ITERATED, options=options, independent=True)
    (slope,) = torch.autograd.grad(ys[-1].sum(), y0)
    assert relative([slope], [torch.exp(-RATES).expand(2, 2)]) < 2e-3


def test_a_step_in_which_the_jacobian_grows_is_solved_as_the_others() -> None:
    """Steps of one length on both sides of a time until which the dynamics are a thousand times faster."""
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    options = {"first_step": 0.5, "step_t": [0.5]}

    def f(t: Tensor, y: Tensor) -> Tensor:
        return -torch.where(t < 0.5, 2.0, 2e-3) * RATES * y

    def slope(how: qj.Gradient) -> Tensor:
        ys = qj.odeint(f, y0, times(0.0, 1.0), gradient=how, options=options)
        return torch.autograd.grad(ys[-1].sum(), y0)[0]

    assert relative([slope(ITERATED)], [slope(DENSE)]) < 1e-4


def test_stiff_complex_dynamics_that_are_not_holomorphic_need_no_shorter_panels() -> None:
    """dz/dt = -100 Re z - 10 i Im z: a Krylov method solves what the plain iteration does not."""
    y0 = torch.tensor([1.0 + 1.0j, 0.5 - 0.3j], dtype=torch.complex128, requires_grad=True)
    found, nodes = [], []
    for how in (ITERATED, "discrete"):
        sol = qj.solve(
            lambda t, z: -100.0 * torch.complex(z.real, 0.1 * z.imag),
            y0,
            times(0.0, 0.1, 1.0),
            gradient=how,
            rtol=1e-6,
            atol=1e-6,
        )
        found.append(torch.autograd.grad(sol.ys.abs().square().sum(), y0)[0])
        nodes.append(sol.stats.quadrature_nodes / sol.stats.accepted_steps)
    assert relative([torch.view_as_real(found[0])], [torch.view_as_real(found[1])]) < 1e-4
    assert nodes[0] <= 4


def test_dense_systems_of_coupled_samples_are_noticed_and_solved_by_products() -> None:
    class Coupled(Network):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y - y.mean(0))

    f, y0 = Coupled(), normal(6, 3)
    assert relative(gradients(f, y0, T, DENSE, **TIGHT), gradients(f, y0, T, ITERATED, **TIGHT)) < 1e-12


def test_samples_whose_terms_cancel_are_no_sign_of_coupling() -> None:
    """a y - b y with a = b up to rounding: its small Jacobian is as inexact as those of its terms."""
    rates = torch.linspace(0.2, 2.0, 32)
    rates[7] = 1.0 + 3e-7
    w = rates.clone().requires_grad_()
    y0 = torch.linspace(0.5, 1.5, 32)[:, None]

    def f(t: Tensor, y: Tensor) -> Tensor:
        return w[:, None] * y * (1.0 + 0.1 * t) - y - 0.1 * t * y

    found = {}
    for how in (qj.GaussLegendre(solve="dense"), qj.GaussLegendre(solve="iterate")):
        sol = qj.solve(f, y0, torch.tensor([0.0, 0.7, 1.0]), gradient=how, rtol=1e-5, params=[w])
        (found[how.solve],) = torch.autograd.grad(sol.ys[1:].square().sum(), w)
        assert how.solve == "iterate" or "small systems, solved at once" in sol.stats.reason
    torch.testing.assert_close(found["dense"], found["iterate"], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The dynamics:quadjoint.QuadjointWarning")
def test_dynamics_that_vmap_cannot_stack() -> None:
    class Unstackable(Driven):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return super().forward(t, y) if float(y.detach().sum()) < math.inf else y

    f, y0 = Unstackable(), normal(4, 3)
    reference = gradients(Driven(), y0, T, "gq", **TIGHT)
    for how in (DENSE, ITERATED):
        assert relative(gradients(f, y0, T, how, **TIGHT), reference) < 1e-8


# Accuracy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3", "dopri8"])
@pytest.mark.parametrize("t", [T, T[[0, -1]]])
def test_the_error_falls_with_the_tolerance(method: str, t: Tensor) -> None:
    """As fast as that of direct, and it is no larger than a few times the error of direct."""
    f, y0 = Driven(3, 8, 2.0), normal(4, 3)
    exact = gradients(f, y0, t, "discrete", method="dopri8", rtol=1e-13, atol=1e-13)
    tolerances = (1e-3, 1e-5, 1e-7, 1e-9) if method != "bosh3" else (1e-3, 1e-5, 1e-7)
    errors = {
        how: [relative(gradients(f, y0, t, how, method=method, rtol=tol, atol=tol), exact) for tol in tolerances]
        for how in ("gq", "direct")
    }
    assert all(error < 3 * other + 1e-11 for error, other in zip(errors["gq"], errors["direct"], strict=True))
    assert errors["gq"][-1] < 1e-3 * errors["gq"][0]


@pytest.mark.parametrize("factor", [1e-9, 1e9])
@pytest.mark.parametrize("how", [DENSE, ITERATED])
def test_the_scale_of_the_loss_does_not_matter(how: qj.Gradient, factor: float) -> None:
    f, y0 = Driven(), normal(4, 3)
    scaled = gradients(f, y0, T, how, loss=lambda ys: factor * loss(ys))
    assert relative([g / factor for g in scaled], gradients(f, y0, T, how)) < 1e-12


def parameter_gradient(how: qj.Gradient, f: Network, **settings: Any) -> tuple[Tensor, qj.Stats]:
    sol = qj.solve(f, normal(4, 3), T, gradient=how, **{"rtol": 1e-3, "atol": 1e-3, **settings})
    return flat(torch.autograd.grad(loss(sol.ys), list(f.parameters()))), sol.stats


@pytest.mark.parametrize("solve", ["dense", "iterate"])
@pytest.mark.parametrize("rtol", [1e-2, 1e-4, 1e-6, 1e-8])
def test_a_tolerance_that_is_asked_for_is_met_and_the_error_reported(rtol: float, solve: str) -> None:
    """Within a factor of ten of the true distance from many nodes, as far as the rounding of the estimate allows."""
    f = Driven(3, 8, 2.0)
    fine, _ = parameter_gradient(qj.GaussLegendre(nodes=16, solve="dense"), f)
    found, stats = parameter_gradient(qj.GaussLegendre(rtol=rtol, solve=solve), f)
    true_error = float((found - fine).norm() / fine.norm())
    assert stats.gradient_error is not None
    assert true_error < rtol
    assert stats.gradient_error < rtol
    assert true_error < 10 * stats.gradient_error + 1e-12


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_the_free_estimate_of_the_error_is_right_to_a_power_of_ten(nodes: int, seed: int) -> None:
    """Against many nodes on the same steps, without observations inside of them."""
    torch.manual_seed(seed)
    f, y0, t = Driven(3, 8, 2.0), normal(4, 3, seed=seed), T[[0, -1]]

    def adjoint(count: int) -> tuple[Tensor, float | None]:
        start = y0.clone().requires_grad_()
        sol = qj.solve(f, start, t, gradient=qj.GaussLegendre(nodes=count, solve="dense"), rtol=1e-3, atol=1e-3)
        (found,) = torch.autograd.grad(loss(sol.ys), start)
        return found, sol.stats.gradient_error

    fine, _ = adjoint(12)
    found, estimate = adjoint(nodes)
    true_error = float((found - fine).norm() / fine.norm())
    assert estimate is not None and 0.1 * true_error < estimate < 10 * true_error


def test_a_tolerance_that_is_missed_is_said() -> None:
    f = Network().float()
    sol = qj.solve(f, normal(4, 3).float(), T.float(), gradient=qj.GaussLegendre(rtol=1e-12))
    with pytest.warns(qj.QuadjointWarning, match="more than the rtol"):
        loss(sol.ys).backward()
    assert sol.stats.gradient_error is not None and 1e-12 < sol.stats.gradient_error < 1e-4


# Cost -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [DENSE, ITERATED])
def test_observations_cost_no_nodes(how: qj.Gradient) -> None:
    f, figures = Driven(), []
    for count in (2, 200):
        t = torch.linspace(0.0, 2.0, count, dtype=torch.float64)
        sol = qj.solve(f, normal(4, 3), t, gradient=how, rtol=1e-5, atol=1e-5)
        loss(sol.ys).backward()
        figures.append((sol.stats.accepted_steps, sol.stats.quadrature_nodes, sol.stats.backward_evaluations))
    assert figures[0] == figures[1]
    steps, nodes, evaluations = figures[0]
    assert nodes == 3 * steps and evaluations == nodes + 2  # f is held against stages at both ends


def test_checkpoints_give_the_same_gradient_in_memory_that_does_not_grow() -> None:
    f, y0 = Driven(3, 8, 3.0), normal(256, 3)
    peaks = {}
    for max_states in (None, 3):
        how = qj.GaussLegendre(max_states=max_states, chunk=0)
        for length in (1.0, 6.0):
            with LiveMemory() as memory:
                found = gradients(f, y0, times(0.0, length), how, rtol=1e-6, atol=1e-6)
            peaks[max_states, length] = memory.peak
        if max_states is None:
            wanted = found
        else:
            assert relative(found, wanted) < 1e-12
    assert peaks[3, 6.0] < 1.2 * peaks[3, 1.0]
    assert peaks[None, 6.0] > 1.5 * peaks[3, 6.0]


# Every forward solve --------------------------------------------------------------------------------------------------


def robertson(y: Any, k: Any) -> list[Any]:
    first, second, third = k[0] * y[0], k[1] * y[1] * y[1], k[2] * y[1] * y[2]
    return [third - first, first - second - third, second]


def van_der_pol(y: Any, k: Any) -> list[Any]:
    return [y[1], k[0] * (1.0 - y[0] ** 2) * y[1] - y[0]]


@dataclass(frozen=True)
class Stiff:
    """Equations with rates, and a linear loss of the states at two times."""

    equations: Callable[[Any, Any], list[Any]]
    rates: tuple[float, ...]
    start: tuple[float, ...]
    t: tuple[float, float]
    weights: tuple[float, ...]

    def gradient(self, rtol: float, atol: float) -> Tensor:
        """In factors on the rates, by SciPy's Radau and gq."""
        scale = torch.ones(len(self.rates), dtype=torch.float64, requires_grad=True)
        rates, start = (torch.tensor(x, dtype=torch.float64) for x in (self.rates, self.start))
        ys = qj.odeint(
            lambda t, y: torch.stack(self.equations(y, rates * scale)),
            start,
            times(0.0, *self.t),
            method="scipy_solver",
            gradient="gq",
            rtol=rtol,
            atol=atol,
            options={"solver": "Radau"},
        )
        value = (ys[1:] * torch.tensor(self.weights, dtype=torch.float64)).sum()
        return torch.autograd.grad(value, scale)[0]

    def slopes(self, h: float) -> list[float]:
        """Central differences of solves to 1e-12 in numpy."""

        def value(i: int, shift: float) -> float:
            k = [r * (1.0 + shift * (i == n)) for n, r in enumerate(self.rates)]
            solved = solve_ivp(
                lambda t, y: self.equations(y, k), (0.0, self.t[1]), self.start, "LSODA", self.t, rtol=1e-12, atol=1e-15
            )
            return float((solved.y.T * np.array(self.weights)).sum())

        return [(value(i, h) - value(i, -h)) / (2 * h) for i in range(len(self.rates))]


@pytest.mark.parametrize(
    ("problem", "rtol", "atol", "h"),
    [
        (Stiff(robertson, (0.04, 3e7, 1e4), (1.0, 0.0, 0.0), (40.0, 1e4), (1.0, 1e4, 0.3)), 1e-7, 1e-11, 1e-3),
        (Stiff(van_der_pol, (1000.0,), (2.0, 0.0), (500.0, 1200.0), (1.0, 100.0)), 1e-9, 1e-9, 1e-4),
    ],
    ids=["Robertson", "Van der Pol"],
)
def test_stiff_problems_by_an_implicit_solver_of_scipy(problem: Stiff, rtol: float, atol: float, h: float) -> None:
    """The gradient in the rates is that of finite differences of tight solves; Van der Pol's has a sudden change."""
    assert problem.gradient(rtol, atol).tolist() == pytest.approx(problem.slopes(h), rel=1e-4)


@pytest.mark.parametrize("method", ["explicit_adams", "implicit_adams", "alf", "scipy_solver"])
def test_methods_whose_steps_are_no_runge_kutta_steps(method: str) -> None:
    f, y0, t = Driven(), normal(4, 3), T
    exact = gradients(f, y0, t, "discrete", method="dopri8", rtol=1e-11, atol=1e-11)
    options = {"step_size": 2e-3, "max_order": 4, "max_iters": 20} if "adams" in method else {}
    settings = {"alf": {"rtol": 1e-6, "atol": 1e-6}}.get(method, TIGHT)
    found = gradients(f, y0, t, "gq", method=method, options=options, **settings)
    assert relative(found, exact) < (1e-4 if method == "alf" else 1e-6)


def test_settings_that_make_no_sense_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="at least one"):
        qj.GaussLegendre(nodes=0)
    with pytest.raises(ValueError, match="rtol > 0"):
        qj.GaussLegendre(rtol=0.0)
    with pytest.raises(ValueError, match="Did you mean 'dense'"):
        qj.GaussLegendre(solve="dens")
    with pytest.raises(ValueError, match="max_states"):
        qj.GaussLegendre(max_states=0)
    with pytest.raises(ValueError, match="Runge-Kutta"):
        qj.odeint(
            lambda t, y: -y,
            torch.ones(1, requires_grad=True),
            times(0.0, 1.0),
            method="alf",
            gradient=qj.GaussLegendre(max_states=3),
        )
