"""cdeint: torchcde's values, steps that end at kinks, times of each sample's own, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torchcde
from torch import Tensor, nn

import quadjoint as qj
import quadjoint.cde as cde
from quadjoint.cde.solve import Controlled
from quadjoint.solver.remembered import remembered

DTYPE = torch.float64
NAN = float("nan")
TIGHT = {"rtol": 1e-7, "atol": 1e-7}
BATCH, LENGTH, CHANNELS, HIDDEN = 3, 6, 2, 4


class Field(nn.Module):
    """A matrix for every state, which depends on time too."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.linspace(-1.0, 1.0, HIDDEN * HIDDEN * CHANNELS, dtype=DTYPE)
        self.weight = nn.Parameter(weight.reshape(HIDDEN, HIDDEN * CHANNELS).sin())
        self.calls = 0

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(z @ self.weight + 0.3 * torch.sin(t)).reshape(*z.shape, CHANNELS)


def data(*batch: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Observations with gaps, their times, and initial states."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.4 * torch.randn(*batch, LENGTH, CHANNELS, generator=generator, dtype=DTYPE)
    x = torch.where(torch.rand(x.shape, generator=generator, dtype=DTYPE) < 0.3, NAN, x)
    t = (0.3 + torch.rand(*batch, LENGTH, generator=generator, dtype=DTYPE)).cumsum(-1)
    return x, t, torch.randn(*batch, HIDDEN, generator=generator, dtype=DTYPE)


KINDS = {
    "linear": lambda m, x, t: m.LinearInterpolation(m.linear_interpolation_coeffs(x, t), t),
    "hermite": lambda m, x, t: m.CubicSpline(m.hermite_cubic_coefficients_with_backward_differences(x, t), t),
    "natural": lambda m, x, t: m.CubicSpline(m.natural_cubic_coeffs(x, t), t),
}


# Against torchcde -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adjoint", [True, False])
def test_states_and_gradients_are_torchcdes(kind: str, adjoint: bool) -> None:
    """One call, with another import; where steps should end, which torchcde has to be told, is known by itself."""
    x, t, z0 = data(2, 2)
    query, results = torch.linspace(float(t[0, 0, 0]), float(t[0, 0, -1]), 3, dtype=DTYPE), []
    for library in (cde, torchcde):
        f, start = Field(), z0.clone().requires_grad_()
        X = KINDS[kind](library, x, t[0, 0])
        jumps = {"options": {"jump_t": X.grid_points}} if library is torchcde else {}
        z = library.cdeint(X=X, func=f, z0=start, t=query, adjoint=adjoint, method="dopri5", **TIGHT, **jumps)
        assert z.shape == (2, 2, 3, HIDDEN)
        results.append((z, *torch.autograd.grad(z.cos().sum(), [start, f.weight])))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_default_tolerances_are_torchcdes() -> None:
    x, t, z0 = data(BATCH)
    f, X = Field(), cde.interpolate(x, t[0], time=False)
    assert torch.equal(cde.cdeint(X, f, z0, X.interval), cde.cdeint(X, f, z0, X.interval, rtol=1e-4, atol=1e-6))


def test_fixed_steps_are_torchcdes_on_a_smooth_path_and_better_on_one_with_kinks() -> None:
    """torchcde evaluates the derivative at a knot before the step on the wrong side of it, unless told otherwise."""
    x, _, z0 = data(BATCH)
    f, results = Field().requires_grad_(False), {}
    for kind in KINDS:
        paths = [KINDS[kind](library, x, None) for library in (cde, torchcde)]
        query = torch.linspace(0, LENGTH - 1, 4, dtype=DTYPE)
        settings: dict[str, Any] = {"method": "rk4", "options": {"step_size": 0.25}}
        ours = cde.cdeint(paths[0], f, z0, query, **settings)
        theirs = torchcde.cdeint(paths[1], f, z0, query, **settings)
        exact = cde.cdeint(paths[0], f, z0, query, **TIGHT)
        results[kind] = [float((z - exact).abs().max()) for z in (ours, theirs)]
        settings["options"]["jump_t"] = ()
        assert torch.allclose(cde.cdeint(paths[0], f, z0, query, **settings), theirs, rtol=1e-12)
    assert results["natural"][0] == pytest.approx(results["natural"][1], rel=1e-6)
    assert results["linear"][0] < 0.1 * results["linear"][1]


def test_a_function_with_prod_and_a_tuple_of_states() -> None:
    class Product:
        def prod(self, t: Tensor, z: Tensor, rate: Tensor) -> Tensor:
            return -z * rate.sum(-1, keepdim=True)

    x, t, z0 = data(BATCH)
    for kind in KINDS:
        X = KINDS[kind](cde, x, t[0])
        moved = (X.evaluate(X.interval[1]) - X.evaluate(X.interval[0])).sum(-1, keepdim=True)
        z = cde.cdeint(X, Product(), z0, X.interval, **TIGHT)
        torch.testing.assert_close(z[..., -1, :], z0 * (-moved).exp(), rtol=2e-6, atol=2e-6)

        def both(t: Tensor, z: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return tuple(-part.unsqueeze(-1).expand(*part.shape, CHANNELS) for part in z)  # type: ignore[return-value]

        pair = cde.cdeint(cde.TupleControl(X, X), both, (z0, 2 * z0), X.interval, **TIGHT)
        torch.testing.assert_close(pair[0], z, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(pair[1], 2 * z, rtol=2e-6, atol=2e-6)


# Kinks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_a_straight_line_a_step(own: bool) -> None:
    """On dz = A dX the state is A X: every step between two knots is exact, and none is rejected."""
    x, t, z0 = data(BATCH)
    X = cde.interpolate(x, t if own else t[0], kind="linear", time=False)
    matrix = torch.linspace(-1, 1, HIDDEN * CHANNELS, dtype=DTYPE).reshape(HIDDEN, CHANNELS)
    field = lambda t, z: matrix.expand(*z.shape[:-1], HIDDEN, CHANNELS)  # noqa: E731
    model = qj.nn.NeuralCDE(CHANNELS, HIDDEN, field=field, initial=lambda x0: z0, **TIGHT)
    stats = model.solve(X).stats
    assert stats.accepted_steps <= LENGTH + 1  # two more in the first piece, where the step size is found
    assert stats.rejected_steps == 0
    path = X.evaluate(X.grid_points)
    torch.testing.assert_close(model.trajectory(X, X.grid_points), z0[:, None] + (path - path[:, :1]) @ matrix.T)


@pytest.mark.parametrize("kind", ["hermite", "natural", "linear"])
@pytest.mark.parametrize("own", [False, True])
def test_steps_that_end_at_knots_need_fewer_evaluations(kind: Any, own: bool) -> None:
    x, t, z0 = data(BATCH)
    X = cde.interpolate(x, t if own else t[0], kind=kind, time=False)
    evaluations = []
    for options in ({}, {"jump_t": ()}):
        f = Field()
        cde.cdeint(X, f, z0, X.interval, rtol=1e-6, atol=1e-6, options=options)
        evaluations.append(f.calls)
    assert 1.2 * evaluations[0] < evaluations[1]


GRIDS = sorted(name for name, tableau in qj.TABLEAUS.items() if tableau.b_error is None and not name.startswith("my_"))


@pytest.mark.parametrize("name", GRIDS)
def test_no_step_of_a_grid_crosses_a_kink(name: str) -> None:
    """On dz = dX the state is X, whatever the grid; with times of each sample's own as well."""
    x = torch.tensor([[[0.0], [1.0], [0.0], [3.0]], [[0.0], [4.0], [2.0], [-1.0]]], dtype=DTYPE)
    one = lambda t, z: torch.ones(*z.shape, 1, dtype=DTYPE)  # noqa: E731
    own = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.4, 0.9, 2.0]], dtype=DTYPE)
    for X in (cde.LinearInterpolation(x), cde.LinearInterpolation(x, own)):
        for step in (1.0, 0.7, 3.0):
            z = cde.cdeint(X, one, x[:, 0], X.interval, method=name, options={"step_size": step})
            torch.testing.assert_close(z[:, -1], x[:, -1], rtol=1e-13, atol=1e-13)


def test_implicit_steps_keep_their_order_on_a_path_with_kinks() -> None:
    """On dz = z dX the state is exp(X). The kinks lie on none of the grids."""
    X = cde.LinearInterpolation(torch.tensor([[0.0], [1.0], [0.3], [-0.5]], dtype=DTYPE))
    for name in (name for name in GRIDS if not qj.TABLEAUS[name].explicit):
        ends = []
        for step in (0.17, 0.085):
            settings: dict[str, Any] = {"method": name, "options": {"step_size": step}}
            with torch.no_grad():
                z = cde.cdeint(X, lambda t, z: z.unsqueeze(-1), torch.ones(1, dtype=DTYPE), X.interval, **settings)
            ends.append(z)
        coarse, fine = (abs(float(z[-1, 0]) - math.exp(-0.5)) for z in ends)
        assert math.log2(coarse / fine) > qj.TABLEAUS[name].order - 0.5


def test_a_solve_may_start_at_a_kink() -> None:
    """The derivative there is that of the piece to come."""
    X = cde.LinearInterpolation(torch.tensor([[0.0], [5.0], [6.0]], dtype=DTYPE))
    one = torch.ones(1, dtype=DTYPE)
    z = cde.cdeint(X, lambda t, z: z.unsqueeze(-1), one, torch.tensor([1.0, 1.5], dtype=DTYPE), **TIGHT)
    torch.testing.assert_close(z[-1], torch.exp(0.5 * one), rtol=1e-6, atol=0.0)
    z = cde.cdeint(X, lambda t, z: z.unsqueeze(-1), one, torch.tensor([1.0, 0.5], dtype=DTYPE), **TIGHT)
    torch.testing.assert_close(z[-1], torch.exp(-2.5 * one), rtol=1e-6, atol=0.0)


def test_a_smooth_path_with_many_knots_is_not_cut_into_pieces() -> None:
    t = torch.linspace(0, 1, 400, dtype=DTYPE)
    X = cde.interpolate(torch.stack([t.sin(), t.cos()], dim=-1), t, kind="natural", time=False)
    f = Field()
    cde.cdeint(X, f, torch.ones(HIDDEN, dtype=DTYPE), X.interval)
    assert f.calls < 100


def test_a_path_leaves_nothing_behind_for_the_next() -> None:
    """Whatever was solved before with the same function, the numbers are the same bit for bit."""
    x, t, z0 = data(BATCH)
    f, X = Field(), cde.interpolate(x, t[0], time=False)
    first, count = cde.cdeint(X, f, z0, X.interval), f.calls
    other = cde.interpolate(data(BATCH, seed=1)[0] * 30, t[0], kind="linear", time=False)
    cde.cdeint(other, f, z0, X.interval, rtol=1e-7)
    f.calls = 0
    assert torch.equal(cde.cdeint(X, f, z0, X.interval), first) and f.calls == count
    assert not remembered(Controlled(other, f))


# Times of each sample's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "method"), [*((kind, "dopri5") for kind in KINDS), ("linear", "rk4")])
def test_samples_with_times_of_their_own_are_solved_as_if_alone(kind: str, method: str) -> None:
    x, t, z0 = data(BATCH)
    t[0, 4:] = t[2, 2:] = NAN
    lengths = (4, LENGTH, 2)
    f, X = Field(), KINDS[kind](cde, x, t)
    fixed: dict[str, Any] = {"method": "rk4", "options": {"step_size": 0.05}}
    settings, within = (TIGHT, 2e-6) if method == "dopri5" else (fixed, 2e-5)
    z = cde.cdeint(X, f, z0, t, **settings)
    assert z.shape == (BATCH, LENGTH, HIDDEN)
    for row, length in enumerate(lengths):
        alone = KINDS[kind](cde, x[row, :length], t[row, :length])
        wanted = cde.cdeint(alone, f, z0[row], t[row, :length], **TIGHT)
        torch.testing.assert_close(z[row, :length], wanted, rtol=within, atol=within)
        torch.testing.assert_close(z[row, length:], z[row, length - 1].expand(LENGTH - length, -1))


def test_one_of_path_and_solve_may_have_shared_times() -> None:
    """A sample waits for the start of its path, and stands still after its end."""
    x, t, z0 = data(BATCH)
    f, wide = Field(), torch.tensor([0.0, 0.5, 10.0], dtype=DTYPE)
    for kind in KINDS:
        X = KINDS[kind](cde, x, t)
        z = cde.cdeint(X, f, z0, wide, **TIGHT)
        torch.testing.assert_close(z[:, -1], cde.cdeint(X, f, z0, X.interval, **TIGHT)[:, -1], rtol=2e-6, atol=2e-6)
        shared = KINDS[kind](cde, x, t[0])
        own = torch.stack([t[0, [0, 2]], t[0, [1, 5]], t[0, [3, 4]]])
        z = cde.cdeint(shared, f, z0, own, **TIGHT)
        for row in range(BATCH):
            alone = cde.cdeint(KINDS[kind](cde, x[row], t[0]), f, z0[row], own[row], **TIGHT)
            torch.testing.assert_close(z[row], alone, rtol=2e-6, atol=2e-6)


def test_single_precision() -> None:
    """The derivative is taken on the right side of a kink, though times of samples round to their knots."""
    x, t, z0 = data(BATCH)
    f = Field()
    for kind in KINDS:
        for own in (t, t[0]):
            exact = cde.cdeint(KINDS[kind](cde, x, own), f, z0, own, **TIGHT)
            single = cde.cdeint(KINDS[kind](cde, x.float(), own.float()), f.float(), z0.float(), own.float(), rtol=1e-6)
            torch.testing.assert_close(single.double(), exact, rtol=2e-4, atol=2e-5)
            f.double()


# The layer ------------------------------------------------------------------------------------------------------------


def test_forward_is_the_end_of_the_trajectory_of_each_sample() -> None:
    x, t, _ = data(BATCH)
    t[1, 3:] = NAN
    model = qj.nn.NeuralCDE(CHANNELS + 1, HIDDEN, width=8).double()
    X = cde.interpolate(x, t)
    ends = model.trajectory(X, t)[:, -1]
    torch.testing.assert_close(model(X), ends, rtol=1e-3, atol=1e-5)
    shorter = cde.interpolate(x[1, :3], t[1, :3])
    torch.testing.assert_close(model(X)[1], model(shorter), rtol=1e-2, atol=1e-4)
    assert "channels=3, hidden=4" in repr(model)


@pytest.mark.slow
def test_a_compiled_layer_has_the_same_numbers_for_every_path() -> None:
    models = [
        qj.nn.NeuralCDE(CHANNELS + 1, HIDDEN, width=8, method="bosh3", compile=compiled).double().requires_grad_(False)
        for compiled in (False, True)
    ]
    models[1].load_state_dict(models[0].state_dict())
    for seed in range(2):
        x, t, _ = data(BATCH, seed=seed)
        X = cde.interpolate(x, t[0], kind="natural")
        plain, compiled = (model(X) for model in models)
        torch.testing.assert_close(compiled, plain)


# Messages -------------------------------------------------------------------------------------------------------------


def call(**changes: Any) -> Any:
    x, t, z0 = data(BATCH)
    arguments: dict[str, Any] = {"X": cde.interpolate(x, t[0], time=False), "func": Field(), "z0": z0, "t": t[0]}
    return cde.cdeint(**{**arguments, **changes})


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no control": ({"X": torch.ones(3)}, TypeError, "X must have a method derivative(t); got Tensor."),
    "backend": ({"backend": "torchsde"}, ValueError, "method='midpoint', options={'step_size': dt}"),
    "argument": ({"tolerance": 1}, TypeError, "unexpected keyword argument 'tolerance'"),
    "batch": ({"z0": torch.ones(5, HIDDEN, dtype=DTYPE)}, ValueError, "X has a batch of shape (3,), but the state"),
    "precision": (
        {"z0": torch.ones(BATCH, HIDDEN)},
        TypeError,
        "X is torch.float64 on cpu, but the state is torch.float32",
    ),
    "field": ({"func": lambda t, z: z}, ValueError, "func must return shape (..., hidden, channels), here (3, 4, 2)"),
    "tuple": ({"z0": (torch.ones(BATCH, HIDDEN, dtype=DTYPE),)}, TypeError, "use TupleControl"),
    "times": ({"t": [0.0, 1.0]}, TypeError, "t must be a tensor of times"),
    "options": ({"options": {"jump": 1}}, ValueError, "options['jump'] is not an option"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_words(case: str) -> None:
    changes, kind, message = REFUSED[case]
    with pytest.raises(kind, match=re.escape(message)):
        call(**changes)


def test_settings_of_a_backward_solve_are_mentioned() -> None:
    with pytest.warns(qj.QuadjointWarning, match=r"adjoint_rtol has no effect in cdeint.* gradient=quadjoint.Adjoint"):
        call(adjoint_rtol=1e-3)


def test_methods_given_as_objects_end_steps_at_kinks_too() -> None:
    """And their gradient is the transpose, not a backward solve: exact for what was computed."""
    data = torch.tensor([[0.0], [1.0], [0.0], [3.0]], dtype=DTYPE, requires_grad=True)
    for method in ("rk4", qj.TABLEAUS["rk4"]):
        X = cde.LinearInterpolation(data)
        z = cde.cdeint(
            X,
            lambda t, z: torch.ones(*z.shape, 1, dtype=DTYPE),
            torch.zeros(1, dtype=DTYPE),
            X.interval,
            method=method,  # type: ignore[arg-type]
            options={"step_size": 0.7},
        )
        assert z[-1].item() == pytest.approx(3.0, abs=1e-12)
        (found,) = torch.autograd.grad(z[-1].sum(), data)
        torch.testing.assert_close(found[:, 0], torch.tensor([-1.0, 0.0, 0.0, 1.0], dtype=DTYPE), rtol=0, atol=1e-12)


def test_kinks_of_several_controls_are_counted_once() -> None:
    data = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]], dtype=DTYPE)
    X = cde.LinearInterpolation(data)
    z0, t = torch.zeros(1, 1, dtype=DTYPE), torch.tensor([[0.0, 1.5, 3.0]], dtype=DTYPE)

    def field(t: Tensor, z: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.ones(1, 1, 1, dtype=DTYPE), torch.ones(1, 1, 1, dtype=DTYPE)

    first, second = cde.cdeint(cde.TupleControl(X, X), field, (z0, z0), t)
    torch.testing.assert_close(first[0, :, 0], t[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(second[0, :, 0], t[0], rtol=0, atol=1e-9)


def test_knots_of_each_samples_own_can_be_learnt_between_them() -> None:
    """z = X(end) - X(start) does not depend on the knots; past the ends of the path its derivative jumps."""
    x = torch.rand(1, 4, 1, dtype=DTYPE)
    knots = torch.tensor([[0.2, 0.5, 0.7, 0.9]], dtype=DTYPE, requires_grad=True)
    X = cde.interpolate(x, knots, time=False)
    ones, z0 = (lambda t, z: torch.ones(*z.shape, 1, dtype=DTYPE)), torch.zeros(1, 1, dtype=DTYPE)
    z = cde.cdeint(X, ones, z0, X.interval, rtol=1e-9, atol=1e-9)
    (found,) = torch.autograd.grad(z[:, -1].sum(), knots)
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="reaches past some of them"):
        cde.cdeint(X, ones, z0, torch.tensor([0.0, 1.0], dtype=DTYPE))


def test_times_of_a_layer_are_checked() -> None:
    model, X = cde_layer(), cde.interpolate(torch.rand(2, 4, 1))
    with pytest.raises(TypeError, match="t must be a tensor of times; got list"):
        model.trajectory(X, [0.0, 1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="t must be a tensor of times; got list"):
        model.solve(X, [0.0, 1.0])  # type: ignore[arg-type]


def cde_layer() -> qj.nn.NeuralCDE:
    return qj.nn.NeuralCDE(channels=2, hidden=3, width=4)


def test_times_that_are_not_given_must_be_distinct_in_the_precision_of_the_data() -> None:
    with pytest.raises(ValueError, match="strictly increasing in the precision of the data"):
        cde.interpolate(torch.zeros(300, 1, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="strictly increasing in the precision of the data"):
        cde.LinearInterpolation(torch.zeros(300, 1, dtype=torch.bfloat16))
