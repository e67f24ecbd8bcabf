"""Which figures each experiment has, by the name of the file they go into."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from quadjoint.experiments.plots import (
    STYLES,
    Drawer,
    Records,
    against_width,
    by,
    canvas,
    cost_figure,
    label,
    legend,
    mean_and_deviation,
    name_widths,
    of_study,
    ordered,
    spread_out,
    style,
    training_figure,
    value,
)


def toy_gradient(records: Records, *, tight: bool) -> Figure | None:
    """Relative errors of loss and gradients against T."""
    records = [r for r in records if (r["config"].get("rtol", 1.0) < 1e-4) == tight]
    if not records:
        return None
    figure, axes = canvas(2, 2)
    names = {"loss": "loss", "z0": "gradient in z0", "a": "gradient in a", "T": "gradient in T"}
    for ax, (quantity, title) in zip(axes, names.items(), strict=True):
        for record in sorted(records, key=lambda r: list(STYLES).index(r["config"]["method"])):
            result, method = record["result"], record["config"]["method"]
            errors = result.get("errors", {}).get(quantity)
            if errors:
                ax.plot(result["T"], errors, label=method, markevery=4, **style(method))
        label(ax, "T", "relative error", title=title, log="y")
    legend(figure, axes)
    figure.suptitle(f"rtol = {records[0]['config']['rtol']:g}, atol = {records[0]['config']['atol']:g}")
    return figure


def memory(records: Records) -> Figure | None:
    """Peak bytes against tolerance, one panel per size of the state (four of them, if there are more)."""
    sizes = by(records, "width")
    shown = spread_out(list(sizes.items()), 4)
    figure, axes = canvas(1, len(shown))
    for ax, ((size,), group) in zip(axes, shown, strict=True):
        for method in ordered(r["config"]["method"] for r in group):
            for record in group:
                if record["config"]["method"] == method and record["result"].get("tolerances"):
                    result = record["result"]
                    ax.plot(result["tolerances"], result["peak_memory"], label=method, **style(method))
        label(ax, "tolerance", "peak bytes", title=f"State of {size}", log="xy")
        ax.invert_xaxis()
    legend(figure, axes)
    if len(shown) < len(sizes):
        figure.suptitle(f"{len(shown)} of {len(sizes)} sizes")
    return figure


def spheres_data(records: Records) -> Figure | None:
    """Some of the points that are to be separated."""
    example = next((r["result"]["example"] for r in records if "example" in r["result"]), None)
    if example is None:
        return None
    figure, (ax,) = canvas(1, 1)
    for k, color in ((0, "#0072B2"), (1, "#D55E00")):
        chosen = [x for x, y in zip(example["x"], example["y"], strict=True) if y == k]
        ax.scatter([x[0] for x in chosen], [x[1] for x in chosen], s=10, color=color, label=f"class {k}")
    ax.set_aspect("equal")
    legend(figure, [ax])
    return figure


def ablation(records: Records, *, study: str, field: str, name: str, metric: str, metric_name: str) -> Figure | None:
    """Time and metric against one setting, one line per method."""
    records = of_study(records, study)
    if not records:
        return None
    figure, axes = canvas(1, 2)
    for ax, path in zip(axes, (("seconds_per_gradient",), ("final", metric)), strict=True):
        for method in ordered(r["config"]["method"] for r in records):
            mine = [r for r in records if r["config"]["method"] == method]
            settings = sorted({r["config"][field] for r in mine})
            at = {s: [value(r, *path) for r in mine if r["config"][field] == s] for s in settings}
            spread = [mean_and_deviation(at[s]) for s in settings]
            words = [f"{s:g}" for s in settings]
            means, deviations = [m for m, _ in spread], [d for _, d in spread]
            ax.errorbar(words, means, yerr=deviations, label=method, capsize=2, **style(method))
    label(axes[0], name, "seconds per training step", log="y")
    label(axes[1], name, metric_name)
    legend(figure, axes)
    return figure


def regularity(records: Records) -> Figure | None:
    """Seconds per step for 10 and 50 times: regular, merged, per sample; bars per method (of twelve cells at most)."""
    records = of_study(records, "regularity")
    if not records:
        return None
    cells = spread_out(sorted({_cell(r) for r in records}, key=_cell_order), 12)
    methods = ordered(r["config"]["method"] for r in records)
    figure, (ax,) = canvas(1, 1, width=9.0, height=3.6)
    slot = 0.8 / len(methods)
    for i, method in enumerate(methods):
        for j, cell in enumerate(cells):
            mine = [r for r in records if r["config"]["method"] == method]
            numbers = [value(r, "seconds_per_gradient") for r in mine if _cell(r) == cell]
            mean, deviation = mean_and_deviation(numbers)
            look: dict[str, Any] = {"color": STYLES.get(method, {}).get("color"), "label": method if j == 0 else None}
            ax.bar(j + (i - (len(methods) - 1) / 2) * slot, mean, slot, yerr=deviation, **look)
    ax.set_xticks(range(len(cells)), [f"{times} times\n{spacing}" for times, spacing in cells])
    label(ax, "", "seconds per training step", log="y")
    legend(figure, [ax])
    return figure


def _cell(record: dict[str, Any]) -> tuple[int, str]:
    return record["config"]["times"], record["config"]["spacing"]


def _cell_order(cell: tuple[int, str]) -> tuple[int, int]:
    return cell[0], ["regular", "merged", "per-sample"].index(cell[1])


def images(records: Records, *, dataset: str) -> Figure | None:
    chosen = [r for r in records if r["config"].get("dataset") == dataset and r["config"].get("study") == "widths"]
    return training_figure(chosen, "test_accuracy", "test accuracy (%)", "test_loss", log_metric=False)


def batch_sizes(records: Records) -> Figure | None:
    """Time against hidden channels for each data set and batch size (nine panels at most)."""
    cells = by([r for r in records if "dataset" in r["config"]], "dataset", "batch")
    groups = dict(spread_out(list(cells.items()), 9))
    if not groups:
        return None
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure, axes = canvas(rows, columns, width=3.8, height=3.0)
    for ax in axes[len(groups) :]:
        ax.remove()
    for ax, ((dataset, batch), group) in zip(axes, groups.items(), strict=False):
        against_width(ax, group, "seconds_per_gradient")
        label(ax, "hidden channels", "seconds per step", title=f"{dataset}, batch {batch}", log="xy")
        name_widths(ax, group)
    legend(figure, axes[: len(groups)])
    if len(groups) < len(cells):
        figure.suptitle(f"{len(groups)} of {len(cells)} pairs of data set and batch size")
    return figure


def ou_solutions(records: Records, *, method: str = "gq") -> Figure | None:
    """Gaussians fitted to true and learnt samples at some times, and sample paths from three starts."""
    chosen = [r for r in of_study(records, "widths") if "solutions" in r["result"]]
    chosen = [r for r in chosen if r["config"]["method"] == method] or chosen
    if not chosen:
        return None
    shown = min(chosen, key=lambda r: (abs(r["config"]["width"] - 20), r["config"]["seed"]))["result"]["solutions"]
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
    return figure


def _gaussian(ax: Any, mean: float, deviation: float, **look: Any) -> None:
    import numpy as np

    deviation = max(deviation, 1e-6)
    x = np.linspace(mean - 4 * deviation, mean + 4 * deviation, 200)
    ax.plot(x, np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi)), **look)


FIGURES: dict[str, dict[str, Drawer]] = {
    "toy-gradient": {
        "toy-gradient": partial(toy_gradient, tight=False),
        "toy-gradient-tight": partial(toy_gradient, tight=True),
    },
    "memory": {"memory": memory},
    "nested-spheres": {
        "nested-spheres-data": spheres_data,
        "nested-spheres": partial(
            training_figure,
            metric="test_accuracy",
            metric_name="test accuracy (%)",
            loss="test_loss",
            log_metric=False,
        ),
        "nested-spheres-cost": cost_figure,
        "nested-spheres-C": partial(
            ablation, study="C", field="c", name="C", metric="test_accuracy", metric_name="test accuracy (%)"
        ),
    },
    "sines": {
        "sines": partial(training_figure, metric="test_mse", metric_name="test MSE", loss="test_mse", log_metric=True),
        "sines-cost": cost_figure,
        "sines-regularity": regularity,
    },
    "images": {
        "images-mnist": partial(images, dataset="mnist"),
        "images-cifar10": partial(images, dataset="cifar10"),
        "images-svhn": partial(images, dataset="svhn"),
        "images-batch-size": batch_sizes,
    },
    "ou": {
        "ou": partial(training_figure, metric="test_kl", metric_name="test KL", loss="test_kl", log_metric=True),
        "ou-cosines": partial(
            ablation, study="cosines", field="cosines", name="cosines", metric="test_kl", metric_name="test KL"
        ),
        "ou-solutions": ou_solutions,
    },
    "crossing": {
        "crossing": partial(
            training_figure, metric="test_mse", metric_name="final MSE", loss="test_mse", log_metric=True
        ),
        "crossing-cost": cost_figure,
    },
}
