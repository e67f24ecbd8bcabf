"""torch.func and forward mode through solves: the derivatives that torch itself finds of the unrolled method.

Fixed steps are compared with the same steps written in plain torch, to rounding; adaptive ones with the derivatives of
a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import quadjoint as qj
from quadjoint.nn import NeuralODE
from transforms.helpers import (
    FIELD,
    FIXED,
    TIGHT,
    WEIGHTS,
    Y0,
    T,
    assert_close,
    logistic,
    logistic_solution,
    network,
    unrolled,
    weigh,
)
from trust.helpers import normal, times

Solve = Callable[[Any, Tensor, Tensor], Tensor]


def direction(x: Any) -> Any:
    """A tangent in which every entry counts differently."""
    if isinstance(x, dict):
        return {name: direction(value) for name, value in x.items()}
    return torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)


def pull(f: Callable[[Any], Tensor], x: Any) -> Any:
    ys, back = vjp(f, x)
    return ys, back(torch.cos(ys))[0]


def dual(f: Callable[[Any], Tensor], x: Any) -> Any:
    """forward_ad without torch.func."""
    with forward_ad.dual_level():
        pairs = {k: forward_ad.make_dual(v, direction(v)) for k, v in (x if isinstance(x, dict) else {"": x}).items()}
        return tuple(forward_ad.unpack_dual(f(pairs if isinstance(x, dict) else pairs[""])))


def scalar(f: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    return lambda x: weigh(f(x))


TRANSFORMS: dict[str, Callable[[Callable[[Any], Tensor], Any], Any]] = {
    "grad": lambda f, x: grad(scalar(f))(x),
    "vjp": pull,
    "jacrev": lambda f, x: jacrev(f)(x),
    "jvp": lambda f, x: jvp(f, (x,), (direction(x),)),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "forward_ad": dual,
    "hessian": lambda f, x: hessian(scalar(f))(x),
    "jacrev of jacfwd": lambda f, x: jacrev(jacfwd(scalar(f)))(x),
    "jacrev of jacrev": lambda f, x: jacrev(jacrev(scalar(f)))(x),
    "jacfwd of jacfwd": lambda f, x: jacfwd(jacfwd(scalar(f)))(x),
}
EACH = pytest.mark.parametrize("transform", TRANSFORMS)
SMALL = {"outer.bias": WEIGHTS["outer.bias"], "inner.bias": WEIGHTS["inner.bias"]}  # whose Hessian is small


def by_input(kind: str, solve: Solve) -> tuple[Callable[[Any], Tensor], Any]:
    """The states of the network as a function of one of its inputs, and that input."""
    if kind == "state":
        return (lambda y: solve(network(WEIGHTS), y, T)), Y0
    if kind == "times":
        return (lambda t: solve(network(WEIGHTS), Y0, t)), T
    return (lambda weights: solve(network({**WEIGHTS, **weights}), Y0, T)), SMALL


@EACH
@pytest.mark.parametrize("kind", ["state", "times", "weights"])
def test_fixed_steps_have_the_derivatives_of_the_unrolled_method(transform: str, kind: str) -> None:
    ours, x = by_input(kind, lambda f, y, t: qj.odeint(f, y, t, method="rk4", gradient="direct"))
    theirs, _ = by_input(kind, unrolled)
    assert_close(TRANSFORMS[transform](ours, x), TRANSFORMS[transform](theirs, x), within=1e-11)


@EACH
@pytest.mark.parametrize("kind", ["state", "times", "rate"])
def test_adaptive_steps_have_the_derivatives_of_the_closed_form(transform: str, kind: str) -> None:
    a, y0 = times(0.7, 1.9, -1.1), torch.sigmoid(normal(2, 3))

    def make(solve: Solve) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        if kind == "state":
            return (lambda y: solve(a, y, T)), y0
        if kind == "times":
            return (lambda t: solve(a, y0, t)), T
        return (lambda rate: solve(rate, y0, T)), a

    ours, x = make(lambda a, y, t: qj.odeint(logistic(a), y, t, gradient="auto", **TIGHT))
    theirs, _ = make(logistic_solution)
    assert_close(TRANSFORMS[transform](ours, x), TRANSFORMS[transform](theirs, x), within=1e-6)


@pytest.mark.parametrize("transform", ["grad", "jvp"])
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3", "dopri8", "alf", "implicit_adams", "explicit_adams"])
def test_every_kind_of_method(method: str, transform: str) -> None:
    options = {"step_size": 0.02, "max_order": 5} if "adams" in method else {}
    settings = {"rtol": 1e-4, "atol": 1e-4} if method == "alf" else {"rtol": 1e-7, "atol": 1e-7}
    y0, t = torch.sigmoid(normal(3)), times(0.0, 0.3, 1.0)
    a = times(0.7, 1.9, -1.1)

    def ours(a: Tensor) -> Tensor:
        return qj.odeint(logistic(a), y0, t, method=method, options=options, **settings)

    found, wanted = TRANSFORMS[transform](ours, a), TRANSFORMS[transform](lambda a: logistic_solution(a, y0, t), a)
    assert_close(found, wanted, within=1e-2 if method == "alf" else 1e-4)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vjp", "forward_ad", "hessian"])
def test_the_states_are_the_same_to_the_last_bit(transform: str) -> None:
    """A transform takes the steps that the solve takes without it."""
    seen: list[Tensor] = []

    def solve(y: Tensor) -> Tensor:
        ys = qj.odeint(network(WEIGHTS), y, T)
        seen.append(torch.tensor(ys.detach().tolist(), dtype=Y0.dtype))
        return ys

    TRANSFORMS[transform](solve, Y0)
    assert len(seen) == 1 and seen[0].tolist() == qj.odeint(network(WEIGHTS), Y0, T).tolist()


@pytest.mark.parametrize("transform", ["grad", "jvp", "vjp", "forward_ad", "hessian", "jacfwd of jacfwd"])
def test_constant_times_cost_no_evaluation(transform: str) -> None:
    """Times made inside of a transform are wrapped by it, but nobody differentiates in them."""
    calls = []

    def solve(y: Tensor) -> Tensor:
        def f(t: Tensor, y: Tensor) -> Tensor:
            calls.append(t)
            return network(WEIGHTS)(t, y)

        return qj.odeint(f, y, torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64))

    solve(Y0)
    alone = len(calls)
    calls.clear()
    TRANSFORMS[transform](solve, Y0)
    assert len(calls) == alone


def test_the_statistics_name_the_reason() -> None:
    seen = []

    def loss(y: Tensor) -> Tensor:
        sol = qj.solve(FIELD, y, T)
        seen.append(sol.stats)
        return sol.ys.sum()

    grad(loss)(Y0)
    assert seen[0].method == "direct" and "torch.func" in seen[0].reason and seen[0].accepted_steps > 0


def test_functional_call_of_a_model_with_a_solve() -> None:
    model = NeuralODE(FIELD, **FIXED)
    weights = {f"f.{name}": w for name, w in WEIGHTS.items()}
    found = grad(lambda w: weigh(functional_call(model, w, (Y0,))))(weights)
    loss = weigh(model(Y0))
    wanted = torch.autograd.grad(loss, [model.get_parameter(name) for name in weights])
    assert_close(tuple(found.values()), wanted, within=1e-11)


def test_samples_of_their_own_by_vmap() -> None:
    """Gradients of each sample, and of each member of an ensemble: vmap of grad with fixed steps."""
    f = lambda weights, y: weigh(qj.odeint(network(weights), y, T, **FIXED))  # noqa: E731
    batch = normal(4, 3)
    per_sample = vmap(grad(f), in_dims=(None, 0))(WEIGHTS, batch)
    for i, y in enumerate(batch):
        assert_close({k: v[i] for k, v in per_sample.items()}, grad(f)(WEIGHTS, y), within=1e-11)
    members = {k: torch.stack([v, 0.5 * v, -v]) for k, v in WEIGHTS.items()}
    ensemble = vmap(grad(f), in_dims=(0, None))(members, batch)
    for i in range(3):
        one = {k: v[i] for k, v in members.items()}
        assert_close({k: v[i] for k, v in ensemble.items()}, grad(f)(one, batch), within=1e-11)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun3", "rk4", "explicit_adams"])
def test_vmap_of_fixed_steps_is_the_batch(method: str) -> None:
    solve = lambda y: qj.odeint(network(WEIGHTS), y, T, method=method, options={"step_size": 0.05})  # noqa: E731
    batch = normal(5, 3)
    torch.testing.assert_close(vmap(solve, out_dims=1)(batch), solve(batch), rtol=1e-12, atol=1e-13)


def test_vmap_of_a_solve_is_differentiated_by_backward() -> None:
    batch, found = normal(4, 3), FIELD
    solve = lambda y: qj.odeint(found, y, T, **FIXED)  # noqa: E731
    for a, b in zip(
        torch.autograd.grad(weigh(vmap(solve, out_dims=1)(batch)), list(FIELD.parameters())),
        torch.autograd.grad(weigh(solve(batch)), list(FIELD.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_vmap_over_a_weight_that_enters_late() -> None:
    """The first stages are shared by all members, the later ones are not."""
    weights = times(0.5, 1.0, 2.0)

    def solve(w: Tensor) -> Tensor:
        return qj.odeint(lambda t, y: torch.ones_like(y) if float(t) < 0.3 else w * y, Y0, T, **FIXED)

    torch.testing.assert_close(vmap(solve)(weights), torch.stack([solve(w) for w in weights]))


def test_structured_states() -> None:
    def solve(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return qj.odeint(lambda t, y: {"x": y["v"], "v": -y["x"]}, state, T, **TIGHT)

    y0 = {"x": times(1.0, 0.5), "v": times(0.2, -1.0)}
    ys, tangents = jvp(solve, (y0,), ({"x": times(1.0, 0.0), "v": times(0.0, 0.0)},))
    c, s = torch.cos(T), torch.sin(T)
    torch.testing.assert_close(ys["x"], c[:, None] * y0["x"] + s[:, None] * y0["v"], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(tangents["x"], torch.stack([c, 0 * c], dim=1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(tangents["v"], torch.stack([-s, 0 * s], dim=1), rtol=1e-8, atol=1e-8)


def test_times_of_each_sample() -> None:
    t = torch.stack([times(0.0, 0.5, 1.0), times(0.2, 0.7, 2.0)])
    y0, a = times(0.3, 0.6), times(1.1, 0.4)
    exact = lambda t: torch.stack([logistic_solution(a[i], y0[i], t[i]) for i in range(2)], dim=1)  # noqa: E731
    ours = lambda t: qj.odeint(logistic(a), y0, t, **TIGHT)  # noqa: E731
    for transform in ("jacrev", "jacfwd", "hessian"):
        assert_close(TRANSFORMS[transform](ours, t), TRANSFORMS[transform](exact, t), within=1e-6)


@pytest.mark.parametrize("transform", ["grad", "jvp", "forward_ad", "hessian", "jacrev of jacrev"])
@pytest.mark.parametrize("what", ["time", "state"])
def test_events(transform: str, what: str) -> None:
    """y' = -a y from y0 reaches a / 2 at log(2 y0 / a) / a."""
    y0 = times(1.7)

    def ours(a: Tensor) -> Tensor:
        event = lambda t, y: (y - 0.5 * a).min()  # noqa: E731
        time, ys = qj.odeint(lambda t, y: -a * y, y0, times(0.0, 1.0), event_fn=event, **TIGHT)
        return time.reshape(1) if what == "time" else ys[-1]

    exact = lambda a: torch.log(2 * y0 / a) / a if what == "time" else 0.5 * a.reshape(1)  # noqa: E731
    a = torch.tensor(1.3, dtype=torch.float64)
    assert_close(TRANSFORMS[transform](ours, a), TRANSFORMS[transform](exact, a), within=1e-6)


def test_an_event_in_the_initial_time() -> None:
    ours = lambda t: qj.odeint(lambda t, y: -y, times(2.0), t, event_fn=lambda t, y: y - 1.0, **TIGHT)[0]  # noqa: E731
    for transform in (jacrev, jacfwd):
        torch.testing.assert_close(transform(ours)(times(0.5, 1.0)), times(1.0, 0.0), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("transform", ["grad", "jvp", "hessian"])
def test_the_continuous_solution_in_its_time(transform: str) -> None:
    y0, a = torch.sigmoid(normal(3)), times(0.7, 1.9, -1.1)
    ours = lambda s: qj.solve(logistic(a), y0, T, **TIGHT)(s)  # noqa: E731
    exact = lambda s: logistic_solution(a, y0, torch.cat([times(0.0), s]))[1:]  # noqa: E731
    assert_close(
        TRANSFORMS[transform](ours, times(0.3, 0.8)), TRANSFORMS[transform](exact, times(0.3, 0.8)), within=1e-5
    )


def test_discontinuities_that_are_named() -> None:
    def solve(a: Tensor) -> Tensor:
        f = lambda t, y: torch.where(t < 0.5, a, -2.0 * a) * y  # noqa: E731
        return qj.odeint(f, times(1.0), T, options={"jump_t": [0.5]}, **TIGHT)

    a = torch.tensor(0.8, dtype=torch.float64)
    exact = lambda a: torch.exp(a * torch.minimum(T, times(0.5)) - 2 * a * (T - 0.5).clamp(min=0))[:, None]  # noqa: E731
    for transform in ("jacrev", "jvp", "hessian"):
        assert_close(TRANSFORMS[transform](solve, a), TRANSFORMS[transform](exact, a), within=1e-6)


def test_compiled_steps_are_left_out_inside_a_transform() -> None:
    f = network(WEIGHTS)
    found = grad(lambda y: weigh(qj.odeint(f, y, T, compile=True)))(Y0)
    assert_close(found, grad(lambda y: weigh(qj.odeint(f, y, T)))(Y0), within=1e-12)


def test_the_drop_in_of_torchdiffeq() -> None:
    from quadjoint.torchdiffeq import odeint

    found = jacrev(lambda y: odeint(logistic(times(0.7)), y, T))(times(0.4))
    assert_close(found, jacrev(lambda y: logistic_solution(times(0.7), y, T))(times(0.4)), within=1e-6)
