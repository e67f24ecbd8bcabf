"""Which figures each experiment has, by the name of the file they go into."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from quadjoint.experiments.claims import IMAGES
from quadjoint.experiments.claims.checks_time import timed
from quadjoint.experiments.figures_training import (
    ablation,
    cost_figure,
    how_timed,
    regularity,
    several,
    training_figure,
)
from quadjoint.experiments.plots import (
    STYLES,
    Drawer,
    Drawing,
    against,
    canvas,
    label,
    legend,
    name_ends,
    name_settings,
    ordered,
    panels,
    remember_ends,
    spread_out,
    style,
)
from quadjoint.experiments.records import Records, by, by_size, of_study, step_seconds, where, with_solutions
from quadjoint.experiments.verdicts import short


def toy_gradient(records: Records, *, tight: bool) -> Drawing | None:
    """Relative errors of loss and gradients against T."""
    records = [r for r in records if (r["config"].get("rtol", 1.0) < 1e-4) == tight]
    if not records:
        return None
    figure, axes = canvas(2, 2)
    names = {"loss": "loss", "z0": "gradient in z0", "a": "gradient in a", "T": "gradient in T"}
    for ax, (quantity, title) in zip(axes, names.items(), strict=True):
        ends = []
        for record in sorted(records, key=lambda r: list(STYLES).index(r["config"]["method"])):
            result, method = record["result"], record["config"]["method"]
            errors = result.get("errors", {}).get(quantity)
            if errors:
                ax.plot(result["T"], errors, label=method, markevery=4, **style(method))
                ends.append((method, result["T"][-1], errors[-1]))
        label(ax, "T", "relative error", title=title, log="y")
        remember_ends(ax, ends)
        name_ends(ax)
    config = records[0]["config"]
    return Drawing(
        figure,
        f"Errors of the loss and of its three gradients on dz/dt = a z with rtol {short(config['rtol'])} and "
        f"atol {short(config['atol'])}, in double precision. All but mali solve forwards alike and have the same loss. "
        "Lines that end together share a name.",
    )


def integration(records: Records) -> Drawing | None:
    """Error against evaluations of the integrand, a line for each rule."""
    records = [r for r in records if len(r["result"].get("errors", [])) > 1]
    if not records:
        return None
    figure, (ax,) = panels(1, width=6.4, height=3.6)
    for rule in ordered(r["config"]["method"] for r in records):
        result = where(records, method=rule)[0]["result"]
        ax.plot(result["evaluations"], result["errors"], label=rule, **style(rule))
        end = (result["evaluations"][-1], result["errors"][-1])
        ax.annotate(rule, end, xytext=(5, 4), textcoords="offset points", fontsize=8, color=STYLES[rule]["color"])
    label(ax, "evaluations of the integrand", "relative error of the gradient", log="xy")
    ax.margins(x=0.12)
    return Drawing(
        figure,
        "The integral in the gradient of a small network, by rules with more and more points. Newton–Cotes "
        "rules fall with a fixed power, Gauss-Legendre quadrature faster than any power, Monte Carlo (root mean "
        "square of 16 draws) with the square root.",
    )


def memory(records: Records) -> Drawing | None:
    """Peak memory against tolerance, one panel per size of the state (four of them, if there are more)."""
    sizes = by(records, "width")
    shown = spread_out(list(sizes.items()), 4)
    figure, axes = canvas(1, len(shown))
    for ax, ((size,), group) in zip(axes, shown, strict=True):
        ends = []
        for method in ordered(r["config"]["method"] for r in group):
            for record in where(group, method=method):
                result = record["result"]
                if result.get("tolerances"):
                    peaks = [peak / 2**10 for peak in result["peak_memory"]]
                    ax.plot(result["tolerances"], peaks, label=method, **style(method))
                    ends.append((method, result["tolerances"][-1], peaks[-1]))
        numbers = "1 number" if size == 1 else f"{size} numbers"
        label(ax, "tolerance", "peak KiB", title=f"State of {numbers}", log="xy")
        ax.invert_xaxis()
        remember_ends(ax, ends)
        name_ends(ax)
    if len(shown) < len(sizes):
        figure.suptitle(f"{len(shown)} of {len(sizes)} sizes")
    return Drawing(
        figure,
        "Peak memory of one gradient of the exponential up to T = 15 as the tolerance tightens and steps become "
        "more. With a state of one number, a few bytes of bookkeeping are most of what is held; with 1000 the state "
        "is. A flat line is memory that does not grow with the steps. Lines that end together share a name; mali, of "
        "order two, stops at a looser tolerance.",
    )


def spheres_data(records: Records) -> Drawing | None:
    """Some of the points that are to be separated."""
    example = next((r["result"]["example"] for r in records if "example" in r["result"]), None)
    if example is None:
        return None
    figure, (ax,) = canvas(1, 1, width=3.4)
    for k, color in ((0, "#0072B2"), (1, "#D55E00")):
        chosen = [x for x, y in zip(example["x"], example["y"], strict=True) if y == k]
        ax.scatter([x[0] for x in chosen], [x[1] for x in chosen], s=10, color=color, label=f"class {k}")
    ax.set_aspect("equal")
    return Drawing(figure, "Some of the training points: the disc in the middle is to be told from the ring around it.")


def images(records: Records, *, dataset: str) -> Drawing | None:
    chosen = where(records, dataset=dataset, study="widths")
    return training_figure(
        chosen,
        metric="test_accuracy",
        metric_name="test accuracy (%)",
        loss="test_loss",
        log_metric=False,
        task=IMAGES[dataset],
    )


def batch_sizes(records: Records) -> Drawing | None:
    """The time of a step for each data set, batch size and number of channels: a dot for each method."""
    cells = by_size([r for r in timed(records) if r["config"].get("dataset")])
    shown = spread_out(list(cells.items()), 12)
    if len(shown) < 2:
        return None
    figure, (ax,) = panels(1, width=8.0, height=1.2 + 0.45 * len(shown))
    methods = ordered(r["config"]["method"] for _, group in shown for r in group)
    for i, method in enumerate(methods):
        shift = (i / max(1, len(methods) - 1) - 0.5) * 0.6
        rows = [(r, k + shift) for k, (_, group) in enumerate(shown) for r in where(group, method=method)]
        places = [(seconds, y) for r, y in rows if (seconds := step_seconds(r))]
        look = style(method) | {"linestyle": "none"}
        ax.plot([p[0] for p in places], [p[1] for p in places], label=method, **look)
    names = [f"{IMAGES.get(name, name)}, batch {batch}, {width} channels" for (name, batch, width), _ in shown]
    ax.set_yticks(range(len(shown)), names)
    ax.invert_yaxis()
    label(ax, "seconds per training step", "", log="x")
    legend(figure, [ax])
    return Drawing(
        figure,
        f"The time of a training step on images ({how_timed(timed(records), 'dataset', 'batch')}). The larger the "
        "state, which grows with the batch, the less a cheap integral over the parameters helps.",
    )


def ou_solutions(records: Records, *, method: str) -> Drawing | None:
    """Gaussians fitted to true and learnt samples at some times, and sample paths from three starts."""
    record = with_solutions(records, method)
    if record is None:
        return None
    shown = record["result"]["solutions"]
    figure, axes = canvas(2, 3, width=3.6, height=2.7)
    for ax, fit in zip(axes[:3], shown["fits"], strict=False):
        _gaussian(ax, *fit["true"], color="#000000", label="true")
        _gaussian(ax, *fit["learnt"], color="#0072B2", label="learnt")
        ax.set(title=f"t = {fit['t']:g}", xlabel="x", ylabel="density")
    for ax, start in zip(axes[3:], shown["paths"], strict=False):
        for k, path in enumerate(start["true"]):
            ax.plot(shown["t"], path, color="#000000", linewidth=0.7, alpha=0.7, label="true" if k == 0 else None)
        for k, path in enumerate(start["learnt"]):
            ax.plot(shown["t"], path, color="#0072B2", linewidth=0.7, alpha=0.7, label="learnt" if k == 0 else None)
        ax.set(title=f"x(0) = {start['true'][0][0]:.2f}", xlabel="t", ylabel="x")
    axes[0].legend(frameon=False)
    config = record["config"]
    return Drawing(
        figure,
        f"What a model of width {config['width']} has learnt with {method} in {config.get('epochs')} epochs (seed "
        f"{config['seed']}): above, Gaussians fitted to true and learnt samples from one start at three times; below, "
        "samples from three starts.",
    )


def _gaussian(ax: Any, mean: float, deviation: float, **look: Any) -> None:
    deviation = max(deviation, 1e-6)
    x = np.linspace(mean - 4 * deviation, mean + 4 * deviation, 200)
    ax.plot(x, np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi)), **look)


def authors_code(records: Records) -> Drawing | None:
    """Our methods and those of the authors' code on one axis, where the clock has both."""
    pairs = {"gq-paper": "paper:gq", "adjoint": "paper:adjoint", "seminorm": "paper:seminorm"}
    both = [r for r in of_study(records, "clock") if r["config"]["method"] in (*pairs, *pairs.values())]
    theirs = [r for r in both if r["config"]["method"] in pairs.values()]
    if not several(theirs):
        return None
    figure, (ax,) = panels(1, width=6.4, height=3.6)
    against(ax, both, "width", step_seconds)
    label(ax, "width", "seconds per training step", log="xy")
    name_settings(ax, both)
    name_ends(ax, height=200)
    return Drawing(
        figure,
        f"The authors’ own code (paper:, dashed) beside the same methods here: {how_timed(both)}. A dashed line above "
        "its full one is a step that takes longer by their code. Lines that end together share a name.",
    )


_SPHERES: dict[str, Any] = {
    "metric": "test_accuracy",
    "metric_name": "test accuracy (%)",
    "loss": "test_loss",
    "log_metric": False,
}
_MSE: dict[str, Any] = {"metric": "test_mse", "metric_name": "test MSE", "loss": "test_mse", "log_metric": True}
_KL: dict[str, Any] = {"metric": "test_kl", "metric_name": "test KL", "loss": "test_kl", "log_metric": True}

FIGURES: dict[str, dict[str, Drawer]] = {
    "toy-gradient": {
        "toy-gradient": partial(toy_gradient, tight=False),
        "toy-gradient-tight": partial(toy_gradient, tight=True),
    },
    "integration": {"integration": integration},
    "memory": {"memory": memory},
    "nested-spheres": {
        "nested-spheres-data": spheres_data,
        "nested-spheres": partial(training_figure, task="Nested spheres", **_SPHERES),
        "nested-spheres-cost": partial(cost_figure, task="Nested spheres", scale="three times"),
        "nested-spheres-C": partial(
            ablation,
            study="C",
            field="c",
            name="C",
            metric="test_accuracy",
            metric_name="test accuracy (%)",
            task="Nested spheres",
        ),
        "nested-spheres-authors": authors_code,
    },
    "sines": {
        "sines": partial(training_figure, task="Sines", **_MSE),
        "sines-cost": partial(cost_figure, task="Sines", scale="twice"),
        "sines-regularity": regularity,
        "sines-authors": authors_code,
    },
    "images": {
        "images-mnist": partial(images, dataset="mnist"),
        "images-cifar10": partial(images, dataset="cifar10"),
        "images-svhn": partial(images, dataset="svhn"),
        "images-batch-size": batch_sizes,
    },
    "ou": {
        "ou": partial(training_figure, task="OU", **_KL),
        "ou-cosines": partial(
            ablation,
            study="cosines",
            field="cosines",
            name="cosines",
            metric="test_kl",
            metric_name="test KL",
            task="OU",
        ),
        "ou-solutions": partial(ou_solutions, method="gq-paper"),
        "ou-solutions-direct": partial(ou_solutions, method="direct"),
    },
    "crossing": {
        "crossing": partial(training_figure, task="Crossing trajectories", **_MSE),
        "crossing-cost": partial(cost_figure, task="Crossing trajectories", scale="three times"),
        "crossing-authors": authors_code,
    },
}
