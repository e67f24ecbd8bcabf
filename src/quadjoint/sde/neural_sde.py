"""A stochastic differential equation given by two functions, as torchsde and `WongZakai` both read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from quadjoint.autograd import private
from quadjoint.autograd.recorded import unwatched
from quadjoint.errors import nearest

NoiseType = Literal["diagonal", "scalar", "additive", "general"]
SDEType = Literal["stratonovich", "ito"]
Field = Callable[[Any, Tensor], Tensor]
_Linearised = tuple[Tensor, Callable[[Tensor], Tensor]]  # a value, and products of its derivative with a stack

NOISE_TYPES: tuple[NoiseType, ...] = ("diagonal", "scalar", "additive", "general")
SDE_TYPES: tuple[SDEType, ...] = ("stratonovich", "ito")


class NeuralSDE(nn.Module):
    """dy = f(t, y) dt + g(t, y) dW, with W read in the sense of Stratonovich (the default) or of Itô.

    ``drift`` and ``diffusion`` are modules or plain functions of (t, y). The last dimension of y is the
    state of one sample (size d), those before it are a batch of independent samples. What the diffusion
    returns:

    ============  ==============  ================================================================
    noise_type    shape of g      meaning
    ============  ==============  ================================================================
    diagonal      like y          entry i is driven by its own Wiener process
    scalar        (*batch, d, 1)  one Wiener process drives all entries
    additive      (*batch, d, m)  m Wiener processes; g does not depend on y
    general       (*batch, d, m)  m Wiener processes
    ============  ==============  ================================================================

    ``prior`` is the drift of a prior process with the same diffusion, for latent SDEs (Li et al. 2020): ``logqp=True``
    in `sdeint` and `WongZakai.odeint` then gives the divergence of the one process from the other.

    ``elementwise=True`` promises that entry i of a diagonal g depends on y_i alone. Conversion between Itô and
    Stratonovich then costs one product instead of d, and `sdeint` has methods that need it.

    The methods `f` and `g` and the two type names are what torchsde asks of an SDE.

    >>> sde = NeuralSDE(lambda t, y: -y, lambda t, y: 0.5 * y, sde_type="ito")   # d = 1: 1/2 g dg/dy = y / 8
    >>> y = torch.ones(3, 1)
    >>> sde.converted("stratonovich").f(torch.tensor(0.0), y).flatten()
    tensor([-1.1250, -1.1250, -1.1250])
    """

    def __init__(
        self,
        drift: Field,
        diffusion: Field,
        noise_type: NoiseType = "diagonal",
        sde_type: SDEType = "stratonovich",
        *,
        prior: Field | None = None,
        elementwise: bool = False,
    ) -> None:
        super().__init__()
        if noise_type not in NOISE_TYPES:
            raise ValueError(f"unknown noise_type {noise_type!r}.{nearest(noise_type, NOISE_TYPES)}")
        if sde_type not in SDE_TYPES:
            raise ValueError(f"unknown sde_type {sde_type!r}.{nearest(sde_type, SDE_TYPES)}")
        self.drift, self.diffusion, self.prior = drift, diffusion, prior
        self.noise_type, self.sde_type = noise_type, sde_type
        self.elementwise = elementwise

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        """The drift, refused in words if its shape is not that of the state."""
        return self._like_state(self.drift(t, y), y, "drift")

    def h(self, t: Tensor, y: Tensor) -> Tensor:
        """The drift of the prior."""
        if self.prior is None:
            raise ValueError("logqp=True compares the drift with that of a prior: NeuralSDE(..., prior=...).")
        return self._like_state(self.prior(t, y), y, "prior")

    def _like_state(self, drift: Tensor, y: Tensor, name: str) -> Tensor:
        if drift.shape != y.shape:
            raise ValueError(
                f"the {name} returned shape {tuple(drift.shape)} for a state of shape {tuple(y.shape)}; they differ."
            )
        return drift

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        """The diffusion, refused in words if its shape does not belong to the noise type."""
        g = self.diffusion(t, y)
        fits = g.shape == y.shape if self.noise_type == "diagonal" else g.shape[:-1] == y.shape
        if not fits or (self.noise_type == "scalar" and g.shape[-1] != 1):
            expected = {"diagonal": "", "scalar": ", 1"}.get(self.noise_type, ", m")
            raise ValueError(
                f"the diffusion returned shape {tuple(g.shape)} for a state of shape {tuple(y.shape)}; "
                f"{self.noise_type} noise needs ({', '.join(map(str, y.shape))}{expected}), "
                "with m the number of Wiener processes. Change the diffusion or noise_type."
            )
        return g

    def noise_shape(self, t: Tensor, y: Tensor) -> torch.Size:
        """The shape of the Wiener process that drives a state like y."""
        if self.noise_type == "diagonal":
            return y.shape
        if self.noise_type == "scalar":
            return torch.Size((*y.shape[:-1], 1))
        with torch.no_grad():
            return torch.Size((*y.shape[:-1], self.g(t, y).shape[-1]))

    def diffuse(self, g: Tensor, noise: Tensor) -> Tensor:
        """A value g of the diffusion applied to a tensor of `noise_shape`."""
        if self.noise_type == "diagonal":
            return g * noise
        return (g @ noise.to(g.dtype).unsqueeze(-1)).squeeze(-1)

    def commutes(self, entries: int) -> bool:
        """Whether noise in a state of so many entries commutes by its kind, whatever the diffusion is."""
        if self.noise_type == "diagonal":
            return self.elementwise or entries == 1
        return self.noise_type != "general"

    def energy(self, t: Tensor, y: Tensor, *, f: Tensor | None = None, g: Tensor | None = None) -> Tensor:
        """1/2 |u|² with g u = f - h: the rate of the Kullback-Leibler divergence of the process from its prior.

        By Girsanov's theorem the divergence of the laws on paths is the mean of its integral. The same in either
        calculus, as both drifts have the same correction. f and g are values of drift and diffusion, if known.
        """
        f, g = self.f(t, y) if f is None else f, self.g(t, y) if g is None else g
        difference = f - self.h(t, y)
        if self.noise_type == "diagonal":
            u = difference / g
        else:
            u = (torch.linalg.pinv(g) @ difference.unsqueeze(-1)).squeeze(-1)
        return 0.5 * u.abs().square().sum(dim=-1)

    def correction(self, t: Tensor, y: Tensor) -> Tensor:
        """1/2 Σ_j (∂g_j/∂y) g_j over the columns g_j of g: the Itô drift minus the Stratonovich one.

        A product with ∂g/∂y is the transpose of a vector-Jacobian product: reverse mode twice, which unlike
        forward mode can be compiled. No product for additive noise, one for scalar or elementwise noise,
        otherwise one for each Wiener process of a sample, all stacked.
        """
        if self.noise_type == "additive":
            return torch.zeros_like(y)
        # torch.func does without what hooks on saved tensors see, a checkpoint's among them, and refuses them.
        by_autograd = private.saved_tensors_are_watched() and not private.inside_transform()
        g, along = (_linearised_by_autograd if by_autograd else _linearised)(lambda z: self.g(t, z), y)
        if self.noise_type == "diagonal":
            if self.elementwise or g.shape[-1] == 1:
                return 0.5 * along(g[None])[0]
            columns = torch.diag_embed(g).movedim(-1, 0)  # (d, *batch, d)
            return 0.5 * along(columns).diagonal(dim1=0, dim2=-1)
        products = along(g.movedim(-1, 0))  # (m, *batch, d, m)
        return 0.5 * products.diagonal(dim1=0, dim2=-1).sum(-1)

    def converted(self, sde_type: SDEType) -> NeuralSDE:
        """The same process as an SDE of the other type, sharing all weights; itself if it is of that type."""
        if sde_type == self.sde_type:
            return self
        return NeuralSDE(
            _Converted(self, "f"),
            self.diffusion,
            self.noise_type,
            sde_type,
            prior=None if self.prior is None else _Converted(self, "h"),
            elementwise=self.elementwise,
        )

    def extra_repr(self) -> str:
        return f"noise_type={self.noise_type!r}, sde_type={self.sde_type!r}"


def _linearised(function: Callable[[Tensor], Tensor], y: Tensor) -> _Linearised:
    """The value at y, and products of the derivative with a stack of directions."""
    g, transposed = cast(Any, torch.func.vjp(function, y))
    _, jacobian = cast(Any, torch.func.vjp(lambda u: transposed(u)[0], torch.zeros_like(g)))

    def along(directions: Tensor) -> Tensor:
        if len(directions) == 1:
            return cast(Tensor, jacobian(directions[0])[0][None])
        return torch.func.vmap(lambda v: jacobian(v)[0])(directions)

    return g, along


def _linearised_by_autograd(function: Callable[[Tensor], Tensor], y: Tensor) -> _Linearised:
    """The same, recorded by autograd if that is on."""
    recording = torch.is_grad_enabled()
    with unwatched(), torch.enable_grad():
        z = y.view_as(y) if recording and y.requires_grad else y.detach().requires_grad_()
        g = function(z)
        u = torch.zeros_like(g, requires_grad=True)
        image = None
        if g.requires_grad:
            (image,) = torch.autograd.grad(g, z, u, create_graph=True, allow_unused=True)

    def along(directions: Tensor) -> Tensor:
        if image is None:
            return g.new_zeros((len(directions), *g.shape))
        with unwatched():
            rows = [
                torch.autograd.grad(image, u, v, create_graph=recording, retain_graph=True, allow_unused=True)[0]
                for v in directions
            ]
        return torch.stack([torch.zeros_like(g) if row is None else row for row in rows])

    return g if recording else g.detach(), along


class _Converted(nn.Module):
    """A drift of ``sde`` with the correction taken off (from Itô) or put on (from Stratonovich)."""

    def __init__(self, sde: NeuralSDE, name: Literal["f", "h"]) -> None:
        super().__init__()
        self.sde, self.name = sde, name

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        correction = self.sde.correction(t, y)
        drift = self.sde.f(t, y) if self.name == "f" else self.sde.h(t, y)
        return drift - correction if self.sde.sde_type == "ito" else drift + correction
