"""How solves live with the rest of autograd: graphs, checkpoints, functional calls, modules that stay as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quadjoint as qj
from gradient.helpers import ALL, TIGHT, Driven, Network, gradients, loss, normal, relative, times

T = times(0.0, 0.3, 1.0)
METHODS: tuple[Any, ...] = (
    *ALL,
    "auto",
    "reversible",
    qj.DiscreteAdjoint(max_states=2),
)


def solve(f: nn.Module, y0: Tensor, t: Tensor, how: Any, **options: Any) -> Tensor:
    method = "alf" if how == "reversible" else "dopri5"
    return qj.odeint(f, y0, t, gradient=how, method=method, **options)


@pytest.mark.parametrize("how", METHODS)
def test_two_forwards_before_one_backward(how: Any) -> None:
    f, y1, y2 = Driven(), normal(3, 3, seed=1), normal(3, 3, seed=2)
    parameters = list(f.parameters())
    apart = [torch.autograd.grad(loss(solve(f, y, t, how)), parameters) for y, t in ((y1, T), (y2, 2 * T))]
    together = torch.autograd.grad(loss(solve(f, y1, T, how)) + loss(solve(f, y2, 2 * T, how)), parameters)
    assert relative(together, [a + b for a, b in zip(*apart, strict=True)]) < 1e-12


@pytest.mark.parametrize("how", METHODS)
def test_solves_in_a_row_are_differentiated_through(how: Any) -> None:
    f, y0 = Driven(), normal(3, 3)
    wrt = list(f.parameters())
    tolerance = 1e-5 if how == "reversible" else 1e-7
    middle = solve(f, y0, times(0.0, 0.5), how, rtol=tolerance, atol=tolerance)[-1]
    last = solve(f, middle, times(0.5, 1.0), how, rtol=tolerance, atol=tolerance)[-1]
    found = torch.autograd.grad(loss(last), wrt)
    reference = torch.autograd.grad(loss(qj.odeint(f, y0, times(0.0, 1.0), gradient="direct", **TIGHT)[-1]), wrt)
    assert relative(found, reference) < (2e-3 if how in ("gq-paper", "reversible") else 1e-5)


@pytest.mark.parametrize("how", METHODS)
def test_backward_twice_on_a_retained_graph(how: Any) -> None:
    f, y0 = Driven(), normal(3, 3).requires_grad_()
    inputs = (y0, *f.parameters())
    value = loss(solve(f, y0, T, how))
    once = torch.autograd.grad(value, inputs, retain_graph=True)
    again = torch.autograd.grad(2 * value, inputs, retain_graph=True)
    assert relative(again, [2 * g for g in once]) < 1e-9
    torch.autograd.grad(value, inputs)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, inputs)


@pytest.mark.parametrize("how", METHODS)
def test_gradients_accumulate_over_backward_calls(how: Any) -> None:
    f, y0 = Driven(), normal(3, 3)
    ys = solve(f, y0, T, how)
    whole = torch.autograd.grad(ys[1].sum() + ys[2].square().sum(), list(f.parameters()), retain_graph=True)
    ys[1].sum().backward(retain_graph=True)
    ys[2].square().sum().backward()
    assert relative([p.grad for p in f.parameters()], whole) < (1e-12 if how in ("direct", "discrete") else 2e-3)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", METHODS)
def test_inside_of_torch_checkpoint(how: Any, reentrant: bool) -> None:
    f, y0 = Driven(), normal(3, 3).requires_grad_()
    inputs = (y0, *f.parameters())
    reference = torch.autograd.grad(loss(solve(f, y0, T, how)), inputs)
    f.zero_grad()
    ys = checkpoint(solve, f, y0, T, how, use_reentrant=reentrant)
    loss(ys).backward()
    assert relative([x.grad for x in inputs], reference) < 1e-12


def snapshot(f: nn.Module) -> dict[str, Any]:
    return {f"{name}.{key}": value for name, m in f.named_modules() for key, value in m.__dict__.items()}


@pytest.mark.parametrize("how", METHODS)
def test_nothing_is_left_on_the_module(how: Any) -> None:
    f, y0 = Driven(), normal(3, 3).requires_grad_()
    before = snapshot(f)
    weights = [p.detach().clone() for p in f.parameters()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in f.modules()]
    torch.autograd.grad(loss(solve(f, y0, T, how)), (y0, *f.parameters()))
    after = snapshot(f)
    assert before.keys() == after.keys()
    assert all(before[key] is after[key] for key in before)
    assert all(torch.equal(a, p) for a, p in zip(weights, f.parameters(), strict=True))
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in f.modules()]
    assert all(p.grad is None for p in f.parameters())


@pytest.mark.parametrize("how", METHODS)
def test_a_solve_does_not_change_the_next(how: Any) -> None:
    """Whatever is remembered of a function between solves must not show in their results."""
    f, y0 = Driven(), normal(3, 3)
    t = T if how != "reversible" else times(0.0, 1.0)
    first = gradients(f, y0, t, how, method="alf" if how == "reversible" else "dopri5")
    gradients(f, 5 * y0, 2 * t, how, method="alf" if how == "reversible" else "dopri5", rtol=1e-5)
    again = gradients(f, y0, t, how, method="alf" if how == "reversible" else "dopri5")
    assert relative(again, first) < 1e-12


class Model(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.f, self.how = Driven(), how

    def forward(self, y0: Tensor, t: Tensor) -> Tensor:
        tolerance = 1e-4 if self.how == "reversible" else 1e-7
        return solve(self.f, y0, t, self.how, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("how", METHODS)
def test_functional_call_around_a_solve(how: Any) -> None:
    """Gradients belong to the weights that were passed, although the module has its own again when backward runs."""
    model, y0, t = Model(how), normal(3, 3).requires_grad_(), T.clone().requires_grad_()
    weights = {name: (1.5 * p.detach()).requires_grad_() for name, p in model.named_parameters()}
    found = torch.autograd.grad(loss(torch.func.functional_call(model, weights, (y0, t))), (y0, t, *weights.values()))
    other = Model(how)
    other.load_state_dict({name: w.detach() for name, w in weights.items()})
    reference = torch.autograd.grad(loss(other(y0, t)), (y0, t, *other.parameters()))
    assert relative(found, reference) < 1e-12
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("how", METHODS)
def test_functional_call_with_weights_that_depend_on_others(how: Any) -> None:
    """A step of gradient descent on the weights, differentiated, as in meta-learning."""
    model, y0 = Model(how), normal(3, 3)
    scale = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    weights = {name: scale * p for name, p in model.named_parameters()}
    (found,) = torch.autograd.grad(loss(torch.func.functional_call(model, weights, (y0, T))), scale)
    other = Model(how)
    other.load_state_dict({name: w.detach() for name, w in weights.items()})
    each = torch.autograd.grad(loss(other(y0, T)), list(other.parameters()))
    inner = sum(float((g * p.detach()).sum()) for g, p in zip(each, model.parameters(), strict=True))
    assert float(found) == pytest.approx(inner, rel=1e-10)


@pytest.mark.parametrize("how", METHODS)
def test_functional_call_with_weights_that_depend_on_each_other(how: Any) -> None:
    model, y0 = Model(how), normal(3, 3)
    first, *rest = (p.detach().clone() for p in model.parameters())
    names = [name for name, _ in model.named_parameters()]

    def value(first: Tensor) -> Tensor:
        bias = first[:, 0]  # the bias of the first layer is a column of its weights
        weights = dict(zip(names, (first, bias, *rest[1:]), strict=True))
        return loss(torch.func.functional_call(model, weights, (y0, T)))

    x = first.clone().requires_grad_()
    (found,) = torch.autograd.grad(value(x), x)
    h, direction = 1e-5, normal(*first.shape, seed=7)
    with torch.no_grad():
        slope = (value(first + h * direction) - value(first - h * direction)) / (2 * h)
    assert float((found * direction).sum()) == pytest.approx(
        float(slope), rel=2e-3 if how in ("gq-paper", "reversible") else 1e-4
    )


@pytest.mark.parametrize("how", METHODS)
def test_weights_changed_in_place_between_forward_and_backward_are_noticed_or_do_not_matter(how: Any) -> None:
    """Autograd refuses to use tensors that were changed; a gradient at the new weights would be silently wrong."""
    f, y0 = Driven(), normal(3, 3)
    value = loss(solve(f, y0, T, how))
    with torch.no_grad():
        for p in f.parameters():
            p.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("how", METHODS)
def test_nothing_is_recorded_without_grad(how: Any) -> None:
    f, y0 = Driven(), normal(3, 3).requires_grad_()
    with torch.no_grad():
        assert not solve(f, y0, T, how).requires_grad
    with torch.inference_mode():
        assert not solve(f, y0, T, how).requires_grad


@pytest.mark.parametrize("how", ["direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm"])
def test_gradients_that_are_not_finite_are_not_hidden(how: str) -> None:
    f, y0 = Network(), normal(3, 3).requires_grad_()
    ys = qj.odeint(f, y0, T, gradient=how)
    try:
        (g,) = torch.autograd.grad((ys[-1] * float("nan")).sum(), y0)
    except qj.SolveError as error:
        assert "NaN" in str(error) or "finite" in str(error)
    else:
        assert not bool(torch.isfinite(g).any())
