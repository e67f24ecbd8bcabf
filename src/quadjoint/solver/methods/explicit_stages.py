"""The stages of an explicit Runge-Kutta step: k_i = f(t_i, Y_i) with Y_i = y + dt * sum over j of a_ij k_j."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.solver.methods.sums import combine, stage_nudge, stage_time
from quadjoint.solver.protocols import Derivative, Nudge, Time

if TYPE_CHECKING:
    from quadjoint.solver.methods.runge_kutta import RungeKutta

# Numbers in all sums of a step up to which an operation costs more than its arithmetic.
SMALL = 2**13
PRECISE = (torch.float32, torch.float64, torch.complex64, torch.complex128)  # in which weights can be stored


class Taken(NamedTuple):
    """The stages of a step, their inputs, and its end; the sum of the error, if it was made on the way."""

    ks: list[Tensor]
    inputs: list[Tensor]
    y1: Tensor
    error_sum: Tensor | None = None


def take_stages(
    method: RungeKutta,
    f: Derivative,
    ends: tuple[Time, Time],
    y: Tensor,
    k: Tensor,
    *,
    dt: Time,
    length: Time,
    nudge: Nudge = (0, 0),
    times: Sequence[Time] | None = None,
) -> Taken:
    """The stages of a step whose first one is ``k``.

    ``length`` is that of the step in time; ``dt`` is the same, shaped to broadcast against states. ``times`` are those
    of the stages, if they are known already.
    """
    if times is None:
        times = [stage_time(c, ends, length) for c in method.nodes[: method.stages]]
    nudges = [stage_nudge(c, nudge) for c in method.nodes] if any(nudge) else method.no_nudges
    if method.pays_to_sum and _is_small(method, y):
        return _summed(method, f, times, y, k, dt=dt, nudges=nudges)
    ks, inputs = [k], [y]
    for i in range(1, method.stages):
        inputs.append(combine(y, ks, method.rows[i], dt))
        ks.append(f(times[i], inputs[i], nudges[i]))
    return Taken(ks, inputs, inputs[-1] if method.fsal else combine(y, ks, method.weights, dt))


def _is_small(method: RungeKutta, y: Tensor) -> bool:
    """Whether operations are to be saved; a compiler fuses them by itself."""
    return not torch.compiler.is_compiling() and y.numel() * method.stages <= SMALL and y.dtype in PRECISE


def _summed(
    method: RungeKutta,
    f: Derivative,
    times: Sequence[Time],
    y: Tensor,
    k: Tensor,
    *,
    dt: Time,
    nudges: Sequence[int],
) -> Taken:
    """As ``take_stages``: a stage is added to the sums of all that will need it by one operation.

    The rows of ``sums`` are sum over j of a_ij k_j for the inputs of the later stages, then the same for the end of the
    step, if that is not the input of the last stage, and for the error, if it is estimated.
    """
    columns = method.columns(y)
    in_place = not torch.is_grad_enabled() and not private.is_transformed()
    ks, inputs, last = [k], [y], method.stages - 1
    sums = columns[0] * k
    rows: tuple[Tensor, ...] | Tensor = sums.unbind() if in_place else sums  # views, which stay true
    for i in range(1, method.stages):
        state = _moved(y, rows[i - 1], dt)
        k = f(times[i], state, nudges[i])
        inputs.append(state)
        ks.append(k)
        if i == last:
            break
        if in_place:
            sums.addcmul_(columns[i], k)
        else:
            rows = sums = torch.addcmul(sums, columns[i], k)
    y1, error = inputs[-1], None
    if not method.fsal:
        y1 = _moved(y, torch.add(rows[last], k, alpha=method.tableau.b[last]), dt)
    if method.tableau.b_error is not None:
        error = torch.add(rows[-1].detach(), k.detach(), alpha=method.tableau.b_error[last])
    return Taken(ks, inputs, y1, error)


def _moved(y: Tensor, rate: Tensor, dt: Time) -> Tensor:
    if not isinstance(dt, Tensor):
        return torch.add(y, rate, alpha=dt)
    return torch.addcmul(y, rate, dt) if dt.ndim else y + rate * dt


def sums_pay(method: RungeKutta) -> bool:
    """Whether sums of all stages at once are fewer operations than one after another."""
    s, rows = method.stages, [*method.rows[1 : method.stages], *([] if method.fsal else [method.weights])]
    one_by_one = sum(1 if len(row) == 1 else 1 + len(row) for row in rows) + len(method.error_weights or ())
    at_once = 1 + (s - 1) + (s - 2) + (0 if method.fsal else 2) + (method.error_weights is not None)
    return s > 1 and at_once < one_by_one


def sum_columns(method: RungeKutta, y: Tensor) -> list[Tensor]:
    """The columns of the tableau by which a stage is added to all sums, shaped to broadcast against states like y."""
    tableau = method.tableau
    table = [*tableau.a[1:], *([] if method.fsal else [tableau.b])]
    table += [] if tableau.b_error is None else [tableau.b_error]
    with torch.inference_mode(False), torch.no_grad():
        columns = torch.tensor(np.array(table).T, dtype=y.dtype, device=y.device)  # (stages, sums)
        return [column.reshape(-1, *(1,) * y.ndim) for column in columns]
