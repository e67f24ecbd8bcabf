"""The truncated expansions of the Wiener process: their laws, their two stores, their shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quadjoint.sde import KarhunenLoeve, LegendrePolynomials, WienerPath
from quadjoint.sde.draws import BLOCK

T0, T1 = 0.5, 3.0
C = T1 - T0
EXPANSIONS = [KarhunenLoeve, LegendrePolynomials]


def draw(expansion: type[WienerPath], shape: tuple[int, ...], terms: int, **kwargs: object) -> WienerPath:
    kwargs = {"seed": 0, "dtype": torch.float64, **kwargs}
    return expansion.sample(shape, T0, T1, terms=terms, **kwargs)  # type: ignore[arg-type]


def gauss_legendre(n: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(n)
    return torch.from_numpy(T0 + C * (x + 1) / 2), torch.from_numpy(w * C / 2)


def variance(expansion: type[WienerPath], terms: int, t: Tensor) -> Tensor:
    """Σ_i (∫ φ_i)², the variance of the truncated series."""
    return draw(expansion, (1,), terms).integral(t).square().sum(0)


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_basis_is_orthonormal(expansion: type[WienerPath]) -> None:
    t, w = gauss_legendre(60)
    phi = draw(expansion, (1,), 20).basis(t)
    torch.testing.assert_close((phi * w) @ phi.T, torch.eye(20, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_derivative_is_the_derivative_of_the_path_which_starts_at_zero(expansion: type[WienerPath]) -> None:
    path = draw(expansion, (4, 3), 20)
    t = torch.tensor(1.2, dtype=torch.float64)
    torch.testing.assert_close(torch.func.jacrev(path)(t), path.derivative(t))
    torch.testing.assert_close(path(torch.full_like(t, T0)), torch.zeros(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("expansion", EXPANSIONS)
@pytest.mark.parametrize("terms", [1, 3, 10, 40])
def test_variance_is_that_of_the_truncated_series_at_every_time(expansion: type[WienerPath], terms: int) -> None:
    n = 20000
    path = draw(expansion, (n,), terms)
    for t in torch.linspace(T0, T1, 7, dtype=torch.float64)[1:]:
        exact = float(variance(expansion, terms, t))
        # The sample variance of n normal numbers has relative standard deviation sqrt(2 / n); four of them.
        assert float(path(t).square().mean()) == pytest.approx(exact, rel=4 * math.sqrt(2 / n))
        assert abs(float(path(t).mean())) < 4 * math.sqrt(exact / n)


def test_variance_of_the_cosines_is_the_series_of_the_paper() -> None:
    t = torch.linspace(T0, T1, 9, dtype=torch.float64)
    series = torch.zeros_like(t)
    for i in range(1, 11):
        k = (i - 0.5) * math.pi
        series += 2 * C * (torch.sin(k * (t - T0) / C) / k) ** 2
    torch.testing.assert_close(variance(KarhunenLoeve, 10, t), series)


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_mean_square_error_falls_as_one_over_m(expansion: type[WienerPath]) -> None:
    t, w = gauss_legendre(400)

    def error(m: int) -> float:  # ∫ E (W - B_m)² dt = ∫ (t - t0 - Var B_m) dt, the two being orthogonal
        return float(w @ (t - T0 - variance(expansion, m, t)))

    orders = [4, 8, 16, 32, 64]
    slope = np.polyfit(np.log(orders), np.log([error(m) for m in orders]), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.05)


def test_mean_square_error_of_the_cosines_on_drawn_paths_is_the_tail_of_the_series() -> None:
    n, fine = 500, 1000
    t, w = gauss_legendre(40)
    reference = torch.stack([draw(KarhunenLoeve, (n,), fine)(ti) for ti in t])
    for m in (5, 10, 20, 40):
        path = draw(KarhunenLoeve, (n,), m)  # the same seed: the same first m coefficients
        difference = reference - torch.stack([path(ti) for ti in t])
        squared = (w @ difference.square()).mean()
        tail = C**2 * sum(((i - 0.5) * math.pi) ** -2 for i in range(m + 1, fine + 1))
        assert float(squared) == pytest.approx(tail, rel=0.1)
        assert tail == pytest.approx(C**2 / (math.pi**2 * m), rel=0.06)


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_endpoints_are_normal(expansion: type[WienerPath]) -> None:
    end = torch.tensor(T1, dtype=torch.float64)
    values = draw(expansion, (5000,), 10)(end) / variance(expansion, 10, end).sqrt()
    assert kstest(values.numpy(), "norm").pvalue > 0.01
    # With enough terms the law is that of W itself; the polynomials have it at t1 from the first term on.
    terms = 1 if expansion is LegendrePolynomials else 200
    values = draw(expansion, (5000,), terms, seed=1)(end) / math.sqrt(C)
    assert kstest(values.numpy(), "norm").pvalue > 0.01


def test_polynomials_keep_the_endpoint_and_the_integral_of_the_path() -> None:
    t, w = gauss_legendre(60)
    end = torch.tensor(T1, dtype=torch.float64)
    coarse, fine = draw(LegendrePolynomials, (7,), 2), draw(LegendrePolynomials, (7,), 50)
    torch.testing.assert_close(coarse(end), fine(end))
    torch.testing.assert_close(w @ torch.func.vmap(coarse)(t), w @ torch.func.vmap(fine)(t))


def test_samples_components_and_seeds_are_independent() -> None:
    n = 4000
    t = torch.tensor(1.7, dtype=torch.float64)
    # Rows: four samples of three components in n draws (the last dimension), from two seeds.
    rows = torch.cat([draw(KarhunenLoeve, (4 * 3, n), 10, seed=seed)(t) for seed in (0, 1)])
    correlation = torch.corrcoef(rows)
    off = correlation - torch.eye(len(rows), dtype=torch.float64)
    assert float(off.abs().max()) < 4.5 / math.sqrt(n)


@pytest.mark.parametrize("expansion", EXPANSIONS)
@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    terms=st.integers(0, 3 * BLOCK),
    shape=st.sampled_from([(5,), (5, 3), (5, 2, 3)]),
    seed=st.integers(0, 2**63),
)
def test_both_stores_agree_to_the_bit(
    expansion: type[WienerPath], terms: int, shape: tuple[int, ...], seed: int
) -> None:
    kept = draw(expansion, shape, terms, seed=seed, dtype=torch.float32)
    again = draw(expansion, shape, terms, seed=seed, dtype=torch.float32, store="seed")
    one, each = torch.tensor(1.3), torch.linspace(T0, T1, 5)
    for a, b in ((kept, again), (kept.derivative, again.derivative)):
        assert torch.equal(a(one), b(one))
        assert torch.equal(a(each), b(each))
        assert torch.equal(torch.func.vmap(a)(each), torch.func.vmap(b)(each))


def test_regenerated_path_makes_no_tensor_larger_than_a_block() -> None:
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                self.numel = max(self.numel, out.numel())
            return out

    path = draw(KarhunenLoeve, (100,), 20 * BLOCK, store="seed")
    with Largest() as largest:
        path.derivative(torch.tensor(1.0))
    assert 0 < largest.numel <= BLOCK * 100
    held = [x for x in vars(path.coefficients).values() if isinstance(x, Tensor | tuple)]
    assert held == [torch.Size([100])]


@pytest.mark.parametrize("store", ["coefficients", "seed"])
def test_shapes_of_time(store: str) -> None:
    path = draw(KarhunenLoeve, (4, 3), 20, store=store)
    times = torch.linspace(T0, T1, 4, dtype=torch.float64)
    loop = torch.stack([path(t) for t in times])
    torch.testing.assert_close(torch.func.vmap(path)(times), loop)
    torch.testing.assert_close(path(times[:, None, None]), loop)  # a stack
    own = loop[range(4), range(4)]  # sample b at time b
    torch.testing.assert_close(path(times), own)
    torch.testing.assert_close(path(times[:, None]), own)
    twice = torch.func.vmap(torch.func.vmap(path))(times.reshape(2, 2))
    torch.testing.assert_close(twice.reshape_as(loop), loop)
    stacked = torch.func.vmap(path)(torch.stack([times[:, None], times.flip(0)[:, None]]))
    torch.testing.assert_close(stacked[0], own)


@pytest.mark.parametrize("store", ["coefficients", "seed"])
@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_differentiable_in_time_twice(expansion: type[WienerPath], store: str) -> None:
    path = draw(expansion, (3, 2), BLOCK + 4, store=store)
    times = torch.tensor([T0, 1.1, T1 - 0.1], dtype=torch.float64, requires_grad=True)
    for t in (times, times[1].detach().requires_grad_()):
        assert torch.autograd.gradcheck(path.derivative, t)
        assert torch.autograd.gradgradcheck(path.derivative, t)


def test_one_seed_is_one_path_in_every_precision_and_for_every_number_of_terms() -> None:
    t = torch.tensor(2.0)
    double, single = draw(KarhunenLoeve, (6,), 30), draw(KarhunenLoeve, (6,), 30, dtype=torch.float32)
    assert single(t).dtype == torch.float32
    torch.testing.assert_close(double(t.double()).float(), single(t))
    first = torch.cat(draw(KarhunenLoeve, (6,), 5).coefficients.blocks)  # type: ignore[union-attr]
    assert torch.equal(first, torch.cat(double.coefficients.blocks)[:5])  # type: ignore[union-attr]


def test_generators_are_explicit_and_the_global_one_is_untouched() -> None:
    t = torch.tensor(1.0, dtype=torch.float64)
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(7)
    one, two = (draw(KarhunenLoeve, (5,), 10, seed=None, generator=generator) for _ in range(2))
    assert not torch.allclose(one(t), two(t))
    for store in ("coefficients", "seed"):
        generator.manual_seed(7)
        assert torch.equal(draw(KarhunenLoeve, (5,), 10, seed=None, generator=generator, store=store)(t), one(t))
    assert torch.equal(torch.get_rng_state(), before)


def test_kept_path_can_be_compiled_whole() -> None:
    path = draw(KarhunenLoeve, (5, 2), BLOCK + 1)
    compiled = torch.compile(path.derivative, backend="aot_eager", fullgraph=True)
    for t in (torch.tensor(1.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)):
        torch.testing.assert_close(compiled(t), path.derivative(t))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": None}, "either seed= .* or generator="),
        ({"generator": torch.Generator()}, "either seed= .* or generator="),
        ({"store": "coefficient"}, "Did you mean 'coefficients'"),
        ({"terms": -1}, "at least 0"),
        ({"t1": T0}, "t0 < t1"),
    ],
)
def test_bad_input_is_refused_in_words(change: dict[str, object], message: str) -> None:
    arguments = {"t0": T0, "t1": T1, "seed": 0, **change}
    with pytest.raises(ValueError, match=message):
        KarhunenLoeve.sample((3,), **arguments)  # type: ignore[arg-type]


def test_complex_noise_is_refused() -> None:
    with pytest.raises(TypeError, match="a Wiener path is real"):
        draw(KarhunenLoeve, (3,), 2, dtype=torch.complex64)
