"""What the results say at a glance: three sentences, and one figure of times over that of the paper's method."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from quadjoint.experiments import store
from quadjoint.experiments.claims import CLAIMS, TITLES
from quadjoint.experiments.claims.checks_time import log_ratio, timed
from quadjoint.experiments.faults import ODD_RECORD
from quadjoint.experiments.plots import Drawing, style
from quadjoint.experiments.records import CLOCK, Records, by_size, of_experiment, of_study, where
from quadjoint.experiments.tables import TASKS, authors_gain, size_label
from quadjoint.experiments.verdicts import UNKNOWN, Claim, Finding, Interval, Verdict, plain

BASE = "gq-paper"
# By the role in the figure: the method, and what plays the role where the SDE itself is the paper's baseline.
ROLES = {"adjoint": ("adjoint", "torchsde-adjoint"), "direct": ("direct", "torchsde-direct"), "gq": ("gq", "gq")}


def findings(name: str, results: store.Results) -> list[tuple[Claim, Finding]]:
    """The statements on an experiment, each checked on its records."""
    records = of_experiment(results, name)
    failed = [r for r in results.records if r["experiment"] == name and r["status"] != "done"]
    return [(claim, _checked(claim, records, failed)) for claim in CLAIMS.get(name, [])]


def _checked(claim: Claim, records: Records, failed: Records) -> Finding:
    """The verdict; a statement on what was trained does not agree if runs that it is about gave up."""
    try:
        found = claim.check(where(records, **claim.about))
    except ODD_RECORD:
        return UNKNOWN
    gave_up = len(where(failed, **claim.about))
    if not claim.trained or not gave_up or found.verdict is Verdict.MISSING:
        return found
    verdict = Verdict.UNDECIDED if found.verdict is Verdict.AGREES else found.verdict
    return Finding(verdict, f"{found.words}; {gave_up} {'run' if gave_up == 1 else 'runs'} gave up")


@dataclass(frozen=True)
class Row:
    """One task at one size: each role's time over that of the paper's method, as logarithms."""

    task: str
    label: str
    width: int
    ratios: dict[str, Interval]
    turns: bool  # measured in turns by the clock


def rows(results: store.Results) -> list[Row]:
    """Every task and size at which the paper's method and another were timed, the widest of a task last."""
    made: list[Row] = []
    for task in TASKS:
        with contextlib.suppress(*ODD_RECORD):
            made += _rows_of(task, timed(of_experiment(results, task)))
    return made


def _rows_of(task: str, records: Records) -> list[Row]:
    made = []
    for (dataset, batch, width), group in by_size(records).items():
        ratios = _ratios(task, group)
        if ratios:
            label = size_label(task, dataset, batch, width)
            made.append(Row(task, label, width, ratios, turns=bool(of_study(group, CLOCK))))
    return made


def _ratios(task: str, group: Records) -> dict[str, Interval]:
    found = {role: log_ratio(group, BASE, pair[task == "ou"]) for role, pair in ROLES.items()}
    return {role: ratio for role, ratio in found.items() if ratio is not None and math.isfinite(ratio.middle)}


def glance(results: store.Results) -> list[str]:
    """The three sentences."""
    every = [(name, finding.verdict) for name in TITLES for claim, finding in _papers(results, name)]
    counts = Counter(verdict for _, verdict in every)
    sentences = [
        f"Of {len(every)} statements of the paper, {counts[Verdict.AGREES]} agree with these runs, "
        f"{counts[Verdict.DISAGREES]} disagree, {counts[Verdict.UNDECIDED]} are left open by noise or size, and "
        f"{counts[Verdict.MISSING]} were not measured."
    ]
    sentences.append(_times(rows(results), authors_gain(results)))
    wrong = Counter(name for name, verdict in every if verdict is Verdict.DISAGREES)
    listed = ", ".join(f"{_in_a_sentence(TITLES[name])} ({count})" for name, count in wrong.most_common())
    sentences.append(f"The disagreements are in {listed}." if wrong else "Nothing disagrees.")
    return [sentence for sentence in sentences if sentence]


def _in_a_sentence(title: str) -> str:
    """With a small letter, unless it begins with a name."""
    return title if title.startswith("Ornstein") else title[0].lower() + title[1:]


def _papers(results: store.Results, name: str) -> list[tuple[Claim, Finding]]:
    return [(c, f) for c, f in findings(name, results) if not c.ours]


def _times(every: list[Row], theirs: str) -> str:
    """The ranges of the ratios at the largest size of each task, and what the authors' code gains."""
    largest: dict[str, Row] = {}
    for row in every:
        task = row.task if row.task != "images" else ",".join(row.label.split(",")[:2])  # a batch size is another task
        if task not in largest or row.width >= largest[task].width:
            largest[task] = row
    words = []
    names = {"adjoint": "by the adjoint", "direct": "by direct backpropagation", "gq": "by this library’s gq"}
    for role, name in names.items():
        found = sorted(math.exp(row.ratios[role].middle) for row in largest.values() if role in row.ratios)
        if found:
            low, high = plain(found[0]), plain(found[-1])
            words.append(f"{name} {low} times" if low == high else f"{name} {low} to {high} times")
    if not words:
        return ""
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    ours = f"At the largest size of each task, a training step takes {listed} the time that it takes by gq-paper"
    return f"{ours}, the paper’s GQ as implemented here{f'; {theirs}' if theirs else ''}."


def ratio_figure(results: store.Results) -> Drawing | None:
    """A dot for every role, task and size; the line at one is the paper's method."""
    shown = rows(results)
    if not shown:
        return None
    figure = Figure(figsize=(7.6, 1.0 + 0.25 * len(shown)), layout="constrained")
    ax = figure.add_subplot()
    ax.axvline(1.0, color="#666666", linewidth=1)
    for role in ROLES:
        places = [(k, row.ratios[role]) for k, row in enumerate(shown) if role in row.ratios]
        if not places:
            continue
        middles = [math.exp(found.middle) for _, found in places]
        lows, highs = zip(*(_ends(found) for _, found in places), strict=True)
        below = [middle - low for middle, low in zip(middles, lows, strict=True)]
        over = [high - middle for middle, high in zip(middles, highs, strict=True)]
        look = style(role) | {"linestyle": "none", "markersize": 5}
        ax.errorbar(middles, [k for k, _ in places], xerr=[below, over], label=role, capsize=2, **look)
    ax.set_xscale("log")
    middles = [math.exp(found.middle) for row in shown for found in row.ratios.values()]
    ax.set_xlim(min(0.5, *middles) / 1.5, max(2.0, *middles) * 1.5)  # longer bars are cut
    ax.set_yticks(range(len(shown)), [row.label for row in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    for k in range(1, len(shown)):
        if shown[k].task != shown[k - 1].task:
            ax.axhline(k - 0.5, color="#cccccc", linewidth=0.8)
    ax.grid(True, axis="x", alpha=0.3)
    ax.set_xlabel("time of a training step over that of gq-paper")
    _plain_ticks(ax)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return Drawing(figure, _caption(shown))


def _ends(found: Interval) -> tuple[float, float]:
    half = found.half if math.isfinite(found.half) else 0.0
    return math.exp(found.middle - half), math.exp(found.middle + half)


def _plain_ticks(ax: Any) -> None:
    low, high = ax.get_xlim()
    every = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
    ticks = [t for t in every if low <= t <= high and (high < 100 * low or t in (0.02, 0.1, 0.5, 1, 2, 10, 50))]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_xticks([], minor=True)


def _caption(shown: list[Row]) -> str:
    how = "Steps of all methods were timed in turns from the same weights; bars are 95 % intervals over the turns."
    if not all(row.turns for row in shown):
        some = "Of some sizes times" if any(row.turns for row in shown) else "Times"
        how = f"{some} are those of training runs; bars are 95 % intervals, over turns in steps or over seeds."
    return (
        "How long a training step takes by the adjoint, by direct backpropagation and by gq, over the paper’s "
        f"method as implemented here (gq-paper, the line at one): right of the line is slower. {how} For OU, adjoint "
        "and direct are those of torchsde on the SDE itself, as in the paper."
    )
