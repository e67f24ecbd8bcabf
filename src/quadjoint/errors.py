"""Exceptions and warnings. Each message says what happened, where, and what to try."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable

_said: set[str] = set()


class SolveError(RuntimeError):
    """A solve could not be finished.

    >>> import torch, quadjoint as qj
    >>> try:
    ...     ys = qj.odeint(lambda t, y: y * y, torch.ones(1), torch.tensor([0.0, 2.0]))  # 1 / (1 - t)
    ... except qj.SolveError as error:
    ...     print(type(error).__name__)
    StepSizeUnderflowError
    """


class StepSizeUnderflowError(SolveError):
    """The step size fell below the resolution of time, or a step as short as ``min_step`` could not be taken."""


class NonFiniteStateError(SolveError):
    """The dynamics returned NaN or infinity, or the state became so."""


class TooManyStepsError(SolveError):
    """``max_num_steps`` was reached before the end of the interval."""


class QuadjointWarning(UserWarning):
    """Something works, but not as fast or not as asked; the message says why."""


def warn_once(key: str, message: str) -> None:
    """Warn with ``message`` the first time ``key`` comes up in this process."""
    if key not in _said:
        _said.add(key)
        warnings.warn(message, QuadjointWarning, stacklevel=3)


def forget_warnings() -> None:
    """Let every once-only warning speak again (for tests)."""
    _said.clear()


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest of ``known``, and the whole list after it."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(names)}."
