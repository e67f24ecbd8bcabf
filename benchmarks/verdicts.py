"""Measured times and errors by cell and method, and how an aim is judged by them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

Record = dict[str, Any]
DIRECT, PAPER_CODE, PAPER = "torchdiffeq:direct", "paper:gq", "quadjoint:gq-paper"
OURS = "quadjoint:"
MANY = 10  # cells, beyond which only those that miss an aim are named


@dataclass(frozen=True)
class Row:
    """A line of the closing table."""

    regime: str
    aim: str
    measured: str
    verdict: str


def time_ratio(ours: Record, theirs: Record) -> float:
    """The median over the turns in which both were timed: a slow moment meets both. Else that of the best times."""
    turns = zip(ours.get("seconds_turns", ()), theirs.get("seconds_turns", ()), strict=False)
    pairs = [a / b for a, b in turns if a is not None and b is not None]
    return statistics.median(pairs) if pairs else float(ours["seconds_best"] / theirs["seconds_best"])


class Results:
    """Records of gradients by cell and method."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        every = {(r["cell"], r["method"]): r for r in self.records if r["kind"] == "gradient"}
        self.by = {key: r for key, r in every.items() if r["status"] == "ok"}
        self.failed = every.keys() - self.by.keys()
        self.cells = {cell: r["family"] for (cell, _), r in self.by.items()}
        self.widths = {cell: r["width"] for (cell, _), r in self.by.items()}

    def of(self, *families: str, width: Callable[[int], bool] = lambda w: True, ending: str = "") -> list[str]:
        found = [c for c, family in self.cells.items() if family in families and c.endswith(ending)]
        return [c for c in found if width(self.widths[c])]

    def error(self, cell: str, method: str) -> float | None:
        record = self.by.get((cell, method))
        return None if record is None else record["error"]

    def ratio(self, cell: str, first: str, second: str, other: str = "") -> float | None:
        """Time over time, of one cell or of two that were timed together; infinite or zero where ours gave up."""
        keys = (cell, first), (other or cell, second)
        a, b = (self.by.get(key) for key in keys)
        if a is not None and b is not None:
            return time_ratio(a, b)
        gave_up = [key in self.failed and key[1].startswith(OURS) for key in keys]
        if gave_up[0] and b is not None:
            return math.inf
        return 0.0 if gave_up[1] and a is not None else None

    def no_worse(self, cell: str, method: str) -> bool:
        ours, direct = self.error(cell, method), self.error(cell, DIRECT)
        return ours is not None and (direct is None or ours <= max(1.5 * direct, 1e-5))


def judge(
    regime: str,
    aim: str,
    values: dict[str, float | None],
    met: Callable[[str, float], bool],
    form: str = "{:.2f}",
    note: str = "",
) -> Row:
    """A row over several cells: met only if every measured cell meets the aim."""
    known = {cell: value for cell, value in values.items() if value is not None}
    if not known:
        return Row(regime, aim, "", "not measured")
    good = [cell for cell, value in known.items() if met(cell, value)]
    shown = known if len(known) <= MANY else {cell: v for cell, v in known.items() if cell not in good}
    text = ", ".join(
        f"{c} {form.format(v) if c in good else _miss(form, v, partial(met, c))}" for c, v in shown.items()
    )
    if len(known) > MANY and good:
        low, high = (form.format(pick(known[cell] for cell in good)) for pick in (min, max))
        text = f"{text}; " * bool(text) + f"{len(good)} cells from {low} to {high}"
    verdict = "met" if len(good) == len(known) else f"not met ({len(good)} of {len(known)} cells)"
    if verdict == "met" and len(known) < len(values):
        verdict = f"met where measured ({len(known)} of {len(values)} cells)"
    return Row(regime, aim, f"{text} ({note})" if note else text, verdict)


def _miss(form: str, value: float, met: Callable[[float], bool]) -> str:
    """With one more digit if the rounded number would look as if it met the aim.

    >>> _miss("{:.2f}x", 1.1012, lambda x: x <= 1.1), _miss("{:.2f}", math.inf, lambda x: x <= 1.1)
    ('1.101x ✗', 'gave up ✗')
    """
    if value in (0.0, math.inf):
        return "gave up ✗"
    shown = form.format(value)
    if met(float(shown.rstrip("x"))):
        shown = re.sub(r"\.(\d)", lambda digits: f".{int(digits[1]) + 1}", form).format(value)
    return f"{shown} ✗"


def paper_method(r: Results) -> tuple[str, str]:
    """The authors' own code if it was measured, else the paper's method as it is implemented here; and a note."""
    if any(method == PAPER_CODE for _, method in r.by):
        return PAPER_CODE, ""
    return PAPER, "the paper's method as implemented here, `gq-paper`"
