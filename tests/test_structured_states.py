"""States that are dicts, named tuples, lists and nestings of them: the numbers of one tensor, in the structure given.

The problem is an oscillator x' = v, v' = -(w^2) x - c v beside a decay m' = -m, whose parts every structure holds; as
one tensor of three rows it is the reference, and its exact solution is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from gradient.helpers import ALL, normal, times
from quadjoint.nn import NeuralODE
from quadjoint.solver.state import Layout
from quadjoint.solver.structure import Structure, map_leaves
from quadjoint.torchdiffeq import odeint as drop_in

T = times(0.0, 0.4, 1.0, 1.3)
TIGHT = {"rtol": 1e-7, "atol": 1e-7}


class Body(NamedTuple):
    x: Any
    v: Any


class Pair(tuple):
    """A tuple of the user's own, which counts as a tuple."""


# How (x, v, m) are held, and how they are taken out.
STRUCTURES: dict[str, tuple[Callable[..., Any], Callable[[Any], tuple[Any, ...]]]] = {
    "tuple": (lambda x, v, m: (x, v, m), tuple),
    "list": (lambda x, v, m: [x, v, m], tuple),
    "dict": (lambda x, v, m: {"x": x, "v": v, "m": m}, lambda s: (s["x"], s["v"], s["m"])),
    "ordered dict": (lambda x, v, m: OrderedDict(v=v, x=x, m=m), lambda s: (s["x"], s["v"], s["m"])),
    "nested tuple": (lambda x, v, m: ((x, v), m), lambda s: (*s[0], s[1])),
    "named tuple in a dict": (lambda x, v, m: {"b": Body(x, v), 3: m}, lambda s: (s["b"].x, s["b"].v, s[3])),
    "dict in a list in a named tuple": (lambda x, v, m: Body([{"x": x}, v], m), lambda s: (s.x[0]["x"], s.x[1], s.v)),
}
EACH = pytest.mark.parametrize("name", STRUCTURES)


class Oscillator(nn.Module):
    """The dynamics on a structure, or on one tensor that has x, v and m as rows."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name
        self.w = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.c = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, t: Tensor, y: Any) -> Any:
        x, v, m = y if self.name is None else STRUCTURES[self.name][1](y)
        out = (v, -(self.w**2) * x - self.c * v, -m)
        return torch.stack(out) if self.name is None else STRUCTURES[self.name][0](*out)


def start(name: str | None) -> tuple[Any, list[Tensor]]:
    parts = [normal(4, seed=i).requires_grad_() for i in range(3)]
    return (torch.stack(parts) if name is None else STRUCTURES[name][0](*parts)), parts


def parts_of(name: str | None, ys: Any) -> Tensor:
    """x, v and m stacked behind the times."""
    return ys if name is None else torch.stack(STRUCTURES[name][1](ys), dim=1)


def loss(ys: Tensor) -> Tensor:
    return (torch.cos(torch.arange(ys.numel(), dtype=ys.dtype)).reshape(ys.shape) * ys).sum() + ys.square().sum()


def gradient(name: str | None, how: Any, **settings: Any) -> list[Tensor]:
    f, (y0, parts) = Oscillator(name), start(name)
    ys = qj.odeint(f, y0, T, gradient=how, **settings)
    return list(torch.autograd.grad(loss(parts_of(name, ys)), [*parts, f.w, f.c]))


def same_structure(a: Any, b: Any) -> bool:
    return Structure.of(a) == Structure.of(b)


@EACH
def test_the_states_are_those_of_one_tensor_in_the_structure_given(name: str) -> None:
    y0, _ = start(name)
    ys = qj.odeint(Oscillator(name), y0, T, **TIGHT)
    assert same_structure(ys, y0)
    assert all(part.shape == (4, 4) for part in STRUCTURES[name][1](ys))
    reference = qj.odeint(Oscillator(None), start(None)[0], T, **TIGHT)
    torch.testing.assert_close(parts_of(name, ys), reference, rtol=1e-5, atol=1e-6)
    decay = torch.exp(-T)[:, None] * STRUCTURES[name][1](y0)[2]
    torch.testing.assert_close(STRUCTURES[name][1](ys)[2], decay, rtol=1e-5, atol=1e-6)


@EACH
@pytest.mark.parametrize("how", ["direct", "gq"])
def test_gradients_are_those_of_one_tensor(name: str, how: str) -> None:
    for found, wanted in zip(gradient(name, how, **TIGHT), gradient(None, "direct", **TIGHT), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["auto", *ALL, qj.DiscreteAdjoint(max_states=2), qj.Direct(memory_limit=4000)], ids=str)
def test_every_gradient_takes_a_nested_state(how: Any) -> None:
    name = "dict in a list in a named tuple"
    for found, wanted in zip(gradient(name, how, **TIGHT), gradient(None, "direct", **TIGHT), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["discrete", "gq"])
def test_second_derivatives_of_a_nested_state(how: str) -> None:
    def penalty(name: str | None, how: str) -> list[Tensor]:
        f, (y0, parts) = Oscillator(name), start(name)
        ys = parts_of(name, qj.odeint(f, y0, T, gradient=how, **TIGHT))
        (g,) = torch.autograd.grad(loss(ys), f.w, create_graph=True)
        return list(torch.autograd.grad(g.square(), [*parts, f.w]))

    for found, wanted in zip(penalty("named tuple in a dict", how), penalty(None, "direct"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@EACH
def test_the_continuous_solution_has_the_structure(name: str) -> None:
    y0, _ = start(name)
    sol, plain = (qj.solve(Oscillator(n), start(n)[0], T, **TIGHT) for n in (name, None))
    at = times(0.2, 0.9)
    assert same_structure(sol(0.5), y0) and same_structure(sol(at), y0)
    torch.testing.assert_close(parts_of(name, sol(at)), plain(at), rtol=1e-5, atol=1e-6)


@EACH
def test_events_callbacks_and_norms_see_the_structure(name: str) -> None:
    y0, _ = start(name)
    seen: list[bool] = []
    take = STRUCTURES[name][1]

    class Watched(Oscillator):
        def callback_accept_step(self, t: Tensor, y: Any, dt: Tensor) -> None:
            seen.append(same_structure(y, y0))

    def norm(y: Any) -> Tensor:
        seen.append(same_structure(y, y0))
        return torch.stack(take(y)).abs().max()

    def event(t: Tensor, y: Any) -> Tensor:
        seen.append(same_structure(y, y0))
        return take(y)[2].abs().max() - 0.5 * take(y0)[2].detach().abs().max()

    time, ys = qj.odeint(Watched(name), y0, T[[0, -1]], event_fn=event, options={"norm": norm}, rtol=1e-8, atol=1e-8)
    assert seen and all(seen) and same_structure(ys, y0)
    torch.testing.assert_close(time, torch.tensor(2.0, dtype=torch.float64).log(), rtol=1e-5, atol=1e-6)


@EACH
def test_times_per_sample(name: str) -> None:
    t = torch.stack([times(0.0, 0.5, 1.0), times(0.0, 0.7, 2.0), times(0.1, 0.2, 0.3), times(0.0, 1.0, 1.5)])
    y0, parts = start(name)
    ys = qj.odeint(Oscillator(name), y0, t, **TIGHT)
    assert same_structure(ys, y0)
    m = STRUCTURES[name][1](ys)[2]
    torch.testing.assert_close(m, torch.exp(-(t.T - t[:, 0])) * parts[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dict", "nested tuple"])
@pytest.mark.parametrize("method", ["rk4", "implicit_adams", "alf", "scipy_solver"])
def test_every_kind_of_method(name: str, method: str) -> None:
    options = {"step_size": 0.02} if method in ("rk4", "implicit_adams") else {}
    y0, _ = start(name)
    with torch.no_grad():
        ys = qj.odeint(Oscillator(name), y0, T, method=method, options=options, rtol=1e-5, atol=1e-5)
        wanted = qj.odeint(Oscillator(None), start(None)[0], T, **TIGHT)
    assert same_structure(ys, y0)
    torch.testing.assert_close(parts_of(name, ys), wanted, rtol=1e-3, atol=1e-3)


def test_tolerances_in_the_structure_of_the_state() -> None:
    """A tight tolerance on one tensor gives what it gives as a tensor of tolerances of the packed state."""
    f, (y0, _) = Oscillator("named tuple in a dict"), start("named tuple in a dict")
    rows = torch.tensor([1e-8, 1e-2, 1e-3], dtype=torch.float64).repeat_interleave(4)
    wanted = qj.solve(f, y0, T, rtol=rows, atol=1e-9)
    found = qj.solve(f, y0, T, rtol={"b": Body(1e-8, 1e-2), 3: 1e-3}, atol=1e-9)
    assert found.stats.accepted_steps == wanted.stats.accepted_steps
    assert all(torch.equal(a, b) for a, b in zip(flat(found.ys), flat(wanted.ys), strict=True))
    spread = qj.solve(f, y0, T, rtol={3: 1e-3, "b": 1e-8}, atol=1e-9)  # one number for x and v
    rows[4:8] = 1e-8
    again = qj.solve(f, y0, T, rtol=rows, atol=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(flat(spread.ys), flat(again.ys), strict=True))


def flat(state: Any) -> list[Tensor]:
    return Structure.of(state).flatten(state)


@EACH
def test_a_neural_ode_returns_what_it_was_given(name: str) -> None:
    y0, _ = start(name)
    ode = NeuralODE(Oscillator(name), span=(0.0, 1.3), **TIGHT)
    end = ode(y0)
    assert same_structure(end, y0)
    for found, wanted in zip(flat(end), flat(ode.trajectory(y0, T)), strict=True):
        assert found.shape == (4,)
        torch.testing.assert_close(found, wanted[-1], rtol=1e-5, atol=1e-6)
    assert same_structure(ode.solve(y0)(1.0), y0)


def test_a_neural_ode_has_the_tolerances_of_odeint() -> None:
    y0, _ = start("dict")
    f = Oscillator("dict")
    for found, wanted in zip(flat(NeuralODE(f)(y0)), flat(qj.odeint(f, y0, times(0.0, 1.0))), strict=True):
        assert torch.equal(found, wanted[-1])


def test_a_neural_ode_of_a_dict_with_compiled_steps_and_named_tensors() -> None:
    class Late(Oscillator):
        """Uses ``late`` after the start only, where it is not found."""

        late = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

        def forward(self, t: Tensor, y: Any) -> Any:
            out = super().forward(t, y)
            return {**out, "m": out["m"] * (1.0 if float(t) == 0.0 else late)}

    late = Late.late
    f, (y0, _) = Late("dict"), start("dict")
    end = NeuralODE(f, gradient="discrete", params=[late], **TIGHT)(y0)
    (found,) = torch.autograd.grad(end["m"].sum(), late)
    h = 1e-6
    with torch.no_grad():
        values = []
        for shift in (h, -2 * h):
            late += shift
            values.append(NeuralODE(f, **TIGHT)(y0)["m"].sum())
        late += h
    torch.testing.assert_close(found, (values[0] - values[1]) / (2 * h), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dict", "dict in a list in a named tuple"])
def test_compiled_steps_of_a_structure(name: str) -> None:
    for found, wanted in zip(
        gradient(name, "direct", compile=True, **TIGHT), gradient(None, "direct", **TIGHT), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_order_of_the_keys_that_f_returns_does_not_matter() -> None:
    f = Oscillator("dict")
    y0, _ = start("dict")
    turned = qj.odeint(lambda t, y: dict(reversed(f(t, y).items())), y0, T)
    wanted = qj.odeint(f, y0, T)
    assert list(turned) == ["x", "v", "m"]
    assert all(torch.equal(turned[key], wanted[key]) for key in wanted)


def test_a_tuple_of_another_class_counts_as_a_tuple() -> None:
    ys = qj.odeint(lambda t, y: Pair(-part for part in y), Pair((torch.ones(2), torch.ones(3))), T)
    assert type(ys) is tuple


def test_a_sequence_of_the_same_length_is_accepted_of_f() -> None:
    """A list for a tuple, a tuple for a named tuple, another mapping for a dict."""
    y0 = Body(torch.ones(2), torch.ones(3))
    ys = qj.odeint(lambda t, y: [-y.x, -y.v], y0, T)
    assert isinstance(ys, Body) and ys.v.shape == (4, 3)


@pytest.mark.parametrize(
    "state", [(torch.ones(2),), {"y": torch.ones(2)}, [torch.ones(2)]], ids=["tuple", "dict", "list"]
)
def test_a_single_tensor_in_a_container(state: Any) -> None:
    ys = qj.odeint(lambda t, y: map_leaves(torch.neg, y), state, T)
    assert same_structure(ys, state) and flat(ys)[0].shape == (4, 2)


def test_a_constructor_of_grids_sees_the_structure_and_the_function() -> None:
    f, (y0, _) = Oscillator("dict"), start("dict")

    def grid(f: Any, y0: Any, t: Tensor) -> Tensor:
        assert set(f(t[0], y0)) == {"x", "v", "m"}
        return torch.linspace(float(t[0]), float(t[-1]), 14, dtype=t.dtype)

    assert same_structure(qj.odeint(f, y0, times(0.0, 1.3), method="rk4", options={"grid_constructor": grid}), y0)


def test_the_drop_in_takes_them_too() -> None:
    y0, _ = start("dict")
    assert same_structure(drop_in(Oscillator("dict"), y0, T), y0)


def test_layouts_are_equal_and_hashable_where_structures_are_alike() -> None:
    """Compiled steps are kept by the layout of the state."""
    for name in STRUCTURES:
        a, b = (Layout.of(start(name)[0]) for _ in range(2))
        assert a == b and hash(a) == hash(b)
    assert len({Layout.of(start(name)[0]) for name in STRUCTURES}) == len(STRUCTURES)


BODY = {"b": Body(torch.ones(2), torch.ones(2)), "m": torch.ones(3)}
REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no entry": (BODY, lambda y: {"b": y["b"]}, ValueError, r"f returned no entry 'm', where the state has a dict of"),
    "one entry more": (BODY, lambda y: {**y, "k": 1}, ValueError, r"f returned an entry 'k', where the state"),
    "no dict": (BODY, lambda y: tuple(y.values()), ValueError, r"f returned a tuple of 2, where.*a dict of 'b', 'm'"),
    "short inside": (BODY, lambda y: {**y, "b": [y["m"]]}, ValueError, r"a list of 1 at \['b'\], where.*a Body of 2"),
    "tensor inside": (BODY, lambda y: {**y, "b": y["m"]}, ValueError, r"a Tensor at \['b'\], where.*a Body of 2"),
    "nothing inside": (BODY, lambda y: {**y, "b": None}, ValueError, r"f returned None at \['b'\]"),
    "no tensor": (BODY, lambda y: {**y, "b": Body(1.0, y["m"])}, TypeError, r"f returned float for y\['b'\]\.x"),
    "shape": (BODY, lambda y: {**y, "m": y["b"].x}, ValueError, r"shape \(2,\) for y\['m'\], which has shape \(3,\)"),
    "dtype": (BODY, lambda y: {**y, "m": y["m"].double()}, TypeError, r"float64 for y\['m'\], which has torch.float32"),
    "a dict for a tensor": ((torch.ones(2),), lambda y: ({"x": y[0]},), TypeError, r"f returned dict for y\[0\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_structure_is_refused_by_its_path(case: str) -> None:
    y0, change, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        qj.odeint(lambda t, y: change(y), y0, torch.tensor([0.0, 1.0]))


def test_initial_states_that_cannot_be_solved_are_refused_by_their_paths() -> None:
    t, one = torch.tensor([0.0, 1.0]), torch.ones(2)
    cases: list[tuple[Any, type[Exception], str]] = [
        ({"x": one, "v": [1.0]}, TypeError, r"y0\['v'\]\[0\] is a float"),
        ({"x": one, "v": None}, TypeError, r"y0\['v'\] is a NoneType"),
        ({"x": one, "v": one.double()}, TypeError, r"y0\['v'\] is torch.float64 on cpu, y0\['x'\] is torch.float32"),
        (Body(one, one * 1j), TypeError, r"y0\.v is torch.complex64 on cpu, y0\.x is torch.float32"),
        ([one, one / 0.0], ValueError, r"y0\[1\] has entries that are NaN or infinite"),
        ({}, TypeError, r"got an empty dict"),
        ({"x": {}, "v": ()}, TypeError, r"got an empty dict"),
        ({"x": one.int()}, TypeError, r"y0\['x'\] must be floating point"),
        ({1, 2}, TypeError, r"tensors in tuples, named tuples, lists or dicts; got set"),
    ]
    for y0, kind, message in cases:
        with pytest.raises(kind, match=message):
            qj.odeint(lambda t, y: y, y0, t)


def test_tolerances_of_another_structure_are_refused() -> None:
    t = torch.tensor([0.0, 1.0])
    cases: list[tuple[Any, type[Exception], str]] = [
        ({"b": 1e-3}, ValueError, r"rtol has no entry 'm'"),
        ({"b": (1e-3,), "m": 1e-3}, ValueError, r"rtol has a tuple of 1 at \['b'\]"),
        ({"b": 1e-3, "m": "small"}, TypeError, r"rtol\['m'\] must be a number or a tensor; got str"),
        ((1e-3, 1e-3), ValueError, r"rtol has a tuple of 2, where the state has a dict"),
    ]
    for rtol, kind, message in cases:
        with pytest.raises(kind, match=message):
            qj.odeint(lambda t, y: y, BODY, t, rtol=rtol)
