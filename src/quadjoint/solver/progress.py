"""A progress bar over integration time, for long solves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Callback = Callable[[Any, Any, Any], None]


class Bar:
    """Called after every accepted step with (t, y, dt); moves the bar by the length of the step.

    The bar is closed when the last time is reached. A solve that ends before it (an event, an error) leaves the bar
    where it stopped; the end of an event's solve is open, so its bar may also run past the last time.
    """

    def __init__(self, times: Sequence[float], then: Callback | None) -> None:
        try:
            from tqdm import tqdm
        except ImportError as missing:
            raise ImportError("progress=True draws its bar with tqdm: pip install tqdm") from missing

        self.end, self.then = times[-1], then
        self.bar = tqdm(
            total=abs(times[-1] - times[0]), bar_format="{desc} |{bar}| {percentage:3.0f}% [{elapsed}<{remaining}]"
        )

    def __call__(self, t: float, y: Any, dt: float) -> None:
        reached = t + dt
        self.bar.set_description_str(f"t = {reached:.4g}, step {abs(dt):.2g}", refresh=False)
        self.bar.update(abs(dt))
        if math.isclose(reached, self.end, rel_tol=1e-12, abs_tol=1e-12):
            self.bar.close()
        if self.then is not None:
            self.then(t, y, dt)


def bar(times: Sequence[float], then: Callback | None = None) -> Bar:
    """A callback for accepted steps that shows how far the solve has got between ``times[0]`` and ``times[-1]``.

    ``then`` is called after it with the same arguments, if given.
    """
    return Bar(times, then)


def sample_bar(times: Tensor, then: Callback | None = None) -> Callback:
    """As ``bar`` for samples with steps of their own: over the part of their times, shape (B, K), that is solved."""
    span = (times[:, -1] - times[:, 0]).abs()
    shown, done = bar([0.0, 1.0]), 0.0

    def callback(t: Tensor, y: Any, dt: Tensor) -> None:
        nonlocal done
        moved = float(torch.where(span > 0.0, dt.to(span) / span, 0.0).mean())
        shown(done, y, moved)
        done += moved
        if then is not None:
            then(t, y, dt)

    return callback
