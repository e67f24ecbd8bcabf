"""The paper's statements and ours, experiment by experiment, each with the check that compares it with the records."""

from __future__ import annotations

from quadjoint.experiments.published import (
    Claim,
    close_errors,
    comparable_times,
    constant_memory,
    faster,
    growth,
    irregular_cost,
    leaner,
    less_memory,
    matching_curves,
    only,
    opposite,
    same,
    trend,
)

_PAPER = ("direct", "adjoint", "seminorm", "gq-paper")  # the methods that the paper compares
_SDE = ("torchsde-direct", "torchsde-adjoint")
_ALL = (*_PAPER, "gq", "discrete", "auto")
_ADJOINT = _ALL[1:]

TITLES = {
    "toy-gradient": "Accuracy of gradients",
    "memory": "Memory",
    "nested-spheres": "Nested spheres",
    "sines": "Time series: sine curves",
    "images": "Image classification",
    "ou": "Ornstein-Uhlenbeck process",
    "crossing": "Crossing trajectories",
}


def _large_models() -> list[Claim]:
    """What the paper says of every task with a small state and a large model."""
    return [
        Claim("GQ is faster than the adjoint for large models.", faster("gq-paper", "adjoint")),
        Claim("GQ is faster than the seminorm for large models.", faster("gq-paper", "seminorm")),
        Claim("GQ's time grows less with the width than the adjoint's.", growth("gq-paper", "adjoint")),
        Claim("GQ's time grows less with the width than the seminorm's.", growth("gq-paper", "seminorm")),
        Claim("Direct backpropagation is faster than GQ.", faster("direct", "gq-paper")),
    ]


def _ours() -> list[Claim]:
    """What this library's methods are there for."""
    return [
        Claim("discrete is faster than gq-paper.", faster("discrete", "gq-paper"), ours=True),
        Claim("auto is faster than gq-paper.", faster("auto", "gq-paper"), ours=True),
        Claim("gq is faster than the adjoint.", faster("gq", "adjoint"), ours=True),
    ]


def _image_batches() -> list[Claim]:
    names = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
    small = [
        Claim(
            f"{title}, batch of {batch}: GQ is faster than the adjoint.",
            only(faster("gq-paper", "adjoint"), dataset=name, batch=batch),
        )
        for name, title in names.items()
        for batch in (16, 32)
    ]
    large = Claim(
        "MNIST, batch of 256: GQ is slower than the adjoint.",
        only(faster("adjoint", "gq-paper"), dataset="mnist", batch=256),
    )
    return [*small, large]


CLAIMS: dict[str, list[Claim]] = {
    "toy-gradient": [
        Claim("GQ's gradients are as accurate as the adjoint's.", close_errors("gq-paper", "adjoint", 3.0)),
        Claim("Direct, adjoint and GQ have the same loss.", close_errors("gq-paper", "direct", 1.001, "loss")),
        Claim("Direct has other gradients than the adjoint.", opposite(close_errors("direct", "adjoint", 1.001))),
        Claim("discrete has the gradient of direct.", close_errors("discrete", "direct", 1.001), ours=True),
    ],
    "memory": [
        Claim("GQ's memory is constant in the tolerance.", constant_memory("gq-paper")),
        Claim("The adjoint's memory is constant in the tolerance.", constant_memory("adjoint")),
        Claim("The adjoint needs slightly less memory than GQ.", less_memory("adjoint", "gq-paper")),
        Claim("Direct's memory grows with the steps.", opposite(constant_memory("direct"))),
        Claim("ACA's memory grows with the steps.", opposite(constant_memory("aca"))),
        Claim("MALI's memory does not grow with the steps.", constant_memory("mali"), ours=True),
    ],
    "nested-spheres": [
        *_large_models(),
        Claim(
            "With few parameters, the adjoint methods take similar times.",
            comparable_times(("adjoint", "seminorm", "gq-paper"), 1.5),
        ),
        Claim("All methods reach the same accuracy.", same("test_accuracy", _PAPER, relative=0.0, absolute=5.0)),
        Claim("The loss curves of all methods match.", matching_curves("test_loss", _PAPER, relative=0.1)),
        Claim("A larger C takes more time.", trend("C", "c", ("seconds_per_gradient",), "gq-paper", rising=True)),
        Claim("The smallest C costs accuracy.", trend("C", "c", ("final", "test_accuracy"), "gq-paper", rising=True)),
        *_ours(),
    ],
    "sines": [
        *_large_models(),
        Claim("All methods reach the same error.", same("test_mse", _PAPER, relative=0.1, absolute=1e-3)),
        Claim("The loss curves of all methods match.", matching_curves("test_mse", _PAPER, relative=0.1)),
        Claim(
            "Irregular times, merged, cost much more than regular ones.",
            irregular_cost("regular", "merged", "gq-paper", 1.5),
        ),
        *_ours(),
        *(
            Claim(
                f"{method}: a row of times for each sample costs less than merging irregular times.",
                irregular_cost("per-sample", "merged", method, 1.0),
                ours=True,
            )
            for method in ("gq-paper", "discrete")
        ),
    ],
    "images": [
        Claim(
            "The accuracies on MNIST are comparable.",
            only(same("test_accuracy", _PAPER, relative=0.0, absolute=2.0), dataset="mnist"),
        ),
        *_image_batches(),
        Claim(
            "The accuracies on CIFAR-10 are comparable.",
            only(same("test_accuracy", _PAPER, relative=0.0, absolute=2.0), dataset="cifar10"),
        ),
        Claim(
            "The accuracies on SVHN are comparable.",
            only(same("test_accuracy", _PAPER, relative=0.0, absolute=2.0), dataset="svhn"),
        ),
        Claim(
            "All adjoint methods, ours too, are equally accurate on MNIST.",
            only(same("test_accuracy", _ADJOINT, relative=0.0, absolute=2.0), dataset="mnist"),
            ours=True,
        ),
        Claim(
            "MNIST, batch of 16: discrete is faster than gq-paper.",
            only(faster("discrete", "gq-paper"), dataset="mnist", batch=16),
            ours=True,
        ),
    ],
    "ou": [
        Claim("GQ is faster than the SDE adjoint.", faster("gq-paper", "torchsde-adjoint")),
        Claim("Direct backpropagation through the SDE is faster than GQ.", faster("torchsde-direct", "gq-paper")),
        Claim("GQ needs less memory than direct backpropagation through the SDE.", leaner("gq-paper", _SDE[0])),
        Claim("The KL divergences are comparable.", same("test_kl", ("gq-paper", *_SDE), relative=0.3, absolute=0.02)),
        Claim("More cosines, smaller KL.", trend("cosines", "cosines", ("final", "test_kl"), "discrete", rising=False)),
        Claim(
            "More cosines, more time.",
            trend("cosines", "cosines", ("seconds_per_gradient",), "discrete", rising=True),
        ),
        *_ours(),
        Claim(
            "discrete is faster than direct backpropagation through the SDE.", faster("discrete", _SDE[0]), ours=True
        ),
    ],
    "crossing": [
        *_large_models(),
        Claim("The seminorm is slightly faster than the adjoint.", faster("seminorm", "adjoint")),
        Claim("All methods reach the same error.", same("test_mse", _PAPER, relative=0.1, absolute=1e-3)),
        Claim("The loss curves of all methods match.", matching_curves("test_mse", _PAPER, relative=0.1)),
        *_ours(),
    ],
}
