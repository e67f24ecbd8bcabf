"""The paper's statements and ours, experiment by experiment, each with the check that compares it with the records."""

from __future__ import annotations

from quadjoint.experiments.checks_cost import (
    close_errors,
    constant_memory,
    evaluations,
    fewer_evaluations,
    larger_errors,
    leaner,
    less_memory,
    most_accurate,
    order,
)
from quadjoint.experiments.checks_time import (
    faster,
    growth,
    irregular_cost,
    linear_growth,
    similar_times,
    sooner,
)
from quadjoint.experiments.checks_training import Margin, like_regular, matching_curves, pays_little, rises, same, stays
from quadjoint.experiments.verdicts import Claim, only, opposite

_PAPER = ("direct", "adjoint", "seminorm", "gq-paper")  # the methods that the paper compares
_ADJOINTS = ("gq-paper", "adjoint", "seminorm")
_SDE = ("torchsde-direct", "torchsde-adjoint")
_ALL = (*_PAPER, "gq", "discrete", "auto")

TITLES = {
    "toy-gradient": "Accuracy of gradients",
    "integration": "Rules of integration",
    "memory": "Memory",
    "nested-spheres": "Nested spheres",
    "sines": "Time series: sine curves",
    "images": "Image classification",
    "ou": "Ornstein-Uhlenbeck process",
    "crossing": "Crossing trajectories",
}
IMAGES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}

# What the words of the statements are taken to mean.
_FASTER = "at least a twentieth less time for a step, at the largest width"
_GROWTH = "the ratio of the two times grows by at least a twentieth from the smallest to the largest width"
_SMALL = "times within a third of each other at the smallest width"
_CURVES = "on average over the epochs, less than a tenth of the first value from the curve of gq-paper"
_SOONER = "at least a twentieth less time to the lowest loss that both reach, at the largest width that was trained"
_ACCURACY = "mean accuracies less than three percentage points from that of gq-paper"
_ERROR = "mean errors less than a tenth, or 0.01, from that of gq-paper"


def _large_models() -> list[Claim]:
    """What the paper says of every task with a small state and a large model."""
    return [
        Claim("GQ is faster than the adjoint for large models.", faster("gq-paper", "adjoint"), _FASTER),
        Claim("GQ is faster than the seminorm for large models.", faster("gq-paper", "seminorm"), _FASTER),
        Claim("GQ’s time grows less with the width than the adjoint’s.", growth("gq-paper", "adjoint"), _GROWTH),
        Claim("GQ’s time grows less with the width than the seminorm’s.", growth("gq-paper", "seminorm"), _GROWTH),
        Claim("Direct backpropagation is faster than GQ.", faster("direct", "gq-paper"), _FASTER),
        Claim("With few parameters, the adjoint methods take similar times.", similar_times(_ADJOINTS, 4 / 3), _SMALL),
    ]


def _curves(loss: str, others: tuple[str, ...] = ("adjoint", "seminorm")) -> list[Claim]:
    reduces = [
        Claim(f"GQ reduces the loss faster in time than the {other}.", sooner("gq-paper", other, loss), _SOONER)
        for other in others
    ]
    return [Claim("The loss curves of all methods match.", matching_curves(loss, _PAPER, 0.1), _CURVES), *reduces]


def _nfe() -> list[Claim]:
    """The paper's appendix E.1, for solves without intermediate observations."""
    quarter = "to a quarter of it, on average over all trained runs"
    return [
        Claim(
            "The adjoint needs half as many evaluations backwards as forwards.",
            evaluations("adjoint", 0.375, 0.625),
            quarter,
        ),
        Claim("The seminorm needs 0.2 to 0.3 times as many.", evaluations("seminorm", 0.15, 0.375), quarter),
        Claim(
            "The seminorm needs 40 to 62 % fewer than the adjoint.",
            fewer_evaluations("seminorm", "adjoint", 0.3, 0.8),
            quarter,
        ),
        Claim("GQ’s backward solve needs 0.2 to 0.3 times as many.", evaluations("gq-paper", 0.15, 0.375), quarter),
        Claim(
            "GQ’s quadrature needs 0.1 times as many.",
            evaluations("gq-paper", 0.075, 0.125, of="quadrature_nodes"),
            quarter,
        ),
    ]


def _ours() -> list[Claim]:
    """What this library's methods are there for."""
    return [
        Claim("gq is faster than gq-paper.", faster("gq", "gq-paper"), _FASTER, ours=True),
        Claim("discrete is faster than gq-paper.", faster("discrete", "gq-paper"), _FASTER, ours=True),
        Claim("auto is faster than gq-paper.", faster("auto", "gq-paper"), _FASTER, ours=True),
    ]


def _image_claims() -> list[Claim]:
    claims = []
    accuracy, curves = same("test_accuracy", _ALL, Margin(absolute=3.0)), matching_curves("test_loss", _ALL, 0.1)
    for name, title in IMAGES.items():
        claims += [
            Claim(f"{title}: the accuracies are comparable.", only(accuracy, dataset=name), _ACCURACY),
            Claim(f"{title}: the loss curves match.", only(curves, dataset=name), _CURVES),
            Claim(
                f"{title}: GQ reduces the loss faster in time than the adjoint.",
                only(sooner("gq-paper", "adjoint", "test_loss"), dataset=name),
                _SOONER,
            ),
        ]
        for batch in (16, 32):
            quicker = only(faster("gq-paper", "adjoint"), dataset=name, batch=batch)
            claims.append(Claim(f"{title}, batch of {batch}: GQ is faster than the adjoint.", quicker, _FASTER))
    slower = only(faster("adjoint", "gq-paper"), dataset="mnist", batch=256)
    ours = only(faster("gq", "gq-paper"), dataset="mnist", batch=16)
    return [
        *claims,
        Claim("MNIST, batch of 256: GQ is slower than the adjoint.", slower, _FASTER),
        Claim("MNIST, batch of 16: gq is faster than gq-paper.", ours, _FASTER, ours=True),
    ]


def _ablation_of_c() -> list[Claim]:
    time, accuracy = ("step",), ("final", "test_accuracy")
    ends, capped = (1e-3, 1e5), (1e2, 1e5)
    least = "at least a twentieth more time from C = 0.001 to 100,000"
    return [
        Claim("A larger C takes more time.", rises("C", "c", ends, time, "gq-paper"), least),
        Claim(
            "The smallest C costs accuracy.",
            rises("C", "c", (1e-3, 1e-1), accuracy, "gq-paper", ratio=False, by_least=1.0),
            "at least one percentage point less than with C = 0.1",
        ),
        Claim(
            "C = 100 takes the time of C = 100,000.",
            stays("C", "c", capped, time, "gq-paper", margin=0.1, ratio=True),
            "within a tenth",
        ),
        Claim(
            "C = 100 has the accuracy of C = 100,000.",
            stays("C", "c", capped, accuracy, "gq-paper", margin=1.0, ratio=False),
            "within one percentage point",
        ),
    ]


def _sines_claims() -> list[Claim]:
    many = "at least half as much again"
    apart = "means apart by less than the sum of the deviations over seeds; of direct, of which there are most seeds"
    rows = [
        Claim(
            f"{method}: a row of times for each sample costs less than merging irregular times.",
            irregular_cost("per-sample", "merged", method, 1.05),
            "at least a twentieth less time",
            ours=True,
        )
        for method in ("gq-paper", "discrete")
    ]
    return [
        *_large_models(),
        Claim("All methods reach the same error.", same("test_mse", _PAPER, Margin(0.01, 0.1)), _ERROR),
        *_curves("test_mse"),
        Claim("Irregular times cost much more time.", irregular_cost("regular", "merged", "gq-paper", 1.5), many),
        Claim("With irregular times the error is not significantly different.", like_regular("direct", 250), apart),
        Claim("The error is slightly lower with irregular times.", like_regular("direct", 250, lower=True), "lower"),
        *_ours(),
        *rows,
    ]


def _ou_claims() -> list[Claim]:
    # In the evening direct has two seeds of every number of cosines; it solves the same ODE as gq-paper.
    cosines = ("cosines", "cosines", (0, 50))
    kl = ("final", "test_kl")
    comparable = same("test_kl", ("gq-paper", *_SDE), Margin(0.02, 0.3))
    return [
        Claim("GQ is faster than the SDE adjoint.", faster("gq-paper", _SDE[1]), _FASTER),
        Claim("Direct backpropagation through the SDE is faster than GQ.", faster(_SDE[0], "gq-paper"), _FASTER),
        Claim("GQ needs less memory than direct backpropagation through the SDE.", leaner("gq-paper", _SDE[0])),
        Claim("The KL divergences are comparable.", comparable, "means within 0.02, or three tenths, of each other"),
        Claim(
            "The curves of GQ and of the SDE adjoint match.",
            matching_curves("test_kl", ("gq-paper", _SDE[1]), 0.1),
            _CURVES,
        ),
        Claim(
            "GQ reduces the loss faster in time than the SDE adjoint.", sooner("gq-paper", _SDE[1], "test_kl"), _SOONER
        ),
        Claim("More cosines, smaller KL.", opposite(rises(*cosines, kl, "direct")), "from 0 to 50"),
        Claim("More cosines, more time.", rises(*cosines, ("step",), "direct"), "from 0 to 50"),
        Claim(
            "Beyond 5 cosines the KL gains little for the time.",
            pays_little("cosines", "cosines", (5, 50), "test_kl", "direct"),
            "the KL falls by a smaller factor than the time rises",
        ),
        *_ours(),
        Claim("gq is faster than direct backpropagation through the SDE.", faster("gq", _SDE[0]), _FASTER, ours=True),
    ]


CLAIMS: dict[str, list[Claim]] = {
    "toy-gradient": [
        Claim(
            "GQ’s gradients are as accurate as the adjoint’s.",
            close_errors("gq-paper", "adjoint", 3.0),
            "errors within a factor of three, over end times",
        ),
        Claim("Direct, adjoint and GQ have the same loss.", close_errors("gq-paper", "direct", 1.001, "loss")),
        Claim("Direct has other gradients than the adjoint.", opposite(close_errors("direct", "adjoint", 1.001))),
        Claim(
            "Direct’s errors are larger than the adjoint’s.",
            larger_errors("direct", "adjoint", ("z0", "a")),
            "in z0 and in a, on average over end times; the gradient in T is the same",
        ),
        Claim("discrete has the gradient of direct.", close_errors("discrete", "direct", 1.001), ours=True),
    ],
    "integration": [
        Claim(
            "The trapezoid rule’s error falls with the square.", order("trapezoid", 2, 0.25), "power within a quarter"
        ),
        Claim("Simpson’s with the fourth power.", order("simpson", 4, 0.25), "power within a quarter"),
        Claim("Boole’s with the sixth power.", order("boole", 6, 0.25), "power within a quarter"),
        Claim("Monte Carlo’s with the square root.", order("monte-carlo", 0.5, 0.15), "power within 0.15"),
        Claim(
            "Gauss-Legendre quadrature is the most accurate.",
            most_accurate("gauss", ("trapezoid", "simpson", "boole", "monte-carlo"), (5, 9)),
            "with 5 and with 9 evaluations",
        ),
    ],
    "memory": [
        Claim("GQ’s memory is constant in the tolerance.", constant_memory("gq-paper"), "grows by less than a quarter"),
        Claim("The adjoint’s memory is constant in the tolerance.", constant_memory("adjoint"), "the same"),
        Claim(
            "The adjoint needs slightly less memory than GQ.", less_memory("adjoint", "gq-paper"), "state of one number"
        ),
        Claim("Direct’s memory grows with the steps.", opposite(constant_memory("direct")), "by a quarter or more"),
        Claim("ACA’s memory grows with the steps.", opposite(constant_memory("aca")), "by a quarter or more"),
        Claim("MALI’s memory does not grow with the steps.", constant_memory("mali"), "less than a quarter", ours=True),
    ],
    "nested-spheres": [
        *_large_models(),
        *_nfe(),
        Claim("All methods reach the same accuracy.", same("test_accuracy", _PAPER, Margin(3.0)), _ACCURACY),
        *_curves("test_loss"),
        *_ablation_of_c(),
        *_ours(),
    ],
    "sines": _sines_claims(),
    "images": _image_claims(),
    "ou": _ou_claims(),
    "crossing": [
        *_large_models(),
        Claim(
            "The seminorm is slightly faster than the adjoint.",
            faster("seminorm", "adjoint", 1.0),
            "less time for a step",
        ),
        Claim(
            "The adjoint’s and the seminorm’s time grows linearly with the number of parameters.",
            linear_growth(("adjoint", "seminorm"), 0.75, 1.25),
            "with a power between 0.75 and 1.25, from width 500",
        ),
        *_nfe(),
        Claim("All methods reach the same error.", same("test_mse", _PAPER, Margin(0.01, 0.1)), _ERROR),
        *_curves("test_mse"),
        *_ours(),
    ],
}
