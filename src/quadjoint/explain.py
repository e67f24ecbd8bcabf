"""What ``gradient="auto"`` would choose for a solve, and why: sizes, predicted costs, and measured ones on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quadjoint.arrange import arrange
from quadjoint.autograd.captured import Snapshot
from quadjoint.gradient import Auto, DiscreteAdjoint, GaussLegendre, Gradient, resolve
from quadjoint.gradient.base import Task
from quadjoint.gradient.choose.cost import Estimate, Sizes, predict
from quadjoint.gradient.choose.measure import memory_bytes, sizes_of
from quadjoint.gradient.first import First
from quadjoint.ode import odeint, solve
from quadjoint.solver.methods.implicit import ImplicitRungeKutta
from quadjoint.solver.spec import Method
from quadjoint.solver.state import State
from quadjoint.solver.stats import Stats
from quadjoint.solver.structure import Structure

MODES = ("joint", "stacked")  # of "discrete"


@dataclass(frozen=True)
class Explanation:
    """The choice of ``auto`` and what it rests on; printed, it is a table.

    ``predicted`` and ``measured`` hold seconds of a forward and backward pass together and bytes: predicted, what is
    kept for the backward pass; measured, the most that was held at any time. Keys are "direct", the modes of
    "discrete", "gq" (which ``Auto(exact=False)`` considers too) and, in ``measured``, whatever else was asked for.
    Costs of implicit steps are not predicted: "discrete", which has no modes there, is chosen whatever they are.
    """

    sizes: Sizes
    stats: Stats
    predicted: dict[str, Estimate]
    memory_limit: float
    choice: str
    measured: dict[str, Estimate] = field(default_factory=dict)

    gradient: Gradient = field(default_factory=Auto)  # the choice as an object for ``gradient=``
    rule: str | None = None  # what decided, if it was not the predicted costs

    @property
    def reason(self) -> str:
        """One sentence."""
        if self.rule is not None:
            return self.rule
        chosen = self.predicted[self.choice]
        reason = f"the fastest predicted, with {_bytes(self.memory_limit)} to keep things in"
        return reason if chosen.bytes <= self.memory_limit else f"{reason}; what does not fit is computed again"

    def __str__(self) -> str:
        s = self.sizes
        lines = [
            f"auto chooses {_title(self.choice)}: {self.reason}.",
            "",
            f"  state        {s.rows} x {s.features}, {_bytes(s.state_bytes)}",
            f"  parameters   {s.parameter_count:,}, {_bytes(s.parameter_bytes)}",
            f"  activations  {_bytes(s.activation_bytes)} an evaluation",
            f"  forward      {s.evaluations} evaluations, {_steps(self.stats.accepted_steps)} steps accepted, "
            f"{_steps(self.stats.rejected_steps)} rejected",
        ]
        both = {"predicted": self.predicted, "measured": self.measured}
        columns = {title: costs for title, costs in both.items() if costs}
        if columns:
            lines += ["", f"  {'':22}" + "".join(f"{title:>22}" for title in columns)]
        for name in {**self.predicted, **self.measured}:
            mark = "*" if name == self.choice else " "
            cells = "".join(_cell(costs.get(name)) for costs in columns.values())
            lines.append(f"{mark} {_title(name):22}{cells}".rstrip())
        return "\n".join(lines)


def explain(
    f: Callable[..., Any],
    y0: State,
    t: Tensor,
    *,
    method: Method = "dopri5",
    rtol: Any = 1e-3,
    atol: Any = 1e-6,
    options: dict[str, Any] | None = None,
    independent: bool = False,
    params: Sequence[Tensor] | None = None,
    memory_limit: int | None = None,
    measure: bool | Sequence[str] = False,
    repeats: int = 3,
    show: bool = True,
) -> Explanation:
    """Print and return what ``gradient="auto"`` would choose for ``qj.odeint(f, y0, t, ...)``, and why.

    One forward solve counts the evaluations; `quadjoint.gradient.choose.cost` predicts time and memory from them and
    from the sizes. Nothing is left in ``.grad`` of any tensor.

    Args:
        f, y0, t, method, rtol, atol, options, independent, params: as in ``odeint``.
        memory_limit: bytes that the backward pass may keep; by default a quarter of the memory, as in ``Auto``.
        measure: True times a forward and backward pass with every method in the prediction (the best of ``repeats``
            after one to warm up), of implicit steps "direct", "discrete" and "gq", and finds its peak memory; names
            ("direct", "gq", "adjoint", ...) choose others.
        repeats: how often each is timed.
        show: print the table.

    >>> import torch, quadjoint as qj
    >>> f = qj.nn.TimeMLP(2, width=16)
    >>> found = qj.explain(f, torch.zeros(8, 2), torch.tensor([0.0, 1.0]), show=False)
    >>> found.sizes.rows, found.sizes.features, found.choice in found.predicted
    (8, 2, True)
    """
    settings: dict[str, Any] = dict(method=method, rtol=rtol, atol=atol, options=options, independent=independent)
    arranged = arrange(f, y0, t, event_fn=None, compile=False, exact_clock=True, **settings)
    if not arranged.spec.solver.stepper.recordable:
        raise ValueError(
            f"With method={arranged.spec.solver.name!r} there is no choice: only 'gq' differentiates its steps."
        )
    snapshot = Snapshot(f, arranged.y0.device)
    with torch.enable_grad():
        first = First.record(arranged.spec, arranged.y0, snapshot, params)
    with torch.no_grad():
        stats = solve(f, y0, t, **settings).stats
    task = Task(arranged.spec, first.params, snapshot, stats)
    limit = memory_bytes(arranged.y0.device) / 4 if memory_limit is None else float(memory_limit)
    choice = Auto(int(limit)).choose(task, first)
    sizes = sizes_of(task, first.activation_bytes, stats.forward_evaluations)
    predicted = {}
    if not isinstance(arranged.spec.solver.eager, ImplicitRungeKutta):
        gq = GaussLegendre().predict(task, first.activation_bytes or 0, evaluations=sizes.evaluations)
        predicted = {**predict(sizes, limit // 2), "gq": gq}
    rule = None if choice.by_cost else choice.why
    found = Explanation(sizes, stats, predicted, limit, choice.name, gradient=choice.gradient, rule=rule)
    if measure:
        names = (predicted or ("direct", "discrete", "gq")) if measure is True else measure
        settings["params"] = params
        run = partial(_measure, f=f, y0=y0, t=t, settings=settings, tensors=first.params, repeats=repeats)
        found = replace(found, measured={name: run(_gradient(name, int(limit))) for name in names})
    if show:
        print(found)
    return found


def _measure(
    how: Gradient,
    *,
    f: Callable[..., Any],
    y0: State,
    t: Tensor,
    settings: dict[str, Any],
    tensors: tuple[Tensor, ...],
    repeats: int,
) -> Estimate:
    """Seconds and peak bytes of one gradient of the mean square of all outputs."""
    from quadjoint.experiments.timing import peak_memory

    structure = Structure.of(y0)
    parts = structure.flatten(y0)
    device = parts[0].device

    def work() -> None:
        fresh = [part.detach().requires_grad_() for part in parts]
        ys = odeint(f, structure.unflatten(iter(fresh)), t, gradient=how, **settings)
        loss = sum(torch.linalg.vector_norm(y).square() / y.numel() for y in structure.flatten(ys))
        torch.autograd.grad(loss, [*fresh, *tensors], allow_unused=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.enable_grad():
        work()
        seconds = []
        for _ in range(max(1, repeats)):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return Estimate(min(seconds), peak_memory(work, str(device)))


def _gradient(name: str, activations: int) -> Gradient:
    """A method of the cost model or of ``gradient=`` by its name."""
    return DiscreteAdjoint(mode=name, activations=activations) if name in MODES else resolve(name)


def _steps(count: int | Tensor) -> str:
    """How many steps, of samples with steps of their own from the least to the most."""
    return f"{int(count.min())} to {int(count.max())}" if isinstance(count, Tensor) else str(count)


def _title(name: str) -> str:
    return f"discrete ({name})" if name in MODES else name


def _cell(cost: Estimate | None) -> str:
    return f"{'':>22}" if cost is None else f"{cost.seconds * 1e3:>10.3g} ms{_bytes(cost.bytes):>9}"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError
