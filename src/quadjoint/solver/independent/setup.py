"""From times and options to a batch of independent solves, refused in words if it cannot be one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import nearest
from quadjoint.solver.clocks import wide
from quadjoint.solver.controllers import PIDController
from quadjoint.solver.independent.samples import DIRECTIONS, ON_FAILURE, Samples
from quadjoint.solver.methods.catalogue import runge_kutta_of
from quadjoint.solver.methods.implicit import ImplicitRungeKutta
from quadjoint.solver.spec import Method
from quadjoint.solver.state import Layout, Norm, check_not_empty


def check_batch(y0: Any, layout: Layout) -> None:
    """Refuse states that are not a batch of samples, and transforms that hide their numbers."""
    if private.is_transformed():
        raise ValueError(
            "independent=True cannot run inside torch.func.grad, vmap, jvp or the like, nor with forward-mode "
            "derivatives. Use torch.autograd.grad, or steps that the batch shares."
        )
    shapes = layout.shapes or (y0.shape,)
    if any(len(s) == 0 for s in shapes) or len({s[0] for s in shapes}) != 1:
        got = ", ".join(str(tuple(s)) for s in shapes)
        raise ValueError(
            "With independent=True, the first dimension of y0 counts the samples, and all its tensors share it; got "
            f"{got}."
        )
    check_not_empty(shapes, "independent=True")


def make_samples(
    t: Tensor, values: np.ndarray, y: Tensor, *, on_failure: str = "error", event_direction: str = "both"
) -> Samples:
    """``t`` are the times with padding filled, ``values`` with NaN as padding, both (B, K)."""
    padded = torch.as_tensor(np.isnan(values), device=y.device) if np.isnan(values).any() else None
    times = t.detach().to(y.device, wide(y.device)).contiguous()
    backwards = bool((t.detach()[:, -1] < t.detach()[:, 0]).any())
    return Samples(times, y.ndim, backwards, padded, on_failure, event_direction)


def take_options(method: Method, options: dict[str, Any], *, events: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """The options of the method, and those of the batch."""
    stepper = runge_kutta_of(method)
    if stepper is None or not stepper.adaptive:
        raise ValueError(
            "independent=True gives every sample steps of its own, which needs an adaptive Runge-Kutta method such as "
            f"'dopri5', 'tsit5' or, for stiff samples, 'kvaerno5'; got method={method!r}."
        )
    for name in ("step_t", "jump_t"):
        if options.get(name) is not None:
            raise ValueError(
                f"options[{name!r}] names times at which all samples end a step, which with independent=True each does "
                "when its own steps get there. Use steps shared by the batch, or smooth the dynamics."
            )
    for name in ("step_size", "grid_constructor"):
        if options.get(name) is not None:
            raise ValueError(f"options[{name!r}] fixes the steps; with independent=True every sample chooses its own.")
    rest, own = dict(options), {}
    if not isinstance(stepper, ImplicitRungeKutta):
        # Steps that become shorter in time are rejected less often, and here all wait for a sample that tries again.
        rest.setdefault("controller", PIDController())
    for name, known in (("on_failure", ON_FAILURE), ("event_direction", DIRECTIONS)):
        if name in rest:
            own[name] = rest.pop(name)
            if own[name] not in known:
                raise ValueError(f"options[{name!r}] = {own[name]!r} is not known.{nearest(own[name], known)}")
    if "event_direction" in own and not events:
        raise ValueError("options['event_direction'] needs an event_fn.")
    return rest, own


def refuse_batch_options(options: dict[str, Any]) -> None:
    """Options that only independent samples have."""
    for name in ("on_failure", "event_direction"):
        if name in options:
            raise ValueError(f"options[{name!r}] is of samples that are solved apart; give independent=True.")


def sample_norm(norm: Callable[..., Tensor] | None, layout: Layout) -> Norm:
    """A norm of each sample: the user's, which sees one sample at a time, or the root mean square of its entries.

    Of a state of several tensors it is the largest of theirs.
    """
    if norm is not None:
        shapes = None if layout.shapes is None else tuple(s[1:] for s in layout.shapes)
        one = replace(layout, shapes=shapes, batched=False)
        return lambda y: torch.func.vmap(lambda sample: norm(one.unpack(sample)))(y)
    if layout.shapes is None:
        return _rms
    sizes = [s[1:].numel() for s in layout.shapes]
    return lambda y: torch.stack([_rms(part) for part in y.split(sizes, 1) if part.shape[1]]).amax(0)


def _rms(y: Tensor) -> Tensor:
    """Root mean square of the entries of each sample, shape (B,)."""
    rows = y.flatten(1) if y.ndim > 1 else y[:, None]
    return torch.linalg.vector_norm(rows, dim=1).div_(max(rows.shape[1], 1) ** 0.5)
