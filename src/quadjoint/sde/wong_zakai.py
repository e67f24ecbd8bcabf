"""Stratonovich SDEs as random ODEs (Wong and Zakai 1965).

Replace W by a smooth path B_m: the solution of dy/dt = f(t, y) + g(t, y) dB_m/dt tends to that of the
Stratonovich SDE as m grows. So an SDE can be trained with any ODE solver and any of its gradients, and the
trained drift and diffusion be handed to an SDE solver (`quadjoint.sdeint`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from quadjoint.sde.draws import Kept, weighted_sum
from quadjoint.sde.neural_sde import NeuralSDE
from quadjoint.sde.noise import KarhunenLoeve, Store, WienerPath

if TYPE_CHECKING:
    from quadjoint.solution import Solution


class RandomODE(nn.Module):
    """dy/dt = f + g dB_m/dt for one drawn path: a dynamics function whose parameters are those of the SDE.

    t is a 0-d tensor, or one time per sample. The path is no parameter and no buffer: it belongs to a
    solve, not to the weights, and stays on the device on which it was drawn.

    >>> from quadjoint.sde import NeuralSDE, WongZakai
    >>> sde = NeuralSDE(lambda t, y: -y, lambda t, y: torch.ones_like(y))
    >>> f = WongZakai(sde, 0.0, 1.0).sample(torch.zeros(5, 1), seed=0)
    >>> f(torch.tensor(0.5), torch.zeros(5, 1)).shape
    torch.Size([5, 1])
    """

    def __init__(self, sde: NeuralSDE, path: WienerPath, shape: torch.Size) -> None:
        super().__init__()
        self.sde, self.path, self.shape = sde, path, shape

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        if y.shape != self.shape:
            raise ValueError(
                f"this path was drawn for a state of shape {tuple(self.shape)}, but the state has shape "
                f"{tuple(y.shape)}. Draw another one: WongZakai.sample(y0, ...)."
            )
        drift = self.sde.f(t, y)
        if self.path.terms == 0:
            return drift
        return drift + self.sde.diffuse(t, y, self.path.derivative(t))

    @property
    def cache_owner(self) -> NeuralSDE:
        """Paths of one equation are alike: step sizes and sizes measured on one serve the next."""
        return self.sde

    def compile_parts(self) -> tuple[Any, Callable[..., Tensor], tuple[Tensor, ...]]:
        """One compiled graph for all paths of an equation: what tells it apart, its function, the path's tensors."""
        sde, path, xi = self.sde, self.path, self.path.coefficients
        if path.terms == 0 or not isinstance(xi, Kept):
            return id(path), self.forward, ()

        def evaluate(t: Tensor, y: Tensor, *blocks: Tensor) -> Tensor:
            return sde.f(t, y) + sde.diffuse(t, y, weighted_sum(xi.aligned(path.basis(t)), blocks, xi.shape))

        return (type(path), path.t0, path.t1, path.terms, xi.shape, xi.dtype), evaluate, xi.blocks

    def extra_repr(self) -> str:
        return f"path={self.path!r}"


class WongZakai:
    """The random ODE of an SDE on [t0, t1], with ``terms`` functions in the expansion of the Wiener process.

    ``path`` is the expansion: `KarhunenLoeve` (cosines) or `LegendrePolynomials`, or a `WienerPath` of your
    own. ``store="seed"`` draws the coefficients again in every evaluation instead of keeping them.
    ``terms=0`` leaves the drift alone, as it was given. An Itô SDE is converted first.

    `sample` draws one path and returns dynamics for any solver; `odeint` and `solve` do both in one call.
    Every call needs ``seed=`` or ``generator=``: torch's global generator is never touched.

    >>> sde = NeuralSDE(lambda t, y: -y, lambda t, y: torch.ones_like(y))
    >>> random_ode = WongZakai(sde, 0.0, 1.0, terms=10)
    >>> y0, t = torch.zeros(5, 1), torch.linspace(0, 1, 3)
    >>> random_ode.odeint(y0, t, seed=0).shape
    torch.Size([3, 5, 1])
    >>> dynamics = random_ode.sample(y0, seed=0)
    >>> dynamics(t[1], y0).shape
    torch.Size([5, 1])
    """

    def __init__(
        self,
        sde: NeuralSDE,
        t0: float,
        t1: float,
        terms: int = 10,
        *,
        path: type[WienerPath] = KarhunenLoeve,
        store: Store = "coefficients",
    ) -> None:
        self.t0, self.t1 = float(t0), float(t1)
        if not self.t0 < self.t1:
            raise ValueError(f"WongZakai needs an interval t0 < t1, got [{self.t0}, {self.t1}].")
        self.sde = sde
        self._equation = sde if terms == 0 else sde.converted("stratonovich")
        self.terms, self.path, self.store = terms, path, store

    def sample(self, y0: Tensor, *, seed: int | None = None, generator: torch.Generator | None = None) -> RandomODE:
        """Draw a path for a state like y0, independent for every sample of the batch."""
        if not isinstance(y0, Tensor) or y0.dim() == 0:
            raise TypeError("the state of an SDE is one tensor whose last dimension is the state of a sample.")
        t0 = torch.full((), self.t0, dtype=y0.dtype.to_real(), device=y0.device)
        path = self.path.sample(
            self._equation.noise_shape(t0, y0) if self.terms else y0.shape,
            self.t0,
            self.t1,
            terms=self.terms,
            seed=seed,
            generator=generator,
            store=self.store,
            dtype=y0.dtype.to_real(),
            device=y0.device,
        )
        return RandomODE(self._equation, path, y0.shape)

    def odeint(
        self,
        y0: Tensor,
        t: Tensor,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """The states at times t along a fresh path: (len(t), *y0.shape). Options are those of `odeint`."""
        from quadjoint.ode import odeint

        self._check_times(t)
        return cast(Tensor, odeint(self.sample(y0, seed=seed, generator=generator), y0, t, **options))

    def solve(
        self,
        y0: Tensor,
        t: Tensor,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Solution:
        """Like `odeint`, with the statistics and the dense output of `quadjoint.solve`."""
        from quadjoint.ode import solve

        self._check_times(t)
        return solve(self.sample(y0, seed=seed, generator=generator), y0, t, **options)

    def _check_times(self, t: Tensor) -> None:
        times = torch.as_tensor(t).detach()
        times = times[~times.isnan()]  # padding of times per sample
        slack = 1e-6 * (self.t1 - self.t0)  # a float32 time may lie a rounding error outside
        if times.numel() and (times.min() < self.t0 - slack or times.max() > self.t1 + slack):
            raise ValueError(
                f"the path lives on [{self.t0}, {self.t1}], but times run from {float(times.min())} to "
                f"{float(times.max())}. Build WongZakai on an interval that holds them all."
            )

    def __repr__(self) -> str:
        return f"WongZakai(t0={self.t0}, t1={self.t1}, terms={self.terms}, path={self.path.__name__})"
