"""Another function than the one that was solved is never differentiated without a word (12.1)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.changing import Holder, Scenario, T, gradients, in_closure, itself, other, with_module
from trust.helpers import (
    DTYPE,
    REPLAYED,
    TIGHT,
    Field,
    assert_close,
    cases,
    normal,
    right_or_refused,
    times,
    tolerance,
    weigh,
)


def rebound_variable() -> Scenario:
    net, factor = Field(), 1.0

    def change() -> None:
        nonlocal factor
        factor = -2.0

    return lambda t, y: net(t, y) * factor, list(net.parameters()), change


def changed_entry() -> Scenario:
    net, settings = Field(), {"factor": 1.0}
    return (
        lambda t, y: net(t, y) * settings["factor"],
        list(net.parameters()),
        lambda: settings.__setitem__("factor", -2.0),
    )


def removed_hook() -> Scenario:
    net = Field()
    handle = net.inner.register_forward_hook(lambda module, inputs, out: 2.0 * out)
    return net, list(net.parameters()), handle.remove


def added_hook() -> Scenario:
    net = Field()
    return (
        net,
        list(net.parameters()),
        lambda: net.inner.register_forward_hook(lambda module, inputs, out: 2.0 * out),
    )


def buffer_in_place() -> Scenario:
    return with_module(itself, lambda net: net.offset.mul_(-3.0))


def attribute_in_place() -> Scenario:
    return with_module(itself, lambda net: net.condition.mul_(-3.0))


def buffer_in_place_in_closure() -> Scenario:
    return with_module(in_closure, lambda net: net.offset.mul_(-3.0))


def number() -> Scenario:
    return with_module(itself, lambda net: setattr(net, "factor", -2.0))


def tensor_of_an_object() -> Scenario:
    holder = Holder()
    return holder, list(holder.inside.parameters()), lambda: setattr(holder, "condition", other())


UNCAPTURED = (
    rebound_variable,
    changed_entry,
    removed_hook,
    added_hook,
    buffer_in_place,
    attribute_in_place,
    buffer_in_place_in_closure,
    number,
    tensor_of_an_object,
)


@pytest.mark.parametrize(
    ("make", "gradient"),
    cases(UNCAPTURED, REPLAYED),
)
def test_another_function_than_was_solved_is_never_differentiated(make: Any, gradient: Any) -> None:
    """What f holds in other ways gives the right gradient or an error that names the forward pass."""
    wanted = gradients(make(), "direct", changed=False)
    right_or_refused(lambda: gradients(make(), gradient, changed=True), wanted, within=tolerance(gradient))


@pytest.mark.parametrize("gradient", cases(REPLAYED))
def test_a_loop_over_a_variable_of_a_closure(gradient: Any) -> None:
    """Python's closures see the last value of c when the backward pass runs."""

    def total(gradient: Any, early: bool) -> list[Tensor]:
        net, loss = Field(), torch.zeros((), dtype=DTYPE)
        for c in (0.5, 1.0, 2.0):
            f = (lambda t, y, c=c: net(t, y) * c) if early else lambda t, y: net(t, y) * c  # noqa: B023
            loss = loss + weigh(qj.odeint(f, normal(4, 3), T, gradient=gradient, **TIGHT))
        return list(torch.autograd.grad(loss, list(net.parameters())))

    wanted = total("direct", early=True)
    right_or_refused(lambda: total(gradient, early=False), wanted, within=tolerance(gradient))


@pytest.mark.parametrize("method", ["scipy_solver", "alf", "radauIIA5", "gl4", "gl6", "kvaerno5"])
def test_a_loop_over_a_variable_of_a_closure_by_steps_that_keep_no_slope(method: str) -> None:
    """Steps that are known by their states alone, or have no stage at their beginning."""

    def total(gradient: Any, early: bool) -> list[Tensor]:
        net, loss = Field(), torch.zeros((), dtype=DTYPE)
        for c in (0.5, 2.0):
            f = (lambda t, y, c=c: net(t, y) * c) if early else lambda t, y: net(t, y) * c  # noqa: B023
            loss = loss + weigh(qj.odeint(f, normal(4, 3), T, method=method, gradient=gradient, rtol=1e-3, atol=1e-3))
        return list(torch.autograd.grad(loss, list(net.parameters())))

    assert_close(total("gq", early=True), total("adjoint", early=True), within=0.1)
    with pytest.raises(ValueError, match="forward pass"):
        total("gq", early=False)


@pytest.mark.parametrize("change", [0.0, 0.5, 2.0])
def test_samples_with_steps_of_their_own_notice_another_function_at_both_ends(change: float) -> None:
    """What changes only from a time on shows in the last steps."""
    net, factor = Field(), 1.0
    t = torch.stack([times(0.0, 3.0), times(1.0, 3.5)])
    ys = qj.odeint(
        lambda t, y: net(t, y) * torch.where(t < change, 1.0, factor),
        normal(2, 3),
        t,
        gradient="gq",
        independent=True,
        rtol=1e-6,
        atol=1e-6,
    )
    factor = 2.0
    with pytest.raises(ValueError, match="forward pass"):
        weigh(ys).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_times_far_from_zero_are_no_other_function(dtype: torch.dtype) -> None:
    """Where one unit in the last place of the time is seen, f is held against itself at exactly the same times."""
    start = (2000.0 + 0.05 * torch.arange(8))[:, None]
    t = (start + torch.linspace(0.0, 1.0, 3)).to(dtype)

    def slope(gradient: str) -> Tensor:
        y0 = torch.ones(8, 1, dtype=dtype, requires_grad=True)
        ys = qj.odeint(
            lambda t, y: torch.sin(2.0 * torch.pi * t) - 0.1 * y, y0, t, gradient=gradient, independent=True, rtol=1e-4
        )
        return torch.autograd.grad(ys.sum(), y0)[0]

    assert_close([slope("gq")], [slope("discrete")], within=1e-3)


@pytest.mark.parametrize("gradient", cases(REPLAYED))
def test_a_function_that_is_known_already_and_sees_another_variable(gradient: Any) -> None:
    """After the first solve auto knows that the way is long and takes the parallel mode, which evaluates again."""
    net, factor, far = Field(), 1.0, times(0.0, 10.0)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return net(t, y) * factor

    def losses(gradient: Any) -> list[Tensor]:
        nonlocal factor
        found = []
        for value in (0.5, 1.0, 0.7):
            factor = value
            found.append(weigh(qj.odeint(f, normal(4, 3), far, gradient=gradient, **TIGHT)))
        return found

    wanted = torch.autograd.grad(sum(losses("direct")), list(net.parameters()))
    right_or_refused(
        lambda: torch.autograd.grad(sum(losses(gradient)), list(net.parameters())), wanted, within=tolerance(gradient)
    )


@pytest.mark.parametrize("gradient", cases(REPLAYED))
def test_noise_of_a_generator_of_f(gradient: Any) -> None:
    """Euler's steps multiply by 1 + w r with r of the noise, so y_N and its derivative follow from the states."""
    draw, w = torch.Generator().manual_seed(0), torch.tensor(0.7, dtype=DTYPE, requires_grad=True)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return w * y * (1.0 + torch.randn(y.shape, generator=draw, dtype=DTYPE))

    ys = qj.odeint(f, torch.ones(4, 3, dtype=DTYPE), torch.linspace(0, 1, 11), method="euler", gradient=gradient)
    ratio = (ys[1:] / ys[:-1]).detach()
    wanted = (ys[-1].detach() * ((1.0 - 1.0 / ratio) / w.detach()).sum(0)).sum()
    right_or_refused(lambda: torch.autograd.grad(ys[-1].sum(), w), [wanted], within=1e-6)
