"""The methods by name, and their options turned into a stepper and a step control."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import nearest
from quadjoint.solver.control import AdaptiveControl, FreeControl, GridControl, StepSettings
from quadjoint.solver.methods.adams import Adams
from quadjoint.solver.methods.leapfrog import AsynchronousLeapfrog
from quadjoint.solver.methods.refined import refined
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.scipy_solvers import Scipy
from quadjoint.solver.methods.tableau import TABLEAUS
from quadjoint.solver.spec import Solver
from quadjoint.solver.state import Layout

RUNGE_KUTTA = {name: RungeKutta(tableau) for name, tableau in TABLEAUS.items()}
REFINED = {name: RungeKutta(refined(TABLEAUS[name])) for name in ("dopri5", "tsit5")}
LINEAR = {
    name: RungeKutta(tableau.linear(), RUNGE_KUTTA[name])
    for name, tableau in TABLEAUS.items()
    if tableau.b_error is None
}
OTHERS = ("explicit_adams", "implicit_adams", "fixed_adams", "alf", "scipy_solver")


class MethodNames(Sequence[str]):
    """The names of all methods, those that were registered included."""

    def __getitem__(self, index: Any) -> Any:
        return (*RUNGE_KUTTA, *OTHERS)[index]

    def __len__(self) -> int:
        return len(RUNGE_KUTTA) + len(OTHERS)

    def __repr__(self) -> str:
        return repr(tuple(self))


METHODS = MethodNames()
BUILT_IN = frozenset(METHODS)

_COMMON = {"norm", "dtype", "max_num_steps"}
_ADAPTIVE = {
    "first_step",
    "safety",
    "ifactor",
    "dfactor",
    "min_step",
    "max_step",
    "step_t",
    "jump_t",
    "controller",
}
_FIXED = {"step_size", "grid_constructor", "interp", "perturb"}
_ADAMS = {"max_order", "max_iters"}


def register_method(name: str, tableau: Any) -> None:
    """Make a Runge-Kutta method of your own available as ``method=name``.

    >>> import dataclasses, quadjoint as qj
    >>> qj.register_method("my_rk4", dataclasses.replace(qj.TABLEAUS["rk4"], name="my_rk4"))
    """
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is a method of quadjoint; register yours under another name.")
    RUNGE_KUTTA[name] = RungeKutta(tableau)
    if tableau.b_error is None:
        LINEAR[name] = RungeKutta(tableau.linear(), RUNGE_KUTTA[name])


def make_solver(method: str, options: dict[str, Any], rtol: Any, atol: Any, layout: Layout,
                t: Tensor, times: list[float], y0: Tensor, f: Callable[..., Any],
                open_end: bool = False) -> Solver:  # fmt: skip
    """Check ``options`` and build the solver; ``t`` and ``times`` are the observation times, tensor and floats.

    With an ``open_end``, where an event will be, the last time says the direction alone.
    """
    if method not in METHODS:
        raise ValueError(f"method = {method!r} is not known.{nearest(method, METHODS)}")
    settings = _settings(method, options, rtol, atol, layout)
    if method == "scipy_solver":
        scipy_options = {k: v for k, v in options.items() if k not in {"solver", *_COMMON}}
        smallest = float(rtol.min()) if isinstance(rtol, Tensor) else rtol  # SciPy has one for all entries
        scipy = Scipy(options.get("solver", "LSODA"), smallest, _per_entry(atol, y0), **scipy_options)
        return Solver(method, scipy, lambda: FreeControl(settings.max_num_steps), settings)
    stepper = _stepper(method, options, rtol, atol)
    if stepper.adaptive and "step_size" not in options:
        if isinstance(rtol, float) and isinstance(atol, float) and rtol == atol == 0.0:
            raise ValueError("rtol and atol must not both be zero.")
        return Solver(method, stepper, lambda: AdaptiveControl(settings, stepper.order), settings)
    if open_end and options.get("step_size") is not None and options.get("grid_constructor") is None:
        h = math.copysign(_positive("step_size", options["step_size"]), times[-1] - times[0])
        points = torch.tensor([times[0], times[0] + h], dtype=torch.float64)
        if settings.jump_t:
            raise ValueError("options['jump_t'] with event_fn needs an adaptive method.")
    else:
        points = _with_jumps(_grid(options, f, y0, t), settings.jump_t)
        _check_grid(points.detach().to("cpu", torch.float64).tolist(), times)
    grid = points.detach().to("cpu", torch.float64).tolist()
    tracked = points if points.requires_grad and stepper.clocked else None
    perturb = bool(options.get("perturb", bool(settings.jump_t)))
    limit = settings.max_num_steps if "max_num_steps" in options else 2**31 - 1
    return Solver(method, stepper, lambda: GridControl(grid, tracked, perturb, limit), settings, grid, tracked)


def _stepper(method: str, options: dict[str, Any], rtol: Any, atol: Any) -> Any:
    kinds = ("quartic", "quintic") if method in REFINED else ("cubic", "linear")
    interp = options.get("interp", kinds[0])
    if interp not in kinds:
        raise ValueError(f"options['interp'] must be one of {', '.join(kinds)} for method {method!r}; got {interp!r}.")
    linear = interp == "linear"
    if interp == "quintic":
        return REFINED[method]
    if method in RUNGE_KUTTA:
        return LINEAR[method] if linear and method in LINEAR else RUNGE_KUTTA[method]
    if method == "alf":
        return AsynchronousLeapfrog(options.get("eta", 1.0))
    return Adams(
        RUNGE_KUTTA["rk4"], method != "explicit_adams", options.get("max_order", 12), options.get("max_iters", 4),
        rtol, atol, linear,
    )  # fmt: skip


def known_options(method: str) -> set[str]:
    """Names of the options of a method (those of SciPy's solvers are SciPy's)."""
    if method == "alf":
        return _COMMON | _ADAPTIVE | {"eta", "step_size"}
    if method in RUNGE_KUTTA:
        own = {"interp"} if method in REFINED else set()
        return _COMMON | own | (_ADAPTIVE if RUNGE_KUTTA[method].adaptive else _FIXED | {"jump_t"})
    return _COMMON | _FIXED | _ADAMS


def _settings(method: str, options: dict[str, Any], rtol: Any, atol: Any, layout: Layout) -> StepSettings:
    if method != "scipy_solver":
        known = known_options(method)
        for name in options:
            if name not in known:
                raise ValueError(f"options[{name!r}] is not an option of method {method!r}.{nearest(name, known)}")
    values: dict[str, Any] = {}
    for name in ("first_step", "safety", "ifactor", "dfactor", "min_step", "max_step"):
        if options.get(name) is not None:
            values[name] = _positive(name, options[name], zero=name == "min_step")
    if "max_num_steps" in options:
        values["max_num_steps"] = int(_positive("max_num_steps", options["max_num_steps"]))
    for name in ("step_t", "jump_t"):
        if options.get(name) is not None:
            values[name] = tuple(torch.as_tensor(options[name], dtype=torch.float64).reshape(-1).tolist())
    if set(values.get("step_t", ())) & set(values.get("jump_t", ())):
        raise ValueError("options['step_t'] and options['jump_t'] must not share times.")
    controller = options.get("controller", "i")
    if controller not in ("i", "pi"):
        raise ValueError(f"options['controller'] must be 'i' or 'pi'; got {controller!r}.")
    norm = layout.norm(options.get("norm"))
    return StepSettings(rtol=rtol, atol=atol, norm=norm, controller=controller, **values)


def _positive(name: str, value: Any, zero: bool = False) -> float:
    number = float(value)
    if not (number > 0 or (zero and number == 0)):
        raise ValueError(f"options[{name!r}] must be {'at least 0' if zero else 'positive'}; got {value}.")
    return number


def _grid(options: dict[str, Any], f: Callable[..., Any], y0: Tensor, t: Tensor) -> Tensor:
    """The grid of a fixed-step method as a tensor: the observation times unless an option says otherwise."""
    step_size, constructor = options.get("step_size"), options.get("grid_constructor")
    if step_size is not None and constructor is not None:
        raise ValueError("Give options['step_size'] or options['grid_constructor'], not both.")
    if constructor is not None:
        return _through(t, torch.as_tensor(constructor(f, y0, t)))
    if step_size is None:
        return t
    h = _positive("step_size", step_size)
    first, last = t.detach()[[0, -1]].tolist()
    length = last - first
    # A last step as short as the rounding of the times is none.
    rounding = 4 * torch.finfo(t.dtype).eps * max(abs(first), abs(last)) / h
    n = max(1, math.ceil(abs(length) / h - max(1e-9, rounding)))
    steps = torch.arange(n, dtype=torch.float64, device="cpu") * math.copysign(h, length)
    return _through(t.double(), torch.cat([t[0].double() + steps.to(t.device), t[-1:].double()]))


def _through(t: Tensor, grid: Tensor) -> Tensor:
    """The same grid, whose points at observation times (to rounding) are those times and move with them."""
    points, times = (x.detach().to("cpu", torch.float64) for x in (grid, t))
    sign = math.copysign(1.0, float(times[-1] - times[0]))
    slack = 4 * torch.finfo(t.dtype).eps * float(times.abs().max())
    near = torch.searchsorted(sign * points, sign * times - slack).clamp(max=len(points) - 1)
    hit = (points[near] - times).abs() <= slack
    index = torch.full((len(points),), -1).index_copy_(0, near[hit], torch.arange(len(times))[hit]).to(t.device)
    return torch.where(index >= 0, t[index.clamp(min=0)], grid.to(t))


def _with_jumps(grid: Tensor, jump_t: tuple[float, ...]) -> Tensor:
    """The grid with the times of discontinuities inside it, at which steps are to end as well."""
    if not jump_t:
        return grid
    sign = 1.0 if grid[-1] >= grid[0] else -1.0
    jumps = torch.tensor(jump_t, dtype=torch.float64).to(grid)
    inside = (sign * jumps > sign * grid.detach()[0]) & (sign * jumps < sign * grid.detach()[-1])
    new = inside & ~torch.isin(jumps, grid.detach())
    joined = torch.cat([grid, jumps[new].unique()])
    return joined[(sign * joined.detach()).argsort()]


def _check_grid(grid: list[float], times: list[float]) -> None:
    if len(times) < 2:
        return
    sign = math.copysign(1.0, times[-1] - times[0])
    increasing = all(sign * a < sign * b for a, b in itertools.pairwise(grid))
    if not increasing or grid[0] != times[0] or grid[-1] != times[-1]:
        raise ValueError(
            "options['grid_constructor'] must return strictly monotone times from t[0] to t[-1]; "
            f"got {len(grid)} times from {grid[0]:.6g} to {grid[-1]:.6g}."
        )


def _per_entry(tolerance: Any, y0: Tensor) -> Any:
    """A tolerance as SciPy wants it: a number, or one for every entry of the flat state."""
    return tolerance.expand(y0.shape).reshape(-1).cpu().numpy() if isinstance(tolerance, Tensor) else tolerance
