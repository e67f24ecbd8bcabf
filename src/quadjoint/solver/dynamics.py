"""The user's function as the solver sees it: float times, one tensor, counted and checked."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.autograd.captured import autocast_dtype
from quadjoint.autograd.leaves import leaves
from quadjoint.errors import warn_once
from quadjoint.solver.protocols import Time, VectorField
from quadjoint.solver.state import Layout


class TimeMap(Protocol):
    """A time that the samples of a batch share, as each sample's own."""

    clock_dtype: torch.dtype  # of the shared time

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """s to (t, dt/ds), both shaped to broadcast against the state."""

    def parts(self) -> tuple[Callable[..., tuple[Tensor, Tensor]], tuple[Tensor, ...]]:
        """The map as a function of s and of tensors."""


_IN_PLACE = "f changed its input y in place; return a new tensor instead (for example y * 2, not y.mul_(2))."


class Dynamics(VectorField):
    """Wraps ``f(t, y)``.

    Times come as Python floats and reach ``f`` as 0-d tensors in the real dtype of the state. A function that calls
    autograd itself (a divergence, a Hamiltonian) is given an input that requires grad, also while the solve runs
    without grad. Functions of the user are called under autocast if it was on when the solve was called for; all other
    operations run without.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        y0: Tensor,
        layout: Layout | None = None,
        time_map: TimeMap | None = None,
        *,
        per_sample: bool = False,
    ) -> None:
        self.f = f
        self.time_map = time_map  # solver time to each sample's own time
        self.layout = layout or Layout()
        self.packed = self.layout.shapes is not None
        self.shape, self.dtype, self.device = y0.shape, y0.dtype, y0.device
        self.per_sample = per_sample or time_map is not None  # whether f receives a time for each sample
        self.time_dtype = y0.dtype.to_real()
        self.clock_dtype = self.time_dtype if time_map is None else time_map.clock_dtype  # of solver time
        self.precision = autocast_dtype(y0.device.type)  # the lower one of autocast, if it is on
        self.evaluations = 0
        self.needs_grad = False
        self.stackable: bool | None = None  # whether vmap works; None until tried
        self._last: tuple[weakref.ref[Tensor], int] | None = None  # what f returned last, and its version

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without what belongs to the solve that is running and to the process."""
        return {**self.__dict__, "_last": None}

    @property
    def name(self) -> str:
        return type(self.f).__name__

    def remapped(self, y: Tensor, time_map: TimeMap | None) -> Dynamics:
        """The same function of states like ``y`` on another clock."""
        out = Dynamics(self.f, y, self.layout, time_map, per_sample=self.per_sample)
        out.needs_grad, out.stackable, out.precision = self.needs_grad, self.stackable, self.precision
        return out

    def time(self, t: Time, nudge: int = 0) -> Tensor:
        """``t`` as the tensor that ``f`` receives, moved by one unit in the last place for ``nudge`` of -1 or 1."""
        if not isinstance(t, Tensor):
            t = torch.full((), t, dtype=self.clock_dtype, device=self.device)
        elif t.dtype != self.clock_dtype or t.device != self.device:
            t = t.to(self.device, self.clock_dtype)
        if nudge:
            here = t.detach()
            t = t + (torch.nextafter(here, torch.full_like(here, nudge * math.inf)) - here)
        return t

    def time_vector(self, times: Sequence[float]) -> Tensor:
        """Several times in one tensor, on the device."""
        narrow = self.clock_dtype != torch.float64
        numbers = torch.from_numpy(np.array(times, dtype=np.float32 if narrow else np.float64))
        return numbers.to(self.device, self.clock_dtype)

    def as_tensors(self, times: Sequence[float]) -> Sequence[Tensor]:
        """Several times as the tensors that ``f`` receives, brought to the device at once."""
        return self.time_vector(times).unbind()

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor:
        self.evaluations += 1
        t = self.time(t, nudge)
        out = self.checked(t, y)
        # A function that switches grad on by itself would otherwise keep its graph alive on stored stages.
        if out.requires_grad and not torch.is_grad_enabled():
            return out.clone() if private.inside_forward_mode() else out.detach()  # a copy keeps its tangent
        return out

    def checked(self, t: Tensor, y: Tensor) -> Tensor:
        """Evaluate once and make sure that the result is a derivative of ``y``."""
        version = private.version(y)
        last = None if self._last is None else self._last[0]()
        grad_mode = torch.is_grad_enabled()
        out = self.raw(t, y)
        if torch.is_grad_enabled() != grad_mode:
            torch.set_grad_enabled(grad_mode)
            raise ValueError("f changed the grad mode and left it so; use `with torch.no_grad():` inside f.")
        if not isinstance(out, Tensor) or out.shape != y.shape or out.dtype != y.dtype or out.device != y.device:
            out = self._mend(out, y)
        if private.version(y) != version:
            raise ValueError(_IN_PLACE)
        if self._last is not None and last is not None and private.version(last) != self._last[1]:
            raise ValueError(
                "f changed in place a tensor that it had returned before; return a new tensor from every call."
            )
        self._last = None if out.is_inference() else (weakref.ref(out), private.version(out))
        return out

    def jacobian(self, given: Callable[..., Tensor], t: Time, y: Tensor) -> Tensor:
        """What the user's function for df/dy returns at solver time ``t``."""
        at, rate = self.time(t), None
        if self.time_map is not None:
            at, rate = self.time_map(at)
        found = given(at, self.layout.unpack(y))
        return found if rate is None else found * rate[..., None]

    def raw(self, t: Tensor, y: Tensor) -> Any:
        """Evaluate on tensors, packing and unpacking structures; nothing is counted or checked (also for vmap)."""
        if self.needs_grad:
            return self._with_grad(t, y)
        try:
            return self._call(t, y)
        except RuntimeError as error:
            if "a leaf Variable that requires grad is being used in an in-place" in str(error):
                raise ValueError(_IN_PLACE) from error
            recorded = y.requires_grad and torch.is_grad_enabled()
            if recorded or "does not require grad" not in str(error):
                raise
            self.needs_grad = True
            return self._with_grad(t, y)

    def _with_grad(self, t: Tensor, y: Tensor) -> Any:
        recording = torch.is_grad_enabled()
        if y.requires_grad and recording:
            return self._call(t, y)
        y = _differentiable(y)
        with torch.enable_grad():
            out = self._call(t, y)
        if recording and isinstance(out, Tensor) and not private.is_transformed():
            # If f depends on nothing that requires grad but this copy of y, there is nothing to record.
            return out if any(x is not y for x in leaves(out)) else out.detach()
        return out

    def _call(self, t: Tensor, y: Tensor) -> Any:
        if self.time_map is not None:
            times, rate = self.time_map(t)
            return self._user(times, y) * rate
        return self._user(t, y)

    def _user(self, t: Tensor, y: Tensor) -> Any:
        f = self._packed if self.packed else self.f
        return f(t, y) if self.precision is None else self.lowered(f)(t, y)

    def lowered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the user's that is called under the autocast of the solve, if there is one."""
        if self.precision is None:
            return function
        device, precision = self.device.type, self.precision

        def call(*args: Any) -> Any:
            with torch.autocast(device, precision):
                return function(*args)

        return call

    def casting_once(self) -> AbstractContextManager[Any]:
        """Keep what autocast has cast from one evaluation to the next, as a context around all of them does."""
        return nullcontext() if self.precision is None else torch.autocast(self.device.type, enabled=False)

    def _packed(self, t: Tensor, y: Tensor) -> Tensor:
        layout = self.layout
        parts = layout.split(y)
        out = layout.flatten(self.f(t, layout.hold(parts)), "f returned")
        for i, (part, derivative) in enumerate(zip(parts, out, strict=True)):
            if not isinstance(derivative, Tensor):
                raise TypeError(f"f returned {type(derivative).__name__} for {layout.path(i)}, which is a tensor.")
            if derivative.dtype != part.dtype and self.precision is None:
                raise TypeError(f"f returned dtype {derivative.dtype} for {layout.path(i)}, which has {part.dtype}.")
            if derivative.shape != part.shape:
                raise ValueError(
                    f"f returned shape {tuple(derivative.shape)} for {layout.path(i)}, "
                    f"which has shape {tuple(part.shape)}."
                )
        return layout.join(out)

    def _mend(self, out: Any, y: Tensor) -> Tensor:
        """Accept what is meant (autocast's lower precision), refuse the rest in words."""
        if not isinstance(out, Tensor):
            raise TypeError(f"f must return a tensor like the state; got {type(out).__name__}.")
        if out.shape != y.shape:
            raise ValueError(f"f returned shape {tuple(out.shape)}, but the state has shape {tuple(y.shape)}.")
        if out.device != y.device:
            raise ValueError(f"f returned a tensor on {out.device}, but the state is on {y.device}.")
        if self.precision is not None and out.is_floating_point():
            return out.to(y.dtype)
        raise TypeError(
            f"f returned dtype {out.dtype}, but the state has {y.dtype}. Cast y0 or the function so that both agree."
        )


def _differentiable(y: Tensor) -> Tensor:
    """The same state for a function that differentiates in it by torch.autograd."""
    try:
        return (y.view_as(y) if private.inside_forward_mode() else y.detach()).requires_grad_()
    except RuntimeError as error:
        if not private.inside_transform():
            raise
        raise ValueError(
            "f calls torch.autograd.grad or backward() itself, which needs an input that requires grad, and inside "
            "torch.func none can be made. Use torch.func.grad, vjp or jvp inside f."
        ) from error


# What vmap raises if it cannot evaluate a function.
UNSTACKABLE = (RuntimeError, NotImplementedError, ValueError, TypeError)


def _rule_out_vmap(f: Dynamics, modules: Sequence[torch.nn.Module]) -> None:
    """Note that f cannot be stacked: for backward hooks, which vmap does not call, or parameters of their own kind."""
    if f.stackable is None and any(
        private.has_module_hooks(m) or any(type(p) is not torch.nn.Parameter for p in m.parameters(recurse=False))
        for m in modules
    ):
        f.stackable = False


def stack_call(f: Dynamics, times: Sequence[float] | Tensor, ys: Tensor, modules: Sequence[torch.nn.Module]) -> Tensor:
    """f, which holds ``modules``, at a stack of (t, y) as one evaluation; as a loop if it cannot be (said once)."""
    ts = torch.as_tensor(times, dtype=f.clock_dtype, device=ys.device)
    _rule_out_vmap(f, modules)
    if len(ys) > 1 and f.stackable is not False:
        try:
            # A checkpoint inside f would only fail later, when it recomputes outside of vmap.
            with torch.autograd.graph.disable_saved_tensors_hooks("saved-tensor hooks, as in torch.utils.checkpoint"):
                out = torch.func.vmap(f.raw)(ts, ys)
            f.stackable = True
            f.evaluations += len(ys)
            return out.to(ys.dtype)
        except UNSTACKABLE as error:
            if f.stackable:
                raise
            f.stackable = False
            reason = str(error).splitlines()[0]
            warn_once(
                f"vmap {type(f.f).__name__} {id(type(f.f))}",
                f"The dynamics {type(f.f).__name__} cannot be evaluated as a stack ({reason}); "
                "their products are computed one after another, which is slower.",
            )
    if torch.is_grad_enabled() and not ys.requires_grad and not private.is_transformed():
        ys = ys.detach().requires_grad_()  # which backward hooks of modules expect
    return torch.stack([f(t, y) for t, y in zip(ts.unbind(), ys.unbind(), strict=True)])
