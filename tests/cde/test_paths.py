"""Paths through data: torchcde's numbers for shared times, one sample after another for times of each sample's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torchcde
from torch import Tensor

import quadjoint.cde as cde

DTYPE = torch.float64
NAN = float("nan")
COEFFICIENTS = [
    "linear_interpolation_coeffs",
    "hermite_cubic_coefficients_with_backward_differences",
    "natural_cubic_coeffs",
    "natural_cubic_spline_coeffs",
]


def data(*shape: int, missing: float = 0.3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=DTYPE)
    return torch.where(torch.rand(shape, generator=generator, dtype=DTYPE) < missing, NAN, x)


def times(length: int, seed: int = 0) -> Tensor:
    gaps = 0.1 + torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)
    return gaps.cumsum(0)


def path(library: Any, name: str, x: Tensor, t: Tensor | None) -> Any:
    kind = library.LinearInterpolation if name.startswith("linear") else library.CubicSpline
    return kind(getattr(library, name)(x, t), t)


# Against torchcde -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize("length", [2, 3, 9])
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.8])
def test_coefficients_are_torchcdes(name: str, length: int, missing: float) -> None:
    for shape in ((), (3,), (2, 2)):
        x = data(*shape, length, 4, missing=missing)
        for t in (None, times(length)):
            torch.testing.assert_close(getattr(cde, name)(x, t), getattr(torchcde, name)(x, t), rtol=1e-8, atol=1e-8)


def test_rectilinear_coefficients_are_torchcdes() -> None:
    x = data(3, 7, 4)
    x[..., 0, :] = 1.0
    x[..., 2] = times(7)
    ours, theirs = (library.linear_interpolation_coeffs(x, rectilinear=2) for library in (cde, torchcde))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_values_and_derivatives_are_torchcdes(name: str) -> None:
    x = data(2, 3, 8, 4)
    for t in (None, times(8)):
        ours, theirs = (path(library, name, x, t) for library in (cde, torchcde))
        assert torch.equal(ours.grid_points, theirs.grid_points)
        assert torch.equal(ours.interval, theirs.interval)
        first, last = ours.interval
        for query in (
            first - 1,
            0.5 * (first + last),
            ours.grid_points,
            torch.linspace(-1, 9, 30).double().reshape(5, 6),
        ):
            torch.testing.assert_close(ours.evaluate(query), theirs.evaluate(query), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(ours.derivative(query), theirs.derivative(query), rtol=1e-9, atol=1e-9)


def test_a_channel_that_was_never_observed_is_zero() -> None:
    x = torch.full((5, 2), NAN, dtype=DTYPE)
    x[1, 0] = 3.0
    for name in COEFFICIENTS:
        X = path(cde, name, x, None)
        torch.testing.assert_close(X.evaluate(X.grid_points), torch.tensor([3.0, 0.0], dtype=DTYPE).expand(5, 2))


# Times of each sample's own -------------------------------------------------------------------------------------------

LENGTHS = (6, 4, 2, 6, 1)


def ragged() -> tuple[Tensor, Tensor]:
    """Observations and times of five samples with NaN at their ends; some observations inside are missing."""
    x, t = data(5, 6, 3, seed=3), torch.stack([times(6, seed=i) for i in range(5)])
    for row, length in enumerate(LENGTHS):
        t[row, length:] = NAN
    x[:, 1, 1] = NAN
    return x, t


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_times_of_their_own_are_one_path_a_sample(name: str) -> None:
    """And each stands still before its first and after its last time."""
    x, t = ragged()
    X = path(cde, name, x, t)
    query = torch.stack([torch.linspace(t[b, 0], t[b, n - 1], 9, dtype=DTYPE) for b, n in enumerate(LENGTHS)])
    values, rates = X.evaluate(query), X.derivative(query)
    assert values.shape == rates.shape == (5, 9, 3)
    for row, length in enumerate(LENGTHS):
        if length > 1:
            alone = path(cde, name, x[row, :length], t[row, :length])
            torch.testing.assert_close(values[row], alone.evaluate(query[row]))
            torch.testing.assert_close(rates[row], alone.derivative(query[row]))
    outside = torch.tensor([-5.0, 50.0], dtype=DTYPE)
    assert not X.derivative(outside.expand(5, 2)).any()
    for when, column in zip(outside, (0, -1), strict=True):
        torch.testing.assert_close(X.evaluate(when), values[:, column])  # a number is a time for all samples
        assert not X.derivative(when).any()
    assert torch.equal(X.interval[:, 0], t[:, 0])
    assert torch.equal(X.grid_points.isnan(), t.isnan())


def test_equal_times_of_their_own_are_shared_times() -> None:
    x, t = data(3, 6, 2), times(6)
    for kind in ("linear", "hermite", "natural"):
        shared, own = cde.interpolate(x, t, kind=kind), cde.interpolate(x, t.expand(3, -1), kind=kind)
        for X in (shared.expand_times(), own):
            torch.testing.assert_close(X.evaluate(t), shared.evaluate(t))
            torch.testing.assert_close(X.derivative(t + 0.01)[:, :-1], shared.derivative(t + 0.01)[:, :-1])


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficients_are_differentiable_in_the_data(name: str) -> None:
    x, t = (part[:3] for part in ragged())
    missing = x.isnan()
    x = x.nan_to_num().requires_grad_()
    for when in (t, times(6)):
        torch.autograd.gradcheck(
            lambda x, when=when: getattr(cde, name)(torch.where(missing, NAN, x), when), x, fast_mode=True
        )


# From data to a path --------------------------------------------------------------------------------------------------


def test_channels_of_time_and_of_counts() -> None:
    x, t = ragged()
    X = cde.interpolate(x, t, kind="linear", counts=True)
    assert X.channels == 7
    torch.testing.assert_close(X.evaluate(t.nan_to_num(0.0))[0, :, 0], t[0])
    last = X.evaluate(X.interval)[:, -1]
    torch.testing.assert_close(last[:, 0], X.interval[:, 1])
    seen = torch.stack([(~x[b, :n].isnan()).sum(0) for b, n in enumerate(LENGTHS)])
    torch.testing.assert_close(last[:, 4:], seen.double())


def test_a_rectilinear_path_knows_nothing_before_it_was_observed() -> None:
    """What is observed later does not change it, and it stands still where a sample has ended."""
    x, t = ragged()
    x[:, 0] = 0.5
    X = cde.interpolate(x, t, kind="rectilinear")
    assert X.interval.tolist() == [0.0, 10.0]
    later = x.clone()
    later[:, 3:] = 7.0
    early = torch.linspace(0, 5, 21, dtype=DTYPE)
    torch.testing.assert_close(cde.interpolate(later, t, kind="rectilinear").evaluate(early), X.evaluate(early))
    assert not X.derivative(torch.tensor([2.5, 7.5], dtype=DTYPE))[2, 1:].any()
    assert X.derivative(torch.tensor(1.5, dtype=DTYPE))[0, 0] == 0  # time waits while the values follow


# Stacks of times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["linear", "natural"])
def test_vmap_over_times_is_a_loop(kind: Any, own: bool) -> None:
    x, t = ragged()
    X = cde.interpolate(x, t if own else times(6), kind=kind)
    stack = torch.linspace(0, 4, 12, dtype=DTYPE)
    stack = stack.reshape(12, 1, 1).expand(12, 5, 1) if own else stack
    for function in (X.evaluate, X.derivative):
        together = torch.func.vmap(function)(stack)
        torch.testing.assert_close(together, torch.stack([function(now) for now in stack]))


# Messages -------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "integers": (lambda: cde.natural_cubic_coeffs(torch.ones(3, 2, dtype=torch.long)), TypeError, "floating point"),
    "one observation": (lambda: cde.natural_cubic_coeffs(torch.ones(1, 2)), ValueError, "at least two observations"),
    "another length": (
        lambda: cde.linear_interpolation_coeffs(torch.ones(3, 2), torch.arange(4.0)),
        ValueError,
        "t must have shape (3,), or (B, 3)",
    ),
    "decreasing": (
        lambda: cde.linear_interpolation_coeffs(torch.ones(3, 2), torch.tensor([0.0, 2.0, 1.0])),
        ValueError,
        "strictly increasing",
    ),
    "no room": (
        lambda: cde.interpolate(torch.ones(2, 2), torch.tensor([1.7e9, 1.7e9 + 1], dtype=DTYPE)),
        ValueError,
        "subtract the first one",
    ),
    "NaN inside": (
        lambda: cde.interpolate(torch.ones(1, 3, 2), torch.tensor([[0.0, NAN, 1.0]])),
        ValueError,
        "padding must come last",
    ),
    "NaN in shared times": (
        lambda: cde.interpolate(torch.ones(2, 2), torch.tensor([0.0, NAN])),
        ValueError,
        "t must be finite",
    ),
    "raw data": (lambda: cde.LinearInterpolation(torch.full((3, 2), NAN)), ValueError, "coeffs has NaN"),
    "not coefficients": (lambda: cde.CubicSpline(torch.ones(3, 2)), ValueError, "coeffs must be what"),
    "time channel": (
        lambda: cde.linear_interpolation_coeffs(torch.ones(3, 2), rectilinear=2),
        ValueError,
        "index of the channel of times, 0 to 1",
    ),
    "gap in time": (
        lambda: cde.linear_interpolation_coeffs(torch.tensor([[0.0], [NAN], [1.0]]), rectilinear=0),
        ValueError,
        "NaN before its last time",
    ),
    "kind": (lambda: cde.interpolate(torch.ones(3, 2), kind="hermit"), ValueError, "Did you mean 'hermite'?"),
    "no time": (
        lambda: cde.interpolate(torch.ones(3, 2), kind="rectilinear", time=False),
        ValueError,
        "needs time as a channel",
    ),
    "learnt knots": (
        lambda: cde.LinearInterpolation(torch.ones(3, 2), torch.arange(3.0).requires_grad_()),
        ValueError,
        "cannot be learnt",
    ),
    "two batch dimensions": (
        lambda: cde.interpolate(torch.ones(2, 2, 3, 1)).expand_times(),
        ValueError,
        "a batch with one dimension",
    ),
    "times of another batch": (
        lambda: cde.interpolate(torch.ones(2, 3, 1), torch.arange(3.0).expand(2, 3)).evaluate(torch.zeros(5, 1)),
        ValueError,
        "shape (2, n), a row a sample",
    ),
    "no control": (lambda: cde.TupleControl(), ValueError, "at least one control"),
    "intervals": (
        lambda: cde.TupleControl(cde.interpolate(torch.ones(3, 1)), cde.interpolate(torch.ones(4, 1))),
        ValueError,
        "the same interval",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_words(case: str) -> None:
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_a_start_that_is_not_causal_is_mentioned() -> None:
    import quadjoint as qj

    with pytest.warns(qj.QuadjointWarning, match="begins with missing values"):
        cde.interpolate(torch.tensor([[NAN], [1.0], [2.0]]), kind="rectilinear")
