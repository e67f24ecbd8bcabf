"""Where torch.func ends: what is refused, and in which words; functions that differentiate; batches of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import grad, jacrev, jvp, vmap

import quadjoint as qj
from quadjoint.autograd import private
from quadjoint.torchdiffeq import odeint_adjoint
from transforms.helpers import FIELD, TIGHT, WEIGHTS, Y0, T, assert_close, network, weigh
from trust.helpers import DTYPE, GRADIENTS, Field, cases, normal, times

OTHERS = [g for g in GRADIENTS if g not in ("auto", "direct") and not isinstance(g, qj.Auto)]


@pytest.mark.parametrize("gradient", cases(OTHERS))
def test_gradients_that_are_not_direct_are_refused(gradient: Any) -> None:
    solve = lambda y: qj.odeint(FIELD, y, T, gradient=gradient)  # noqa: E731
    words = r"gradient='[\w-]+' cannot run inside torch.func.*use gradient='direct' \(or 'auto'\)"
    with pytest.raises(ValueError, match=words):
        grad(lambda y: solve(y).sum())(Y0)
    with pytest.raises(ValueError, match=words):
        jvp(solve, (Y0,), (Y0,))
    with pytest.raises(ValueError, match=words), forward_ad.dual_level():
        solve(forward_ad.make_dual(Y0, Y0))
    with pytest.raises(ValueError, match=words):
        vmap(lambda y: qj.odeint(FIELD, y, T, method="rk4", gradient=gradient))(Y0)


def test_a_gradient_that_is_not_needed_is_not_refused() -> None:
    """Without grad, the name of a gradient has no effect, here as elsewhere."""
    with torch.no_grad():
        found = jvp(lambda y: qj.odeint(FIELD, y, T, gradient="discrete"), (Y0,), (Y0,))
    assert_close(found, jvp(lambda y: qj.odeint(network_of(FIELD), y, T), (Y0,), (Y0,)), within=1e-12)


def network_of(field: Field) -> Callable[..., Tensor]:
    return lambda t, y: torch.func.functional_call(field, WEIGHTS, (t, y))


HIDDEN: dict[str, dict[str, Any]] = {
    "adaptive": {},
    "alf": {"method": "alf"},
    "implicit iteration": {"method": "implicit_adams", "options": {"step_size": 0.1}},
    "event": {"method": "rk4", "options": {"step_size": 0.1}, "event_fn": lambda t, y: y.sum() - 100.0},
}


@pytest.mark.parametrize("case", HIDDEN)
def test_steps_that_look_at_numbers_are_refused_inside_vmap(case: str) -> None:
    t = T[[0, -1]]
    with pytest.raises(ValueError, match=r"Inside torch.func.vmap the numbers.*method='rk4'.*first dimension"):
        vmap(lambda y: qj.odeint(network(WEIGHTS), y, t, **HIDDEN[case]))(Y0)
    with pytest.raises(ValueError, match=r"Inside torch.func.vmap"):
        vmap(grad(lambda y: qj.odeint(network(WEIGHTS), y, t, **HIDDEN[case])[-1].sum()))(Y0)


def test_adaptive_steps_of_what_is_not_mapped_over_are_taken() -> None:
    """vmap hides only what it maps over."""
    scale = times(1.0, 2.0)
    found = vmap(lambda s: s * qj.odeint(network(WEIGHTS), Y0, T))(scale)
    torch.testing.assert_close(found, scale[:, None, None, None] * qj.odeint(network(WEIGHTS), Y0, T))


def test_times_that_are_mapped_over_are_refused() -> None:
    with pytest.raises(ValueError, match=r"t cannot be mapped over by torch.func.vmap.*shape \(B, K\)"):
        vmap(lambda t: qj.odeint(network(WEIGHTS), Y0, t, method="rk4"))(torch.stack([T, 2 * T]))


@pytest.mark.parametrize("gradient", ["auto", "direct"])
@pytest.mark.parametrize("method", ["scipy_solver", "kvaerno3", "implicit_midpoint"])
def test_steps_that_are_not_made_of_the_operations_of_torch_are_refused(method: str, gradient: str) -> None:
    solve = lambda y: qj.odeint(FIELD, y, T, method=method, gradient=gradient)  # noqa: E731
    words = rf"method='{method}' cannot run inside torch.func.*Use an explicit method"
    with pytest.raises(ValueError, match=words):
        jvp(solve, (Y0,), (Y0,))
    with pytest.raises(ValueError, match=words):
        grad(lambda y: solve(y).sum())(Y0)
    with pytest.raises(ValueError, match=words), forward_ad.dual_level(), torch.no_grad():
        solve(forward_ad.make_dual(Y0, Y0))


def test_the_adjoint_of_torchdiffeq_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gradient='discrete' cannot run inside torch.func"):
        grad(lambda y: odeint_adjoint(FIELD, y, T).sum())(Y0)


def test_tensors_that_are_named_for_the_adjoint_do_not_hide_others_from_a_transform() -> None:
    """Outside of a transform the gradient in y0 is computed too."""
    a = torch.tensor(0.7, dtype=DTYPE)
    solve = lambda y: odeint_adjoint(lambda t, y: -a * y, y, T, gradient="direct", adjoint_params=())  # noqa: E731
    found = grad(lambda y: solve(y)[-1].sum())(Y0)
    torch.testing.assert_close(found, torch.exp(-a).expand_as(Y0), rtol=1e-6, atol=1e-8)


def test_states_that_are_not_finite_are_refused_where_they_can_be_seen() -> None:
    bad = torch.tensor([1.0, float("nan")])
    with pytest.raises(ValueError, match="y0 has entries that are NaN"):
        grad(lambda y: qj.odeint(lambda t, y: -y, y, T).sum())(bad)
    found = vmap(lambda y: qj.odeint(lambda t, y: -y, y, T, method="rk4"))(bad[:, None])
    assert torch.isfinite(found[0]).all() and torch.isnan(found[1]).all()


def test_random_dynamics_are_refused() -> None:
    with pytest.raises((ValueError, qj.SolveError), match="draws random numbers"):
        grad(lambda y: qj.odeint(lambda t, y: y * torch.rand_like(y), y, T).sum())(Y0)


# Functions that differentiate: the trace of the Jacobian of tanh(w x), by autograd and by torch.func.


def by_autograd(w: Tensor) -> Callable[..., Any]:
    def f(t: Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            out = torch.tanh(w * y[0])
            (trace,) = torch.autograd.grad(out.sum(), y[0], create_graph=True)
        return out, -trace

    return f


def by_func(w: Tensor) -> Callable[..., Any]:
    def f(t: Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.tanh(w * y[0]), -grad(lambda x: torch.tanh(w * x).sum())(y[0])

    return f


def density(f: Callable[..., Any], x: Tensor) -> Tensor:
    return qj.odeint(f, (x, torch.zeros_like(x)), T, **TIGHT)[1][-1]


W, X = torch.tensor(1.3, dtype=DTYPE), times(0.4, -0.7)


def slope(function: Callable[[Tensor], Tensor], x: Tensor, h: float = 1e-5) -> Tensor:
    """A directional derivative along x by differences."""
    return (function(x * (1 + h)) - function(x * (1 - h))) / (2 * h)


def test_torch_func_inside_of_f_composes_with_torch_func_around() -> None:
    for function, x in ((lambda w: density(by_func(w), X), W), (lambda x: density(by_func(W), x), X)):
        _, tangent = jvp(function, (x,), (x,))
        torch.testing.assert_close(tangent, slope(function, x), rtol=1e-6, atol=1e-8)
        jacobian = jacrev(function)(x)
        torch.testing.assert_close(jacobian @ x if x.ndim else jacobian * x, tangent, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("kind", ["weight", "state"])
def test_autograd_inside_of_f_composes_with_forward_mode(kind: str, recording: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return density(by_autograd(x), X) if kind == "weight" else density(by_autograd(W), x)

    x = W if kind == "weight" else X
    with forward_ad.dual_level(), torch.set_grad_enabled(recording):
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, x))).tangent.detach()
    torch.testing.assert_close(tangent, slope(lambda x: function(x).detach(), x), rtol=1e-6, atol=1e-8)


def test_autograd_inside_of_f_is_refused_by_torch_func() -> None:
    words = r"f calls torch.autograd.grad.*Use torch.func.grad, vjp or jvp inside f"
    with pytest.raises(ValueError, match=words):
        grad(lambda w: density(by_autograd(w), X).sum())(W)
    with pytest.raises(ValueError, match=words):
        jvp(lambda x: density(by_autograd(W), x), (X,), (X,))


# Batches of gradients, which torch computes by vmap of a backward pass.


class Idle(Field):
    """With a parameter that the dynamics do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.ones(2, dtype=DTYPE))


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
@pytest.mark.parametrize("settings", [{}, {"method": "rk4"}], ids=["adaptive", "fixed"])
def test_vectorised_jacobians_in_state_and_times(strategy: str, settings: dict[str, Any]) -> None:
    solve = lambda y, t: qj.odeint(network(WEIGHTS), y, t, gradient="direct", **settings)  # noqa: E731
    wanted = jacobian(solve, (Y0, T))
    assert_close(tuple(jacobian(solve, (Y0, T), vectorize=True, strategy=strategy)), wanted, within=1e-10)


def test_batches_of_gradients_with_an_idle_parameter_and_an_event() -> None:
    f, y0 = Idle(), normal(2, 3).requires_grad_()
    time, ys = qj.odeint(f, y0, times(0.0, 1.0), gradient="direct", event_fn=lambda t, y: t - 0.7 + 0.1 * y.mean())
    out = torch.cat([time.reshape(1), ys[-1].flatten()])
    inputs = [y0, *f.parameters()]
    rows = [torch.autograd.grad(out, inputs, e, retain_graph=True) for e in torch.eye(7, dtype=DTYPE)]
    wanted = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    found = torch.autograd.grad(out, inputs, torch.eye(7, dtype=DTYPE), is_grads_batched=True)
    assert_close(found, wanted, within=1e-10)


def test_finite_differences_confirm_both_modes() -> None:
    """torch's own checks: backward, forward, batches of both, and forward over backward."""

    def solve(y: Tensor, t: Tensor, w: Tensor) -> Tensor:
        return qj.odeint(lambda s, y: torch.sin(w * y * (1.0 + s)), y, t, gradient="direct", method="rk4")

    inputs = tuple(x.requires_grad_() for x in (times(0.4, 1.1), times(0.0, 0.4, 1.0), times(1.3)))
    assert torch.autograd.gradcheck(
        solve, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True, atol=1e-6
    )
    assert torch.autograd.gradgradcheck(
        lambda *x: weigh(solve(*x)), inputs, check_fwd_over_rev=True, check_rev_over_rev=True, atol=1e-5
    )


def test_whether_a_tensor_is_differentiated_is_seen_through_all_levels() -> None:
    seen: dict[str, bool] = {}
    constant = torch.tensor(2.0)

    def look(name: str, x: Tensor, w: Tensor) -> Tensor:
        made = torch.tensor(1.0)
        seen.update({f"{name} x": private.is_differentiated(x), f"{name} 2x": private.is_differentiated(2 * x)})
        seen.update({f"{name} constant": private.is_differentiated(constant)})
        seen.update({f"{name} made": private.is_differentiated(made * made)})
        return w * x

    grad(lambda x: grad(lambda w: look("grad grad", x, w))(constant))(constant)
    jvp(lambda x: grad(lambda w: look("jvp grad", x, w))(constant), (constant,), (constant,))
    grad(lambda x: jvp(lambda w: look("grad jvp", x, w), (constant,), (constant,))[1])(constant)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(constant, constant)
        grad(lambda w: look("dual grad", dual, w))(constant)
    look("leaf", constant.clone().requires_grad_(), constant)
    assert all(found == name.endswith("x") for name, found in seen.items()), seen
    assert len(seen) == 20
    vmap(lambda x: look("vmap", x, x))(times(1.0))
    assert not seen["vmap x"]
