"""The methods by name, and their options turned into a stepper and a step control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import nearest
from quadjoint.solver.control import AdaptiveControl, FreeControl, GridControl, StepSettings
from quadjoint.solver.controllers import controller_of
from quadjoint.solver.grid import like_grid, make_grid, positive
from quadjoint.solver.methods.adams import Adams
from quadjoint.solver.methods.implicit import ImplicitRungeKutta
from quadjoint.solver.methods.jacobian import SOLVERS, JacobianSource
from quadjoint.solver.methods.leapfrog import AsynchronousLeapfrog
from quadjoint.solver.methods.newton import NewtonSettings
from quadjoint.solver.methods.refined import refinable, refine_extension
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.scipy_solvers import Scipy
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.methods.tableaus import TABLEAUS
from quadjoint.solver.protocols import Stepper
from quadjoint.solver.spec import InitialValue, Method, Solver
from quadjoint.solver.state import Layout, check_not_empty


def _of_tableau(tableau: ButcherTableau) -> RungeKutta:
    return RungeKutta(tableau) if tableau.explicit else ImplicitRungeKutta(tableau)


RUNGE_KUTTA = {name: _of_tableau(tableau) for name, tableau in TABLEAUS.items()}
NO_LIMIT = 2**31 - 1  # of the number of steps
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
_IMPLICIT = {"max_iters", "jacobian", "linear_solver"}


def register_method(name: str, tableau: ButcherTableau) -> None:
    """Make a Runge-Kutta method of your own available as ``method=name``.

    Without a name, ``method=tableau`` does the same.

    >>> import dataclasses, quadjoint as qj
    >>> qj.register_method("my_rk4", dataclasses.replace(qj.TABLEAUS["rk4"], name="my_rk4"))
    """
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is a method of quadjoint; register yours under another name.")
    RUNGE_KUTTA[name] = _of_tableau(tableau)


def runge_kutta_of(method: Any) -> RungeKutta | None:
    """The Runge-Kutta stepper of a method given by name, tableau or stepper; None for another kind of method."""
    if isinstance(method, str):
        return RUNGE_KUTTA.get(method)
    if isinstance(method, ButcherTableau):
        return _cached(method)
    return method if isinstance(method, RungeKutta) else None


def is_adaptive(method: Method) -> bool:
    """Whether a method chooses its steps if none are given."""
    stepper = runge_kutta_of(method) or method
    return method == "alf" or (isinstance(stepper, Stepper) and stepper.adaptive)


_cached = lru_cache(maxsize=64)(_of_tableau)


@lru_cache(maxsize=64)
def _interpolating(stepper: RungeKutta, interp: str) -> RungeKutta:
    """The same steps with another continuous extension: straight lines, cubics, or one order more."""
    if interp == "linear":
        return RungeKutta(stepper.tableau.linear(), stepper)
    if interp == "cubic":
        return RungeKutta(stepper.tableau.cubic())
    return RungeKutta(refine_extension(stepper.tableau))


def make_solver(method: Method, options: dict[str, Any], problem: InitialValue, *, rtol: Any, atol: Any) -> Solver:
    """Check ``options`` and build the solver of an initial value problem."""
    _check_method(method)
    settings = _settings(method, options, problem.layout, rtol=rtol, atol=atol)
    stepper = _stepper(method, options, problem.y0, rtol=rtol, atol=atol)
    if stepper.free:
        return Solver(method, stepper, partial(FreeControl, settings.max_num_steps), settings)
    if stepper.adaptive and not on_grid(options):
        if isinstance(rtol, float) and isinstance(atol, float) and rtol == atol == 0.0:
            raise ValueError("rtol and atol must not both be zero.")
        return Solver(method, stepper, partial(AdaptiveControl, settings, stepper.estimate_order), settings)
    _refuse_choices(options)
    points = make_grid(options, problem, (*settings.jump_t, *settings.step_t))
    settings = replace(settings, jump_t=like_grid(settings.jump_t, points))
    grid = points.detach().to("cpu", torch.float64).tolist()
    tracked = points if private.is_differentiated(points) and stepper.clocked else None
    perturb = bool(options.get("perturb", bool(settings.jump_t)))
    limited = problem.open_end or "max_num_steps" in options
    limit = settings.max_num_steps if limited else NO_LIMIT
    control = partial(GridControl, grid, tracked, perturb=perturb, max_num_steps=limit)
    return Solver(method, stepper, control, settings, grid, tracked)


def _check_method(method: Any) -> None:
    if isinstance(method, ButcherTableau) or (isinstance(method, str) and method in METHODS):
        return
    if isinstance(method, str | type) or not isinstance(method, Stepper):
        objects = "" if isinstance(method, str) else " An object is a ButcherTableau or of a class based on qj.Stepper."
        raise ValueError(f"method = {method!r} is not known.{nearest(method, METHODS)}{objects}")
    if not isinstance(getattr(method, "order", None), int) or method.order < 1:
        raise ValueError(f"The stepper {method.name} needs an attribute 'order', a whole number from 1 on.")


def _stepper(method: Method, options: dict[str, Any], y0: Tensor, *, rtol: Any, atol: Any) -> Stepper:
    stepper = runge_kutta_of(method)
    interp = _interp(method, stepper, options)
    if isinstance(stepper, ImplicitRungeKutta):
        check_not_empty([y0.shape], f"method={method!r}")
        newton = _newton(options, rtol=rtol, atol=atol, adaptive=stepper.adaptive and not on_grid(options))
        tableau = stepper.tableau.cubic() if interp == "cubic" else stepper.tableau
        own = ImplicitRungeKutta(tableau, newton=newton)
        return own if interp != "linear" else ImplicitRungeKutta(stepper.tableau.linear(), own, newton=newton)
    if stepper is not None:
        return stepper if interp is None else _interpolating(stepper, interp)
    if not isinstance(method, str):
        assert isinstance(method, Stepper)
        return method
    if method == "scipy_solver":
        further = {k: v for k, v in options.items() if k not in {"solver", *_COMMON}}
        smallest = float(rtol.min()) if isinstance(rtol, Tensor) else rtol  # SciPy has one for all entries
        return Scipy(options.get("solver", "LSODA"), rtol=smallest, atol=_per_entry(atol, y0), **further)
    if method == "alf":
        return AsynchronousLeapfrog(options.get("eta", 1.0))
    return Adams(
        RUNGE_KUTTA["rk4"],
        method != "explicit_adams",
        max_order=options.get("max_order", 12),
        max_iters=options.get("max_iters", 4),
        rtol=rtol,
        atol=atol,
        linear=interp == "linear",
    )


def on_grid(options: dict[str, Any]) -> bool:
    """Whether a method with an error estimate is to take given steps all the same."""
    return any(options.get(name) is not None for name in ("step_size", "grid_constructor"))


def _refuse_choices(options: dict[str, Any]) -> None:
    """Options that say how steps are chosen, beside steps that are given."""
    for name in sorted(_ADAPTIVE - {"step_t", "jump_t"}):
        if options.get(name) is not None:
            given = "step_size" if options.get("step_size") is not None else "grid_constructor"
            raise ValueError(
                f"options[{name!r}] is of steps that are chosen by their errors, and options[{given!r}] gives the "
                "steps; leave out one of both."
            )


def _newton(options: dict[str, Any], *, rtol: Any, atol: Any, adaptive: bool) -> NewtonSettings:
    """How the equations of implicit steps are solved: to a part of the tolerance, or on a grid to rounding."""
    most = options.get("max_iters", 10 if adaptive else 100)
    if not (isinstance(most, int) and most >= 1):
        raise ValueError(f"options['max_iters'] must be a whole number from 1 on; got {most!r}.")
    jacobian, solver = options.get("jacobian"), options.get("linear_solver", "auto")
    if jacobian is not None and not callable(jacobian):
        raise TypeError(f"options['jacobian'] must be callable as jacobian(t, y); got {type(jacobian).__name__}.")
    if not callable(solver) and solver not in SOLVERS:
        raise ValueError(f"options['linear_solver'] = {solver!r} is not known.{nearest(solver, SOLVERS)}")
    source = JacobianSource(jacobian, solver)
    return NewtonSettings(rtol, atol, most, source) if adaptive else NewtonSettings(None, atol, most, source)


def _interp(method: Method, stepper: RungeKutta | None, options: dict[str, Any]) -> str | None:
    """How states between steps are found, if not in the method's own way, which comes first."""
    kinds = ("cubic", "linear")
    if stepper is not None and refinable(stepper.tableau):
        kinds = ("quartic", "quintic")
    elif stepper is not None and stepper.order == 1:
        kinds = ("linear", "cubic")
    interp = options.get("interp", kinds[0])
    if interp not in kinds:
        raise ValueError(f"options['interp'] must be one of {', '.join(kinds)} for method {method!r}; got {interp!r}.")
    return None if interp == kinds[0] else str(interp)


def known_options(method: Method) -> set[str]:
    """Names of the options of a method (those of SciPy's solvers are SciPy's)."""
    stepper = runge_kutta_of(method)
    if stepper is not None:
        if isinstance(stepper, ImplicitRungeKutta):
            return _COMMON | _IMPLICIT | _FIXED | (_ADAPTIVE if stepper.adaptive else {"jump_t"})
        own = {"interp"} if refinable(stepper.tableau) else set()
        return _COMMON | own | (_ADAPTIVE if stepper.adaptive else _FIXED | {"jump_t"})
    if isinstance(method, Stepper):
        lengths = {"step_size"} | _ADAPTIVE if method.adaptive else _FIXED - {"interp"}
        return _COMMON if method.free else _COMMON | lengths
    return _COMMON | _ADAPTIVE | {"eta", "step_size"} if method == "alf" else _COMMON | _FIXED | _ADAMS


def _settings(method: Method, options: dict[str, Any], layout: Layout, *, rtol: Any, atol: Any) -> StepSettings:
    if options and method != "scipy_solver":
        known = known_options(method)
        for name in options:
            if name not in known:
                raise ValueError(f"options[{name!r}] is not an option of method {method!r}.{nearest(name, known)}")
    values: dict[str, Any] = {}
    for name in ("first_step", "safety", "ifactor", "dfactor", "min_step", "max_step"):
        if options.get(name) is not None:
            values[name] = positive(name, options[name], zero=name == "min_step")
    least, most = values.get("min_step", 0.0), values.get("max_step", math.inf)
    if least > most:
        raise ValueError(f"options['min_step'] = {least:.6g} is larger than options['max_step'] = {most:.6g}.")
    if "max_num_steps" in options:
        values["max_num_steps"] = int(min(positive("max_num_steps", options["max_num_steps"]), NO_LIMIT))
    for name in ("step_t", "jump_t"):
        if options.get(name) is not None:
            values[name] = tuple(torch.as_tensor(options[name], dtype=torch.float64).reshape(-1).tolist())
    if set(values.get("step_t", ())) & set(values.get("jump_t", ())):
        raise ValueError("options['step_t'] and options['jump_t'] must not share times.")
    implicit = isinstance(runge_kutta_of(method), ImplicitRungeKutta)
    controller = controller_of(options.get("controller", "predictive" if implicit else "i"))
    norm = layout.norm(options.get("norm"))
    return StepSettings(rtol=rtol, atol=atol, norm=norm, controller=controller, **values)


def _per_entry(tolerance: Any, y0: Tensor) -> Any:
    """A tolerance as SciPy wants it: a number, or one for every entry of the flat state."""
    return tolerance.expand(y0.shape).reshape(-1).cpu().numpy() if isinstance(tolerance, Tensor) else tolerance
