"""The weights of a neural SDE handed to the SDE solvers of torchsde (Li et al. 2020, Kidger et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import nearest
from quadjoint.sde.draws import seed_and_device
from quadjoint.sde.neural_sde import NeuralSDE, SDEType

# The calculus in which each method of torchsde converges; milstein has a variant for both.
_CALCULUS: Mapping[str, SDEType | None] = {
    "reversible_heun": "stratonovich",
    "heun": "stratonovich",
    "midpoint": "stratonovich",
    "euler_heun": "stratonovich",
    "log_ode": "stratonovich",
    "milstein": None,
    "euler": "ito",
    "srk": "ito",
}
_LEVY_AREA = {"srk": "space-time", "log_ode": "foster"}


def sdeint(
    sde: NeuralSDE,
    y0: Tensor,
    t: Tensor,
    dt: float,
    *,
    method: str = "reversible_heun",
    adjoint: bool = False,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor:
    """Solve the SDE at times t with steps of dt through torchsde: shape (len(t), *y0.shape).

    y0 is (batch, d), t increases. The Wiener process is determined by ``seed`` or ``generator``; no global
    generator is used. An SDE of the type that ``method`` does not solve is converted first, so the law is
    always that of ``sde``. ``adjoint=True`` computes gradients by the SDE adjoint instead of
    backpropagating through the solver (for "reversible_heun": by its exact inverse). Further options are
    those of torchsde.

    >>> brownian = NeuralSDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y))
    >>> sdeint(brownian, torch.zeros(5, 1), torch.linspace(0, 1, 3), dt=0.1, seed=0).shape
    torch.Size([3, 5, 1])
    """
    try:
        import torchsde
    except ImportError as error:
        raise ImportError("sdeint solves SDEs with torchsde: pip install 'quadjoint[sde]'") from error

    if method not in _CALCULUS:
        raise ValueError(f"unknown method {method!r}.{nearest(method, _CALCULUS)}")
    if not isinstance(y0, Tensor) or y0.dim() != 2:
        shape = tuple(y0.shape) if isinstance(y0, Tensor) else type(y0).__name__
        raise ValueError(f"torchsde needs a state of shape (batch, d), got {shape}.")
    t = torch.as_tensor(t, device=y0.device)
    if t.dim() != 1 or len(t) < 2 or not bool((t[1:] > t[:-1]).all()):
        raise ValueError("sdeint needs at least two times in increasing order.")
    if not dt > 0:
        raise ValueError(f"dt must be positive, got {dt}.")

    equation = sde.converted(_CALCULUS[method] or sde.sde_type)
    number, _ = seed_and_device(seed, generator)
    wiener = torchsde.BrownianInterval(
        t0=t[0],
        t1=t[-1],
        size=tuple(equation.noise_shape(t[0], y0)),
        dtype=y0.dtype,
        device=y0.device,
        entropy=abs(number),
        dt=dt,
        levy_area_approximation=_LEVY_AREA.get(method, "none"),
    )
    solve = torchsde.sdeint_adjoint if adjoint else torchsde.sdeint
    ys: Tensor = solve(equation, y0, t, bm=wiener, dt=dt, method=method, **options)
    return ys
