"""Figures as files, and as pictures for the report; drawn from the JSON lines alone."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from quadjoint.experiments import store
from quadjoint.experiments.faults import ODD_RECORD, Refusal, one_line
from quadjoint.experiments.figures import FIGURES
from quadjoint.experiments.files import write_whole
from quadjoint.experiments.overview import ratio_figure
from quadjoint.experiments.plots import Drawing
from quadjoint.experiments.records import of_experiment

OVERVIEW = "overview"


@dataclass(frozen=True)
class Picture:
    svg: bytes
    caption: str


def draw_all(out: Path, say: Callable[[str], object]) -> dict[Path, Picture]:
    """Draw every figure that the results in ``out`` allow into ``out/figures``; returns paths and pictures."""
    results = store.read(out)
    for problem in results.problems:
        say(problem)
    if not results.records:
        raise Refusal(f"there are no results in {out}; run quadjoint reproduce first")
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {folder / f"{name}.svg": picture for name, picture in pictures(results, say).items()}
    for path, picture in drawn.items():
        write_whole(path, picture.svg)
    return drawn


def pictures(results: store.Results, say: Callable[[str], object]) -> dict[str, Picture]:
    """Every figure that can be drawn, as SVG by its name; what cannot is said and left out."""
    drawn = {}
    if picture := _attempt(OVERVIEW, partial(ratio_figure, results), say):
        drawn[OVERVIEW] = picture
    for experiment, figures in FIGURES.items():
        records = of_experiment(results, experiment)
        for name, draw in figures.items():
            if records and (picture := _attempt(name, partial(draw, records), say)):
                drawn[name] = picture
    return drawn


def _attempt(name: str, draw: Callable[[], Drawing | None], say: Callable[[str], object]) -> Picture | None:
    picture = None
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            drawing = draw()
            picture = Picture(as_svg(drawing.figure), drawing.caption) if drawing else None
        except ODD_RECORD as error:
            say(f"figure {name} left out: a record is not as expected ({one_line(repr(error))})")
    for message in sorted({one_line(warning.message) for warning in heard}):
        say(f"figure {name}: {message}")
    return picture


def as_svg(figure: Figure) -> bytes:
    """The figure as SVG, byte for byte the same for the same results, without the characters that XML cannot hold.

    Its words are text, in the reader's sans-serif font.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "quadjoint", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", buffer.getvalue()).encode()
