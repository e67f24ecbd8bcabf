"""Linear and cubic paths, and several of them as one."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from quadjoint.cde.missing import check_times, fill_end
from quadjoint.cde.paths import PiecewisePath

# How much larger than the tolerance a jump of the second or third derivative of a path, times the square or the cube of
# the distance of knots, must be for steps that end at knots to need fewer evaluations than steps across them. Measured
# with dopri5 at tolerances of 1e-3 to 1e-8 on sines and random walks with 8 to 400 knots; the error is a tenth as well.
SHARP = (300.0, 2e4)


class LinearInterpolation(PiecewisePath):
    """The piecewise linear path through ``coeffs``, as `linear_interpolation_coeffs` returns them.

    Its knots are kinks: `cdeint` ends steps there by itself.

    >>> from quadjoint.cde import linear_interpolation_coeffs
    >>> X = LinearInterpolation(linear_interpolation_coeffs(torch.tensor([[0.0], [1.0], [4.0]])))
    >>> X.evaluate(torch.tensor(1.5)), X.derivative(torch.tensor(1.5))
    (tensor([2.5000]), tensor([3.]))
    """

    def __init__(self, coeffs: Tensor, t: Tensor | None = None) -> None:
        _check_coefficients(coeffs, 1, pieces=coeffs.shape[-2] - 1 if coeffs.ndim > 1 else 0)
        if isinstance(t, Tensor) and t.requires_grad:
            raise ValueError(
                "The knots of a linear path cannot be learnt, as its derivative jumps there. Put the times into a "
                "channel of the data, whose values can be learnt, and leave t as it is."
            )
        lengths = torch.ones((), dtype=coeffs.dtype, device=coeffs.device)
        if t is not None:
            check_times(t, coeffs.shape[-2], batch=coeffs.shape[:-2])
            lengths = fill_end(t.to(coeffs)).diff(dim=-1).unsqueeze(-1)
        slope = coeffs.diff(dim=-2) / torch.where(lengths == 0, 1.0, lengths)
        slope = torch.where(lengths == 0, 0.0, slope)  # padding has no length
        super().__init__(coeffs[..., :-1, :], slope.unsqueeze(-2), t)

    @property
    def kinks(self) -> Tensor:
        return self._t if self.per_sample else self._t[1:-1]


class CubicSpline(PiecewisePath):
    """The piecewise cubic path with the coefficients of `natural_cubic_coeffs` or
    `hermite_cubic_coefficients_with_backward_differences`.

    >>> from quadjoint.cde import natural_cubic_coeffs
    >>> X = CubicSpline(natural_cubic_coeffs(torch.tensor([[0.0], [1.0], [0.0]])))
    >>> X.interval, X.evaluate(torch.tensor([0.5, 1.0])), X.derivative(torch.tensor(1.0))
    (tensor([0., 2.]), tensor([[0.6875],
            [1.0000]]), tensor([0.]))
    """

    def __init__(self, coeffs: Tensor, t: Tensor | None = None) -> None:
        _check_coefficients(coeffs, 4, pieces=coeffs.shape[-2] if coeffs.ndim > 1 else 0)
        a, *rates = coeffs.chunk(4, dim=-1)
        super().__init__(a, torch.stack(rates, dim=-2), t)

    @property
    def kinks(self) -> Tensor | None:
        return self.interval if self.per_sample else None  # where a sample starts to move, and stops

    def bends(self, rtol: float) -> Tensor | None:
        """Knots at which the path bends too sharply for steps across them, if there are any: (J,) or (B, J) with NaN.

        The second and the third derivative of a cubic path jump at its knots, which makes an error in steps across
        them. If a step over one piece would miss the tolerance by far, steps have to be short there anyway, and best
        end at the knot.
        """
        with torch.no_grad():
            lengths = self.lengths.reshape(-1, self._knots.shape[-1] - 1)  # shape: (B or 1, pieces)
            rates = self._rates.reshape(len(lengths), -1, *self._rates.shape[1:])
            rates = rates[:, 1:-1] if self.per_sample else rates
            rates = rates.reshape(*lengths.shape, -1, 3, self.channels)
            _, two_c, three_d = rates.unbind(-2)  # shape: (B or 1, pieces, samples, channels)
            second = two_c[:, 1:] - two_c[:, :-1] - 2 * lengths[:, :-1, None, None] * three_d[:, :-1]
            third = 2 * three_d.diff(dim=1)
            shorter = torch.minimum(lengths[:, 1:], lengths[:, :-1])
            size = [jump.square().mean((-1, -2)).sqrt() * shorter**n for n, jump in ((2, second), (3, third))]
            sharp = (size[0] > SHARP[0] * rtol) | (size[1] > SHARP[1] * rtol)
            if not bool(sharp.any()):
                return None
            inner = self._knots[..., 1:-1]
            return torch.where(sharp, inner, torch.nan) if self.per_sample else inner[sharp[0]]


def _check_coefficients(coeffs: Any, parts: int, *, pieces: int) -> None:
    if not isinstance(coeffs, Tensor) or pieces < 1 or coeffs.shape[-1] % parts:
        shape = tuple(coeffs.shape) if isinstance(coeffs, Tensor) else type(coeffs).__name__
        makers = "linear_interpolation_coeffs" if parts == 1 else "one of the functions of cubic coefficients"
        raise ValueError(f"coeffs must be what {makers} returned; got {shape}.")
    if bool(coeffs.isnan().any()):
        raise ValueError("coeffs has NaN: missing values are filled in by the functions of coefficients.")


class TupleControl(nn.Module):
    """Several controls as one, for a state that is a tuple.

    >>> X = LinearInterpolation(torch.rand(5, 2))
    >>> tuple(x.shape for x in TupleControl(X, X).evaluate(torch.tensor(0.5)))
    (torch.Size([2]), torch.Size([2]))
    """

    def __init__(self, *controls: Any) -> None:
        super().__init__()
        if not controls:
            raise ValueError("TupleControl needs at least one control.")
        if not all(torch.equal(control.interval, controls[0].interval) for control in controls):
            raise ValueError("The controls of a TupleControl must have the same interval.")
        self.controls = nn.ModuleList(controls)

    @property
    def interval(self) -> Tensor:
        return cast(Tensor, self.controls[0].interval)

    @property
    def grid_points(self) -> Tensor:
        first, *others = (cast(Tensor, control.grid_points) for control in self.controls)
        if not all(torch.equal(points, first) for points in others):
            raise RuntimeError("The controls have different knots.")
        return first

    @property
    def kinks(self) -> Tensor | None:
        found = [kinks for control in self.controls if (kinks := getattr(control, "kinks", None)) is not None]
        return torch.cat(found, dim=-1) if found else None

    def bends(self, rtol: float) -> Tensor | None:
        """Where one of the controls bends too sharply for steps across."""
        found = [c.bends(rtol) for c in self.controls if isinstance(c, PiecewisePath)]
        bends = [part for part in found if part is not None]
        return torch.cat(bends, dim=-1) if bends else None

    def evaluate(self, t: Tensor) -> tuple[Any, ...]:
        return tuple(control.evaluate(t) for control in self.controls)  # type: ignore[operator]

    def derivative(self, t: Tensor) -> tuple[Any, ...]:
        return tuple(control.derivative(t) for control in self.controls)  # type: ignore[operator]

    def expand_times(self) -> TupleControl:
        """The same controls with times of each sample's own."""
        return TupleControl(*(control.expand_times() for control in self.controls))  # type: ignore[operator]


def align_times(X: Any, t: Any) -> tuple[Any, Any]:
    """A path and the times of a solve, both with times of each sample's own if one of them has such."""
    if not isinstance(t, Tensor):
        return X, t  # the solve says what is wrong
    interval = getattr(X, "interval", None)
    if t.ndim == 2 and isinstance(X, PiecewisePath | TupleControl):
        X = X.expand_times()
    elif t.ndim == 1 and isinstance(interval, Tensor) and interval.ndim == 2:
        t = t.expand(len(interval), -1)
    for path in X.controls if isinstance(X, TupleControl) else (X,):
        _check_learnt_knots(path, t)
    return X, t


def _check_learnt_knots(X: Any, t: Tensor) -> None:
    """The derivative of a path with times per sample jumps where the sample stops; solves have no gradient in that."""
    if not (isinstance(X, PiecewisePath) and X.per_sample and X.grid_points.requires_grad) or t.ndim != 2:
        return
    knots, times = X.interval.detach(), fill_end(t.detach())[:, [0, -1]].to(X.interval)
    if bool((times.amin(1) < knots[:, 0]).any() | (times.amax(1) > knots[:, 1]).any()):
        raise ValueError(
            "The knots of this path require grad, and the solve reaches past some of them, where the derivative of the "
            "path jumps. Solve from the first to the last knot of each sample (X.interval), or detach the knots."
        )
