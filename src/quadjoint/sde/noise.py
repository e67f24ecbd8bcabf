"""Smooth approximations of the Wiener process.

A Wiener process on [t0, t1] is a series in any orthonormal basis φ_i of L²[t0, t1] with independent
standard normal coefficients ξ_i (Itô and Nisio 1968). Cut after m terms,

    B_m(t) = Σ_i ξ_i ∫_{t0}^t φ_i(s) ds,        dB_m/dt = Σ_i ξ_i φ_i(t)

is a smooth path that tends to W as m grows, and its derivative can drive an ODE. A new approximation is
one subclass of `WienerPath` with two methods: the basis and its integral.

>>> path = KarhunenLoeve.sample((1000, 2), t0=0.0, t1=1.0, terms=10, seed=0)
>>> path(torch.tensor(0.5)).shape, path.derivative(torch.tensor(0.5)).shape
(torch.Size([1000, 2]), torch.Size([1000, 2]))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor

from quadjoint.errors import nearest
from quadjoint.sde.draws import Kept, Regenerated, seed_and_device

Store = Literal["coefficients", "seed"]
Path = TypeVar("Path", bound="WienerPath")


class WienerPath(ABC):
    """One path of a truncated expansion: fixed once drawn, the same forwards and backwards.

    Nothing is drawn from torch's global generator, and a path holds no state of a solve, so any number of
    them can be alive at once. With one seed, more terms refine the same path: the first m coefficients
    stay. The numbers are drawn in float32 on the device of the generator (the CPU for a plain seed) and
    then cast and moved, so that one seed is one path in every precision and on every device.
    """

    def __init__(self, coefficients: Kept | Regenerated, t0: float, t1: float) -> None:
        self.coefficients = coefficients
        self.t0, self.t1 = t0, t1
        self.shape, self.terms = coefficients.shape, coefficients.terms

    @classmethod
    def sample(
        cls: type[Path],
        shape: Sequence[int],
        t0: float,
        t1: float,
        *,
        terms: int = 10,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        store: Store = "coefficients",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Path:
        """Draw a path with independent components of the given shape, from a seed or a generator.

        ``store="coefficients"`` keeps ξ (``terms`` times the state); ``store="seed"`` keeps only a seed and
        draws ξ again in every evaluation, in memory that does not grow with ``terms``. Both give equal
        results to the bit, for both sum the series in the same blocks.
        """
        stores = {"coefficients": Kept, "seed": Regenerated}
        if store not in stores:
            raise ValueError(f"unknown store {store!r}.{nearest(store, stores)}")
        if terms < 0:
            raise ValueError(f"terms must be at least 0, got {terms}.")
        if not t0 < t1:
            raise ValueError(f"a path lives on an interval t0 < t1, got [{t0}, {t1}].")
        number, source = seed_and_device(seed, generator)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise TypeError(f"a Wiener path is real: dtype must be a floating-point type, got {dtype}.")
        device = torch.device("cpu" if device is None else device)
        return cls(stores[store](torch.Size(shape), terms, number, source, dtype, device), t0, t1)

    @abstractmethod
    def basis(self, t: Tensor) -> Tensor:
        """The orthonormal functions φ_i at t, stacked along a new first dimension: (terms, *t.shape)."""

    @abstractmethod
    def integral(self, t: Tensor) -> Tensor:
        """The integrals of φ_i from t0 to t, stacked along a new first dimension: (terms, *t.shape)."""

    def derivative(self, t: Tensor) -> Tensor:
        """dB_m/dt at one time (0-d), or at a time per sample: shape (B,) or anything that broadcasts."""
        return self.coefficients.combine(self.basis(t))

    def __call__(self, t: Tensor) -> Tensor:
        """B_m(t), with the same shapes of t as `derivative`."""
        return self.coefficients.combine(self.integral(t))

    def constant(self, values: Iterable[float]) -> Tensor:
        """Numbers of the expansion as a tensor beside the coefficients."""
        return torch.tensor(list(values), dtype=self.coefficients.dtype, device=self.coefficients.device)

    def __repr__(self) -> str:
        interval = f"t0={self.t0}, t1={self.t1}"
        return f"{type(self).__name__}(shape={tuple(self.shape)}, {interval}, terms={self.terms})"


class KarhunenLoeve(WienerPath):
    """The Karhunen-Loève expansion, with c = t1 - t0 and ω_i = (i - 1/2) π / c:

        dB_m/dt = √(2/c) Σ_{i=1}^m ξ_i cos(ω_i (t - t0)).

    No expansion of m terms has a smaller mean-square error over the interval: it is
    c² Σ_{i>m} 1 / ((i - 1/2) π)², about c² / (π² m).

    >>> from quadjoint.sde import KarhunenLoeve
    >>> path = KarhunenLoeve.sample((3,), t0=0.0, t1=1.0, terms=10, seed=0)
    >>> path(torch.tensor(0.0)).abs().max().item()  # W(0) = 0
    0.0
    """

    def __init__(self, coefficients: Kept | Regenerated, t0: float, t1: float) -> None:
        super().__init__(coefficients, t0, t1)
        self.frequencies = self.constant((i + 0.5) * math.pi / (t1 - t0) for i in range(self.terms))
        self.scale = math.sqrt(2 / (t1 - t0))

    def basis(self, t: Tensor) -> Tensor:
        return self.scale * torch.cos(self.frequencies.reshape(-1, *[1] * t.dim()) * (t - self.t0))

    def integral(self, t: Tensor) -> Tensor:
        frequencies = self.frequencies.reshape(-1, *[1] * t.dim())
        return self.scale * torch.sin(frequencies * (t - self.t0)) / frequencies


class LegendrePolynomials(WienerPath):
    """The polynomial expansion of Foster, Lyons and Oberhauser (SIAM J. Numer. Anal. 58, 2020):

        dB_m/dt = Σ_{k=0}^{m-1} ξ_k √((2k + 1)/c) P_k(x),    x = 2 (t - t0)/c - 1,

    so that B_m has degree m. Its value at t1 and its first m - 1 moments over the interval are those of W
    itself.

    >>> from quadjoint.sde import LegendrePolynomials
    >>> path = LegendrePolynomials.sample((1000,), t0=0.0, t1=4.0, terms=3, seed=0)
    >>> bool(abs(path(torch.tensor(4.0)).var() - 4) < 0.5)  # the variance of W(4)
    True
    """

    def basis(self, t: Tensor) -> Tensor:
        if self.terms == 0:
            return t.new_zeros((0, *t.shape))
        c = self.t1 - self.t0
        polynomials = self._legendre(t)[: self.terms]
        return torch.stack([p * math.sqrt((2 * k + 1) / c) for k, p in enumerate(polynomials)])

    def integral(self, t: Tensor) -> Tensor:
        if self.terms == 0:
            return t.new_zeros((0, *t.shape))
        c, p = self.t1 - self.t0, self._legendre(t)
        rows = [(t - self.t0) / math.sqrt(c)]
        # (2k + 1) P_k is the derivative of P_{k+1} - P_{k-1}, which vanishes at both ends.
        rows += [(p[k + 1] - p[k - 1]) * (0.5 * math.sqrt(c / (2 * k + 1))) for k in range(1, self.terms)]
        return torch.stack(rows)

    def _legendre(self, t: Tensor) -> list[Tensor]:
        """P_0 to P_terms by Bonnet's recurrence, which is stable on [-1, 1]."""
        x = 2 * (t - self.t0) / (self.t1 - self.t0) - 1
        p = [torch.ones_like(x), x]
        for k in range(1, self.terms):
            p.append(((2 * k + 1) * x * p[k] - k * p[k - 1]) / (k + 1))
        return p
