"""The weights of a neural SDE handed to the SDE solvers of torchsde (Li et al. 2020, Kidger et al. 2021)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.autograd.leaves import leaves
from quadjoint.errors import NonFiniteStateError, nearest, warn_once
from quadjoint.sde.draws import seed_and_device
from quadjoint.sde.log_ratio import LogRatioSDE, split_log_ratio
from quadjoint.sde.neural_sde import NeuralSDE, SDEType

# The calculus in which each method of torchsde converges; milstein has a variant for both, see `_calculus`.
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
_NOT_FOR_GENERAL_NOISE = ("milstein", "srk")
_FURTHER = ("adjoint_adaptive", "adjoint_atol", "adjoint_method", "adjoint_options", "adjoint_params", "adjoint_rtol")


def sdeint(
    sde: NeuralSDE,
    y0: Tensor,
    t: Tensor,
    dt: float,
    *,
    method: str = "reversible_heun",
    adjoint: bool = False,
    adaptive: bool = False,
    rtol: float = 1e-5,
    atol: float = 1e-4,
    dt_min: float = 1e-5,
    logqp: bool = False,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    options: dict[str, Any] | None = None,
    **further: Any,
) -> Any:
    """Solve the SDE at times t with steps of dt through torchsde: shape (len(t), *y0.shape).

    Args:
        sde: of either calculus; it is converted to that of ``method``, so the law is always that of ``sde``.
        y0: initial states, (batch, d).
        t: increasing times. Each is the end of a step.
        dt: the step, shortened if it does not divide what lies between two times; with ``adaptive=True`` the first one.
        method: "reversible_heun", "heun", "midpoint", "euler_heun", "log_ode", "milstein", "euler" or "srk".
        adjoint: gradients by the SDE adjoint instead of backpropagation through the solver (for "reversible_heun": by
            its exact inverse).
        adaptive: choose steps by comparing each with two halves, within ``rtol`` and ``atol``, not below ``dt_min``.
            Not for "euler", unless noise is additive.
        logqp: return also the divergence from the prior of ``sde``, ∫ 1/2 |u|² dt with g u = f - h, between two times:
            shape (len(t) - 1, batch).
        seed, generator: one of them determines the Wiener process, for steps, times, device and precision as they are;
            no global generator is used.
        options: of the method; further keywords are those of torchsde's adjoint.

    >>> brownian = NeuralSDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y), prior=lambda t, y: -y)
    >>> y0, t = torch.zeros(5, 1), torch.linspace(0, 1, 3)
    >>> sdeint(brownian, y0, t, dt=0.1, seed=0).shape
    torch.Size([3, 5, 1])
    >>> ys, divergence = sdeint(brownian, y0, t, dt=0.1, seed=0, logqp=True)
    >>> divergence.shape
    torch.Size([2, 5])
    """
    try:
        import torchsde
    except ImportError as error:
        raise ImportError("sdeint solves SDEs with torchsde: pip install torchsde") from error

    t, entries = _check_input(y0, t, dt, method), y0.shape[-1]
    _check_settings(sde, method, entries, adjoint=adjoint, adaptive=adaptive, logqp=logqp, further=further)
    converted = sde.converted(_calculus(sde, method, entries))
    equation, size = (LogRatioSDE(sde, converted) if logqp else converted), list(converted.noise_shape(t[0], y0))
    if logqp:
        y0, size[-1] = nn.functional.pad(y0, (0, 1)), size[-1] + (sde.noise_type == "diagonal")
    if method == "milstein" and sde.noise_type == "scalar" and entries > 1:
        options = {**(options or {}), "grad_free": True}  # whose formula is right for entries that depend on each other
    entropy = seed_and_device(seed, generator)[0] % 2**64
    levy = _LEVY_AREA.get(method, "none")
    wiener = torchsde.BrownianInterval(
        t[0], t[-1], tuple(size), y0.dtype, y0.device, entropy=entropy, dt=dt, levy_area_approximation=levy
    )
    settings = {"bm": wiener, "method": method, "options": options, **further}
    if adaptive:
        settings.update(adaptive=True, rtol=rtol, atol=atol)
    if adaptive or further.get("adjoint_adaptive"):
        settings.update(dt_min=dt_min)
    if adjoint:
        settings.setdefault("adjoint_params", _parameters(equation, t[0], y0))
    solve = torchsde.sdeint_adjoint if adjoint else torchsde.sdeint
    with _in_words(dt_min):
        ys = _solve_to_times(solve, equation, y0, t, dt, settings)
    if not bool(torch.isfinite(ys.detach()).all()):
        raise _not_finite(ys.detach(), t)
    return split_log_ratio(ys) if logqp else ys


def _solve_to_times(
    solve: Callable[..., Any], equation: nn.Module, y0: Tensor, t: Tensor, dt: float, settings: dict[str, Any]
) -> Tensor:
    """The states at the times t, all of which are ends of steps.

    Between its steps torchsde draws straight lines, on which the variance of the noise is too small.
    """
    adaptive, precision = settings.get("adaptive", False), 2 * torch.finfo(t.dtype).eps * float(t.abs().max())
    steps = (t - t[0]).double() / dt
    if not adaptive and bool(((steps - steps.round()).abs() * dt <= precision + 1e-9 * dt).all()):
        ys: Tensor = solve(equation, y0, t, dt=dt, **settings)
        return ys
    states, extra = [y0], None
    for start, end in pairwise(t):
        length = float(end) - float(start)
        count = max(1, math.ceil(length / dt - 1e-9))
        # All steps but the last are longer by what adding them up may lose, lest a sliver be left for another one.
        step = min(dt, length) if adaptive else length / count + precision
        times = torch.stack([start, end])
        (_, state), extra = solve(
            equation, states[-1], times, dt=step, extra=True, extra_solver_state=extra, **settings
        )
        states.append(state)
    return torch.stack(states)


def _calculus(sde: NeuralSDE, method: str, entries: int) -> SDEType:
    """In which calculus to solve.

    In place of (∂g/∂y) g, torchsde's milstein has the transpose of ∂g/∂y, which is the same if entry i of g depends on
    y_i alone. Otherwise Itô's form is taken: there the term is multiplied by numbers with the mean zero, so that the
    law is right and the order is that of Euler's method. (Scalar noise is solved without derivatives.)
    """
    if method == "milstein" and sde.noise_type == "diagonal" and not sde.commutes(entries):
        return "ito"
    return _CALCULUS[method] or sde.sde_type


def _parameters(equation: nn.Module, t: Tensor, y0: Tensor) -> tuple[Tensor, ...]:
    """What the adjoint differentiates in: parameters of modules, and what plain functions depend on besides."""
    y = y0.detach()
    with torch.enable_grad():
        found = leaves(equation.f(t, y), equation.g(t, y))  # type: ignore[operator]
    return tuple({id(x): x for x in (*equation.parameters(), *found)}.values())


def _check_input(y0: Tensor, t: Tensor, dt: float, method: str) -> Tensor:
    """The times on the device of the state; input that torchsde cannot solve is refused in words."""
    if method not in _CALCULUS:
        raise ValueError(f"unknown method {method!r}.{nearest(method, _CALCULUS)}")
    if not isinstance(y0, Tensor) or y0.dim() != 2:
        shape = tuple(y0.shape) if isinstance(y0, Tensor) else type(y0).__name__
        raise ValueError(f"torchsde needs a state of shape (batch, d), got {shape}.")
    if not y0.is_floating_point():
        raise TypeError(f"y0 must be floating point; got {y0.dtype}. Use y0.float().")
    t = torch.as_tensor(t, device=y0.device)
    if t.requires_grad:
        raise ValueError(
            "torchsde has no gradients in times: use t.detach(), or WongZakai(...).odeint, which has them."
        )
    if t.dim() != 1 or len(t) < 2 or not bool((t[1:] > t[:-1]).all()):
        raise ValueError("sdeint needs at least two times in increasing order.")
    if not dt > 0:
        raise ValueError(f"dt must be positive, got {dt}.")
    return t


def _check_settings(
    sde: NeuralSDE, method: str, entries: int, *, adjoint: bool, adaptive: bool, logqp: bool, further: dict[str, Any]
) -> None:
    for name in further:
        if name not in _FURTHER:
            raise TypeError(f"sdeint() got an unexpected keyword argument {name!r}.{nearest(name, _FURTHER)}")
        if not adjoint:
            raise ValueError(f"{name} is a setting of adjoint=True.")
    if logqp and sde.prior is None:
        raise ValueError("logqp=True compares the drift with that of a prior: NeuralSDE(..., prior=...).")
    if sde.noise_type == "general" and method in _NOT_FOR_GENERAL_NOISE:
        suited = sorted({*_CALCULUS} - {*_NOT_FOR_GENERAL_NOISE})
        raise ValueError(f"method={method!r} does not solve general noise; choose one of {', '.join(suited)}.")
    if adaptive:
        _check_adaptive(sde, method, entries)
    if adjoint and method == "reversible_heun" and (adaptive or further.get("adjoint_adaptive")):
        raise ValueError(
            "adjoint=True takes the steps of 'reversible_heun' back, which are not kept if they are adaptive. Leave "
            "adaptive=False, or use another method, or adjoint=False."
        )
    if (
        adjoint
        and _calculus(sde, method, entries) == "ito"
        and not sde.commutes(entries)
        and sde.noise_type == "diagonal"
    ):
        raise ValueError(
            f"torchsde's adjoint of method={method!r} holds for diagonal noise only if entry i of the diffusion "
            "depends on y_i alone; if it does, say NeuralSDE(..., elementwise=True). Otherwise use "
            "method='reversible_heun', or adjoint=False."
        )


def _check_adaptive(sde: NeuralSDE, method: str, entries: int) -> None:
    """Adaptive steps depend on the path, also on what it does at times that a rejected step has looked at.

    The error of Euler's steps then no longer has the mean zero (Gaines and Lyons 1997), and their sum has another
    limit. The other methods converge if the noise is commutative, as additive, scalar and elementwise diagonal noise
    is. Otherwise they do if no such time is passed over (Foster and Jelinčič 2024); torchsde passes over them.
    """
    if method == "euler" and sde.noise_type != "additive":
        better = "take fixed steps, adaptive=False" if sde.noise_type == "general" else "use method='milstein' or 'srk'"
        raise ValueError(
            "adaptive steps of method='euler' do not converge to the solution unless noise is additive; for "
            f"{sde.noise_type} noise {better}."
        )
    if not sde.commutes(entries):
        warn_once(
            f"sdeint adaptive {sde.noise_type}",
            "Adaptive steps of torchsde pass over times at which rejected steps have looked. Unless the noise is "
            "commutative, they may then converge to another process, and at best do so as the square root of the step. "
            "Take fixed steps (adaptive=False); if the noise is additive, scalar or diagonal, say so in noise_type, "
            "and if entry i of diagonal noise depends on y_i alone, in elementwise=True.",
        )


@contextmanager
def _in_words(dt_min: float) -> Iterator[None]:
    """torchsde's complaints as quadjoint's, with a remedy."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except AssertionError as error:
            if "nans in the error estimate" not in str(error):
                raise
            raise NonFiniteStateError(
                "The states of the SDE are not finite. Use a smaller dt or tighter tolerances, or look for a division "
                "by zero in drift and diffusion."
            ) from None
    for warning in caught:
        text = str(warning.message)
        if "minimum allowed step size" in text:
            warn_once(
                f"sdeint dt_min {dt_min}",
                f"The step size of sdeint fell to dt_min = {dt_min}, at which steps are taken whatever their error. "
                "Loosen rtol and atol, or give a smaller dt_min.",
            )
        elif "not an integer multiple" not in text:  # they are, but for rounding
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _not_finite(ys: Tensor, t: Tensor) -> NonFiniteStateError:
    first = int((~torch.isfinite(ys)).flatten(1).any(dim=1).to(torch.int8).argmax())
    return NonFiniteStateError(
        f"The states of the SDE are not finite at t = {float(t[first]):.6g}. Steps may be too long (try a smaller dt "
        "or adaptive=True), or drift or diffusion are not finite there."
    )
