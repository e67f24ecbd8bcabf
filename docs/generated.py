"""Tables of the reference, made from the code, and the words of the examples, on the pages that show them.

    python docs/generated.py

writes them into the pages: between ``<!-- generated: NAME -->`` and ``<!-- /generated -->`` the table of that name,
between ``<!-- printed: NAME -->`` and ``<!-- /printed -->`` what that example printed when its picture was made. What a
table says in words stands here; which rows it has comes from the code, so that a method, an option or a figure that
nobody described is an error. As a hook of mkdocs the same is done for the site, and a test looks whether the pages are
as they should be.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import quadjoint as qj
from quadjoint.solver.control import StepSettings as StepSettings  # its defaults are stated below
from quadjoint.solver.methods.catalogue import known_options

# Methods that are no Runge-Kutta methods: order, stages (evaluations a step), adaptive, implicit, dense order, source.
OTHER_METHODS = {
    "explicit_adams": ("to 11", "1", "", "", "3", "Adams–Bashforth"),
    "implicit_adams": ("to 12", "2 to 5", "", "yes", "3", "Adams–Bashforth–Moulton"),
    "fixed_adams": ("to 12", "2 to 5", "", "yes", "3", "another name of implicit_adams, as in torchdiffeq"),
    "alf": ("2", "1", "yes", "", "2", "asynchronous leapfrog (Mutze 2013; Zhuang et al. 2021); reversible"),
    "scipy_solver": ("solver’s", "solver’s", "yes", "solver’s", "solver’s", "SciPy’s solvers: LSODA, BDF, Radau, ..."),
}

ARGUMENTS = {
    "f": ("", "dynamics `f(t, y)`: any callable or module; returns the derivative, in the structure of `y`"),
    "y0": ("", "state at `t[0]`: a tensor of any shape, or tensors in tuples, lists, dicts, nested in any way"),
    "t": ("", "times, `(K,)`, increasing or decreasing; or `(B, K)`: times of each sample, padded with NaN"),
    "method": ('"dopri5"', "a name of the table above, a `ButcherTableau` or a `Stepper` of your own"),
    "rtol": (
        "1e-3",
        "relative tolerance: a number, or a tensor that broadcasts against the state; for a state of several tensors "
        "also one of these for each, in its structure",
    ),
    "atol": ("1e-6", "absolute tolerance, likewise"),
    "gradient": ('"auto"', "how to differentiate: see [Which gradient](which-gradient.md)"),
    "options": ("None", "options of the method: the tables below"),
    "event_fn": ("None", "the solve ends where `event_fn(t, y)` changes sign; returns (event time, states)"),
    "compile": ("False", "run the steps under `torch.compile`"),
    "params": ("None", "tensors to differentiate in that f uses only after `t[0]`; others are found"),
    "progress": ("False", "a bar over integration time (`solve` alone; needs tqdm)"),
    "independent": ("False", "every sample of the batch takes steps of its own"),
}

# By kind of method: name, default, what it does.
OPTIONS = {
    "norm": (
        "root mean square",
        "size of an error: a function of the state’s structure; with `independent=True` of that of one sample, without "
        "the dimension of the batch, under `torch.func.vmap`",
    ),
    "dtype": ("", "accepted for torchdiffeq’s sake; times are float64 on the host in any case"),
    "max_num_steps": (
        "100,000",
        "attempted steps, rejected ones included, after which a solve is given up; unlimited on a grid up to a last "
        "time",
    ),
    "first_step": ("chosen", "length of the first step"),
    "safety": ("0.9", "the part of the longest admissible step that is taken"),
    "ifactor": ("10", "a step is at most so many times as long as the one before"),
    "dfactor": ("0.2", "and at least this part of it"),
    "min_step": ("0", "no step is shorter, whatever its error"),
    "max_step": ("unlimited", "no step is longer"),
    "step_t": ("()", "times at which a step must end"),
    "jump_t": ("()", "times at which f jumps, `(B, J)` for times per sample: a step ends there"),
    "controller": (
        '"i"; implicit methods "predictive"',
        '`"i"`, `"pi"`, `"pid"`, `"predictive"`, or a `Controller` such as `PIDController()`, which is the default of '
        "explicit methods with `independent=True`",
    ),
    "step_size": ("", "length of the steps of a fixed grid; without it, the grid is `t`"),
    "grid_constructor": ("", "`grid_constructor(f, y0, t)` returns the grid"),
    "interp": (
        '"cubic"; of order 1 "linear"; dopri5, tsit5 "quartic"',
        'between steps: `"linear"` or `"cubic"` on a grid, where for implicit methods of higher order the latter is '
        'their own polynomial; for dopri5 and tsit5 `"quartic"`, or `"quintic"` with more evaluations',
    ),
    "perturb": ("False; True with `jump_t`", "evaluate f just inside of a step, not at its ends, where it may jump"),
    "max_order": ("12", "order of the corrector; the explicit method has one less"),
    "max_iters": ("4; implicit Runge–Kutta 10, on a grid 100", "iterations for the stages of a step"),
    "eta": ("1", "damping of the leapfrog, in (0, 1] but not 0.5; below 1 its order is 1"),
    "jacobian": ("found", "`jacobian(t, y)` of your own, for Newton’s iteration"),
    "linear_solver": (
        '"auto"',
        'linear systems of a step: `"batched"`, `"dense"` or `"krylov"`, by size; or a function `solve(apply, r)`',
    ),
    "solver": ('"LSODA"', "which of SciPy’s solvers; other options are SciPy’s own"),
    "event_tol": ("1e-9", "accuracy of an event’s time, relative to the step in which it lies"),
    "horizon": ("none", "time at which a solve with shared steps ends if no event comes"),
    "event_direction": ('"both"', 'of a change of sign that is an event: `"up"`, `"down"`, `"both"`'),
    "on_failure": ('"error"', 'of a sample: `"error"`, `"nan"` (go on without it), `"stop"` (keep what it reached)'),
}
# Options that are not of the steps of a method.
ELSEWHERE = {
    "solver": "`scipy_solver`",
    "event_tol": "events",
    "horizon": "events, shared steps",
    "event_direction": "events, `independent=True`",
    "on_failure": "`independent=True`",
}
STATS = {
    "forward_evaluations": "evaluations of f in the forward solve, also for rejected steps and for the first step size",
    "accepted_steps": "steps that became part of the solution; with `independent=True` of each sample",
    "rejected_steps": "steps that were tried again, shorter, because of their error",
    "backward_evaluations": "evaluations of f in the backward pass; none where activations were kept",
    "vjp_state": "products with the transposed Jacobian of f in the state, n for n stacked points; not those that "
    "autograd makes for `direct`",
    "vjp_params": "products with the transposed Jacobian in the parameters; a stacked one counts once",
    "backward_accepted_steps": "accepted steps of a backward solve (`adjoint`, `seminorm`, `gq-paper`)",
    "backward_rejected_steps": "rejected steps of a backward solve",
    "quadrature_nodes": "nodes at which the integrand of the parameter gradient was evaluated (`gq`, `gq-paper`)",
    "gradient_error": "estimated relative error of the gradient, of methods that have one; else None",
    "method": "the gradient method that ran: what `auto` chose",
    "reason": "why it ran, in a sentence",
}


def methods_table() -> str:
    rows = []
    for name in qj.METHODS:
        if name in qj.TABLEAUS:
            rows.append((f"`{name}`", *_tableau(qj.TABLEAUS[name])))
        else:
            rows.append((f"`{name}`", *OTHER_METHODS[name]))
    return _table(("method", "order", "stages", "adaptive", "implicit", "dense order", "source"), rows)


def _tableau(tableau: Any) -> Sequence[str]:
    """Order, stages, adaptive, implicit, order of the dense output, source."""
    stages = f"{tableau.stages} ({tableau.stages - 1} new)" if tableau.fsal else str(tableau.stages)
    if tableau.extra_stages and not tableau.first_extra_is_next:
        stages += f" + {tableau.extra_stages} inside"
    adaptive = "yes" if tableau.b_error is not None else ""
    implicit = "yes" if np.triu(tableau.a).any() else ""
    source = "; ".join(part.strip() for part in re.findall(r"([^;]*?\(\d{4}\))", tableau.reference))
    return str(tableau.order), stages, adaptive, implicit, str(tableau.dense_order), source


def implicit_table() -> str:
    """The implicit Runge-Kutta methods and what is stable about them, computed from their tableaus."""
    rows = []
    for name, tableau in qj.TABLEAUS.items():
        if tableau.explicit:
            continue
        kind = "fully implicit" if any(last - first > 1 for first, last in tableau.blocks) else "diagonally implicit"
        order, stages, adaptive, _, dense, source = _tableau(tableau)
        rows.append((f"`{name}`", order, stages, kind, _stability(tableau), adaptive, dense, source))
    return _table(("method", "order", "stages", "kind", "stability", "adaptive", "dense order", "source"), rows)


def _stability(tableau: Any) -> str:
    """Whether |R(z)| <= 1 on the imaginary axis, without poles left of it, and whether R vanishes at infinity."""
    points = np.concatenate([np.linspace(0.0, 20.0, 201), np.geomspace(20.0, 1e6, 50)])
    eigenvalues = np.linalg.eigvals(tableau.a)
    bounded = all(abs(tableau.stability(1j * y)) <= 1.0 + 1e-9 for y in points)
    if not bounded or (eigenvalues.real < -1e-12).any():
        return ""
    return "L" if abs(tableau.stability(-1e8)) < 1e-5 else "A"


def arguments_table() -> str:
    names = dict(inspect.signature(qj.odeint).parameters) | dict(inspect.signature(qj.solve).parameters)
    return _table(("argument", "default", "meaning"), [(f"`{name}`", *ARGUMENTS[name]) for name in names])


def options_table() -> str:
    """Every option of every method, and which methods have it."""
    known = {name: known_options(name) for name in qj.METHODS if name != "scipy_solver"}
    rows = []
    for option in [*OPTIONS, *sorted(set().union(*known.values()) - OPTIONS.keys())]:
        having = [name for name, options in known.items() if option in options]
        if having or option in ELSEWHERE:
            rows.append((f"`{option}`", _who(option, having, known), *OPTIONS[option]))
    return _table(("option", "of", "default", "meaning"), rows)


def _who(option: str, having: list[str], known: dict[str, set[str]]) -> str:
    """Which methods have an option, in as few words as say it: kinds of methods, then names."""
    if option in ELSEWHERE:
        return ELSEWHERE[option]
    adaptive = {name for name in known if "first_step" in known[name]}
    implicit = {name for name in known if name in qj.TABLEAUS and np.triu(qj.TABLEAUS[name].a).any()}
    kinds = {
        "every method": set(known),
        "adaptive methods": adaptive,
        "fixed steps": set(known) - adaptive,
        "implicit Runge–Kutta methods": implicit,
    }
    words, left = [], set(having)
    for kind, members in kinds.items():
        if members and members <= set(having) and members & left:
            words.append(kind)
            left -= members
    return ", ".join([*words, *(f"`{name}`" for name in having if name in left)])


def stats_table() -> str:
    names = [field.name for field in dataclasses.fields(qj.Stats)]
    return _table(("figure", "meaning"), [(f"`{name}`", STATS[name]) for name in names])


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "implicit": implicit_table,
    "arguments": arguments_table,
    "options": options_table,
    "stats": stats_table,
}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def printed(name: str) -> str:
    """What an example printed, folded."""
    words = (Path(__file__).parent / "assets" / "examples" / f"{name}.txt").read_text(encoding="utf-8").rstrip()
    return f'<details markdown="1"><summary>What it printed</summary>\n\n```text\n{words}\n```\n\n</details>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with its tables and words made anew; called by mkdocs for every page."""
    makers = {"generated": lambda name: TABLES[name](), "printed": printed}
    return re.sub(
        r"^(<!-- (generated|printed): (\w+) -->)\n.*?^(<!-- /\2 -->)$",
        lambda found: f"{found[1]}\n\n{makers[found[2]](found[3])}\n\n{found[4]}",
        markdown,
        flags=re.MULTILINE | re.DOTALL,
    )


def main() -> None:
    for page in Path(__file__).parent.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (made := on_page_markdown(text)) != text:
            page.write_text(made, encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main()
