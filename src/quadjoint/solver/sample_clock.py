"""Where the time of a sample lies among the steps of a solve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SampleClock:
    """The times of samples at the ends of panels: rows of ``table``, shape (N + 1, B), at the places 0 to N.

    For times of their own on common steps, a single panel; for steps of their own, one for each step. ``last`` are the
    times at which the samples ended, ``sign`` is minus one for those that are solved backwards in time, else one.
    """

    table: np.ndarray
    last: np.ndarray
    sign: np.ndarray

    @property
    def batch(self) -> int:
        return self.table.shape[1]

    def locate(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places of times, shape (K, B), and which of them lie past the end of their sample."""
        first, sign = self.table[0], self.sign
        slack = 1e-6 * np.abs(self.last - first)
        early = sign * (times - first) < -slack
        if early.any() or not np.isfinite(times).all():
            k, b = np.argwhere(early | ~np.isfinite(times))[0]
            raise ValueError(
                f"t = {times[k, b]:.6g} lies outside the solved interval of sample {b}, [{first[b]:.6g}, "
                f"{self.last[b]:.6g}]."
            )
        past = sign * (times - self.last) > slack
        inside = np.where(past, self.last, np.clip(sign * times, sign * first, sign * self.last) * sign)
        places = np.empty_like(times)
        for b in range(self.batch):
            column = sign[b] * self.table[:, b]
            n = np.minimum(np.searchsorted(column[1:], sign[b] * inside[:, b]), len(column) - 2)
            length = column[n + 1] - column[n]
            places[:, b] = n + (sign[b] * inside[:, b] - column[n]) / np.where(length == 0.0, 1.0, length)
        return places, past
