"""Controlled differential equations dz = f(t, z) dX, solved as the ODE dz/dt = f(t, z) dX/dt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.cde.paths import PiecewisePath
from quadjoint.cde.splines import TupleControl, align_times
from quadjoint.errors import warn_once
from quadjoint.gradient import Gradient
from quadjoint.gradient.first import Only
from quadjoint.ode import odeint
from quadjoint.solver.methods.catalogue import METHODS, is_adaptive, known_options, on_grid, runge_kutta_of
from quadjoint.solver.spec import Method
from quadjoint.solver.structure import Structure

Field = Callable[..., Any]


class Controlled(nn.Module):
    """The ODE of a CDE: ``f(t, z) dX/dt`` as a function of (t, z), for `quadjoint.odeint` and `quadjoint.solve`.

    ``func(t, z)`` returns a matrix for every state z of shape (..., hidden): (..., hidden, channels). Its product with
    dX/dt is taken here, or by ``func.prod(t, z, dXdt)`` if there is such a method. With times per sample, t has shape
    (B, 1).

    >>> from quadjoint.cde import interpolate
    >>> X = interpolate(torch.tensor([[0.0], [1.0], [3.0]]), kind="linear", time=False)
    >>> Controlled(X, lambda t, z: z.unsqueeze(-1))(torch.tensor(1.5), torch.tensor([5.0]))
    tensor([10.])
    """

    def __init__(self, X: Any, func: Field) -> None:
        super().__init__()
        self.X, self.func = X, func

    def forward(self, t: Tensor, z: Any) -> Any:
        return _product(self.func, t, z, self.X.derivative(t))

    @property
    def cache_owner(self) -> Any:
        """What compiled graphs are kept for: all paths of one function share them. Nothing else is kept."""
        if not isinstance(self.X, PiecewisePath):
            raise AttributeError("cache_owner")
        return self.func

    def compile_parts(self) -> tuple[Any, Callable[..., Any], tuple[Tensor, ...]]:
        """One compiled graph for all paths of one shape: what tells it apart, its function, the path's tensors."""
        if not isinstance(self.X, PiecewisePath):
            return id(self), self.forward, ()
        func = self.func
        key, derivative, tensors = self.X.derivative_parts()

        def evaluate(t: Tensor, z: Tensor, *path: Tensor) -> Any:
            return _product(func, t, z, derivative(t, *path))

        return key, evaluate, tensors


def _product(func: Field, t: Tensor, z: Any, rate: Any) -> Any:
    if isinstance(rate, Tensor) != isinstance(z, Tensor):
        raise TypeError(
            f"The state is a {type(z).__name__}, and X.derivative(t) a {type(rate).__name__}: both must be tensors, or "
            "both tuples of tensors. For a state that is a tuple use TupleControl."
        )
    rates, states = ((rate,), (z,)) if isinstance(rate, Tensor) else (tuple(rate), tuple(z))
    if len(rates) != len(states):
        raise ValueError(f"The state has {len(states)} tensors, and X {len(rates)} controls.")
    if t.ndim:  # times per sample: (B, 1, channels)
        rates = tuple(part.squeeze(-2) for part in rates)
    for part, state in zip(rates, states, strict=True):
        _check_control(part, state)
    prod = getattr(func, "prod", None)
    if prod is not None:
        return prod(t, z, rates[0] if isinstance(rate, Tensor) else rates)
    matrix = func(t, z)
    if isinstance(rate, Tensor):
        return _multiply(matrix, rates[0], z)
    return tuple(_multiply(*parts) for parts in zip(matrix, rates, states, strict=True))


def _multiply(matrix: Tensor, rate: Tensor, z: Tensor) -> Tensor:
    if matrix.shape != (*z.shape, rate.shape[-1]):
        raise ValueError(
            f"func must return shape (..., hidden, channels), here {(*z.shape, rate.shape[-1])}, for a state of shape "
            f"{tuple(z.shape)} and a control with {rate.shape[-1]} channels; got {tuple(matrix.shape)}."
        )
    return (matrix @ rate.unsqueeze(-1)).squeeze(-1)


def _check_control(rate: Tensor, z: Tensor) -> None:
    if rate.shape[:-1] != z.shape[:-1]:
        raise ValueError(
            f"X has a batch of shape {tuple(rate.shape[:-1])}, but the state, of shape {tuple(z.shape)}, one of "
            f"{tuple(z.shape[:-1])}; they must be the same."
        )
    if rate.dtype != z.dtype or rate.device != z.device:
        raise TypeError(
            f"X is {rate.dtype} on {rate.device}, but the state is {z.dtype} on {z.device}; they must be the same."
        )


def cdeint(
    X: Any,
    func: Field,
    z0: Any,
    t: Tensor,
    adjoint: bool = True,
    backend: str = "torchdiffeq",
    *,
    method: Method | None = None,
    rtol: Any = 1e-4,
    atol: Any = 1e-6,
    options: dict[str, Any] | None = None,
    gradient: str | Gradient | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
    **settings: Any,
) -> Any:
    """Solve dz = func(t, z) dX from z(t[0]) = z0: states at the times t, shape (..., len(t), hidden).

    Arguments, defaults and shapes are torchcde's.

    Args:
        X: the control, with a method ``derivative(t)``: `CubicSpline`, `LinearInterpolation` or one of your own.
        func: (t, z) to a tensor of shape (..., hidden, channels); or an object with ``prod(t, z, dXdt)``.
        z0: state of shape (..., hidden), or a tuple of such with a `TupleControl`.
        t: increasing times, ``X.interval`` for the ends of the path; (B, K) with NaN at the ends of shorter rows if
            each sample has its own.
        adjoint: gradients in little memory (the exact transpose of the solve); False backpropagates through it.
        gradient: any other of quadjoint's gradients, such as "auto" or "gq".
        method, rtol, atol, options: as `quadjoint.odeint` has them. Kinks of X become ends of steps by themselves,
            unless options["jump_t"] or options["step_t"] names others, none with ``()``. Adams methods step across
            kinks, as in torchcde.
        adjoint_params: differentiate in these tensors alone. Otherwise those that func and X depend on are found,
            coefficients that an encoder computed among them.

    >>> from quadjoint.cde import CubicSpline, natural_cubic_coeffs
    >>> X = CubicSpline(natural_cubic_coeffs(torch.rand(7, 10, 3)))
    >>> weights = torch.rand(4, 3)
    >>> z = cdeint(X, lambda t, z: torch.tanh(z).unsqueeze(-1) * weights, torch.rand(7, 4), X.interval)
    >>> z.shape
    torch.Size([7, 2, 4])
    """
    _check_backend(backend, settings)
    method = method or "dopri5"
    if not hasattr(X, "derivative"):
        raise TypeError(f"X must have a method derivative(t); got {type(X).__name__}.")
    X, t = align_times(X, t)
    shared = isinstance(t, Tensor) and t.ndim == 1
    ys = odeint(
        Controlled(X, func),
        z0,
        t,
        method=method,
        rtol=rtol,
        atol=atol,
        options=solver_options(X, method, options, rtol=rtol, interp="linear" if shared else None),
        gradient=gradient or _gradient(method, adjoint),
        params=None if adjoint_params is None else Only(adjoint_params),
    )
    return ys.movedim(0, -2) if isinstance(ys, Tensor) else tuple(part.movedim(0, -2) for part in ys)


def _gradient(method: Method, adjoint: bool) -> str:
    if method == "scipy_solver":
        return "gq"
    return ("discrete" if runge_kutta_of(method) is not None else "adjoint") if adjoint else "direct"


def solver_options(
    X: Any, method: Method, options: dict[str, Any] | None, *, rtol: Any, interp: str | None = None
) -> dict[str, Any] | None:
    """Options of a solve along X: steps end at its kinks, and where it bends too sharply for steps across.

    ``interp`` is for states between the points of a fixed grid.
    """
    unknown = isinstance(method, str) and method not in METHODS
    if unknown or method == "scipy_solver" or not isinstance(options, dict | None):
        return options  # if something is wrong, the solve says what
    options, known = dict(options or {}), known_options(method)
    if "jump_t" in known and not {"jump_t", "step_t"} & {*options}:
        kinks, bends = getattr(X, "kinks", None), None
        if "step_t" in known and not on_grid(options) and isinstance(X, PiecewisePath | TupleControl):
            bends = X.bends(_least(rtol))
        if kinks is not None and kinks.ndim == 2 and bends is not None:
            kinks, bends = torch.cat([kinks, bends], dim=1), None
        elif kinks is not None and bends is not None:
            bends = bends[~torch.isin(bends.detach(), kinks.detach())]  # steps end at kinks in any case
        if kinks is not None:
            options["jump_t"] = kinks
        if bends is not None:
            options["step_t"] = bends
    if interp is not None and "interp" in known and not is_adaptive(method):
        options.setdefault("interp", interp)
    return options


def _least(rtol: Any) -> float:
    """The smallest of relative tolerances, which may be given for every tensor of the state."""
    return min(float(torch.as_tensor(part).min()) for part in Structure.of(rtol).flatten(rtol))


def _check_backend(backend: str, settings: dict[str, Any]) -> None:
    if backend != "torchdiffeq":
        raise ValueError(
            f"backend = {backend!r} is not here: quadjoint solves CDEs with its own methods. For fixed steps of dt "
            "give method='midpoint', options={'step_size': dt}; for a reversible solve method='alf', "
            "gradient='reversible'."
        )
    known = ("adjoint_rtol", "adjoint_atol", "adjoint_method", "adjoint_options")
    for name in settings:
        if name not in known:
            raise TypeError(f"cdeint() got an unexpected keyword argument {name!r}.")
    if settings:
        warn_once(
            f"cdeint {sorted(settings)}",
            f"{', '.join(settings)} {'has' if len(settings) == 1 else 'have'} no effect in cdeint. For the adjoint "
            "method with settings of its own pass gradient=quadjoint.Adjoint(...).",
        )
