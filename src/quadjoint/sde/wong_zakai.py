"""Stratonovich SDEs as random ODEs (Wong and Zakai 1965).

Replace W by a smooth path B_m: the solution of dy/dt = f(t, y) + g(t, y) dB_m/dt tends to that of the
Stratonovich SDE as m grows. So an SDE can be trained with any ODE solver and any of its gradients, and the
trained drift and diffusion be handed to an SDE solver (`quadjoint.sdeint`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

    def forward(self, t: Tensor, y: Any) -> Any:
        self._check_state(y)
        return self.rate(self.sde, t, y, self.path.derivative(t) if self.path.terms else None)

    @staticmethod
    def rate(sde: NeuralSDE, t: Tensor, y: Any, noise: Tensor | None) -> Any:
        """dy/dt of a Stratonovich equation with the derivative of a path; without one, the drift."""
        drift = sde.f(t, y)
        return drift if noise is None else drift + sde.diffuse(sde.g(t, y), noise)

    def _check_state(self, y: Tensor) -> None:
        if y.shape != self.shape:
            raise ValueError(
                f"this path was drawn for a state of shape {tuple(self.shape)}, but the state has shape "
                f"{tuple(y.shape)}. Draw another one: WongZakai.sample(y0, ...)."
            )

    @property
    def cache_owner(self) -> NeuralSDE:
        """What compiled graphs are kept for: all paths of one equation share them. Nothing else is kept."""
        return self.sde

    def compile_parts(self) -> tuple[Any, Callable[..., Tensor], tuple[Tensor, ...]]:
        """One compiled graph for all paths of an equation: what tells it apart, its function, the path's tensors."""
        sde, path, xi, rate = self.sde, self.path, self.path.coefficients, self.rate
        if path.terms == 0 or not isinstance(xi, Kept):
            return id(path), self.forward, ()

        def evaluate(t: Tensor, y: Any, *blocks: Tensor) -> Any:
            return rate(sde, t, y, weighted_sum(xi.aligned(path.basis(t)), blocks, xi.shape))

        return (type(self), type(path), path.t0, path.t1, path.terms, xi.shape, xi.dtype), evaluate, xi.blocks

    def extra_repr(self) -> str:
        return f"path={self.path!r}"


class _WithLogRatio(RandomODE):
    """As `RandomODE`, with the integral of `NeuralSDE.energy` as a second state; the equation may be an Itô one."""

    def _check_state(self, y: tuple[Tensor, Tensor]) -> None:  # type: ignore[override]
        super()._check_state(y[0])

    @staticmethod
    def rate(sde: NeuralSDE, t: Tensor, y: tuple[Tensor, Tensor], noise: Tensor | None) -> tuple[Tensor, Tensor]:
        state, _ = y
        if t.ndim:  # one time for each sample, shaped for the pair of states
            t = t.reshape(-1, *(1,) * (state.ndim - 1))
        f, g = sde.f(t, state), sde.g(t, state)
        energy = sde.energy(t, state, f=f, g=g)
        if noise is None:
            return f, energy
        if sde.sde_type == "ito":
            f = f - sde.correction(t, state)
        return f + sde.diffuse(g, noise), energy


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
        logqp: bool = False,
        **options: Any,
    ) -> Any:
        """The states at times t along a fresh path: (len(t), *y0.shape). Options are those of `quadjoint.odeint`.

        ``logqp=True`` solves for one more state, the integral of 1/2 |u|² with g u = f - h for the drift h of the
        prior, and returns what it grows by between two times, (len(t) - 1, *batch), beside the states. As the number of
        terms grows its mean tends to the Kullback-Leibler divergence of the SDE from its prior.
        """
        from quadjoint.ode import odeint

        options = self._checked(t, options)
        f = self.sample(y0, seed=seed, generator=generator)
        if not logqp:
            return odeint(f, y0, t, **options)
        if options.get("event_fn") is not None:
            raise ValueError(
                "logqp=True returns what the divergence grows by between the times t; with event_fn use logqp=False."
            )
        f = _WithLogRatio(self.sde, f.path, f.shape)
        ys, ratio = odeint(f, (y0, y0.new_zeros(y0.shape[:-1])), t, **options)
        return ys, ratio.diff(dim=0)

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

        options = self._checked(t, options)
        return solve(self.sample(y0, seed=seed, generator=generator), y0, t, **options)

    def _checked(self, t: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a solve at times t; one that ends at an event ends at the latest where the path does."""
        times = torch.as_tensor(t).detach()
        self._check_times(times[~times.isnan()])  # without the padding of times per sample
        if options.get("event_fn") is None or options.get("independent") or times.numel() < 2:
            return options
        inner = dict(options.get("options") or {})
        if "horizon" in inner:
            self._check_times(torch.as_tensor(inner["horizon"], dtype=torch.float64).detach())
        inner.setdefault("horizon", self.t1 if times.flatten()[1] > times.flatten()[0] else self.t0)
        return {**options, "options": inner}

    def _check_times(self, times: Tensor) -> None:
        # A time may lie a rounding error outside, of its own precision or of float32.
        precision = torch.finfo(times.dtype).eps if times.is_floating_point() else 0.0
        slack = 1e-6 * (self.t1 - self.t0) + 2 * precision * max(abs(self.t0), abs(self.t1))
        if times.numel() and (times.min() < self.t0 - slack or times.max() > self.t1 + slack):
            raise ValueError(
                f"the path lives on [{self.t0}, {self.t1}], but times run from {float(times.min())} to "
                f"{float(times.max())}. Build WongZakai on an interval that holds them all."
            )

    def __repr__(self) -> str:
        return f"WongZakai(t0={self.t0}, t1={self.t1}, terms={self.terms}, path={self.path.__name__})"
