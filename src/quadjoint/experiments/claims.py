"""The paper's statements and ours, experiment by experiment, each with the check that compares it with the records."""

from __future__ import annotations

from quadjoint.experiments.checks_cost import (
    close_errors,
    constant_memory,
    larger_errors,
    leaner,
    less_memory,
    most_accurate,
    order,
)
from quadjoint.experiments.checks_curves import matching_curves, sooner
from quadjoint.experiments.checks_time import (
    LARGE,
    faster,
    growth,
    irregular_cost,
    keeps_time,
    linear_growth,
    shrinks,
)
from quadjoint.experiments.checks_training import Margin, like_regular, low, pays_little, rises, same, stays
from quadjoint.experiments.claims_common import (
    ACCURACY,
    ADJOINTS,
    COMPARED,
    CURVES,
    ERROR,
    GROWTH,
    QUICKER,
    SOONER,
    large_models,
    loss_curves,
    numbers_of_evaluations,
    ours,
)
from quadjoint.experiments.verdicts import Claim, every, of_large_models, only, opposite, with_seeds

_SDE = ("torchsde-direct", "torchsde-adjoint")
_MOST_SEEDS = ("gq-paper", "direct")  # in the evening the former is trained once; both solve the same ODE
_CHANNELS = 200  # from which an image model is called large

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


def _image_claims() -> list[Claim]:
    claims = []
    accuracy = same("test_accuracy", ADJOINTS, Margin(absolute=3.0))
    curves = matching_curves("test_loss", ADJOINTS, 0.1)
    grows = "the ratio of the two times grows by at least a twentieth, from 50 to 200 channels or more"
    for name, title in IMAGES.items():
        claims += [
            Claim(f"{title}: the accuracies are comparable.", only(accuracy, dataset=name), ACCURACY, trained=True),
            Claim(f"{title}: the loss curves match.", only(curves, dataset=name), CURVES, trained=True),
        ]
        for other in ("adjoint", "seminorm"):
            less = only(growth("gq-paper", other, least=_CHANNELS), dataset=name, batch=16)
            reduces = only(sooner("gq-paper", other, "test_loss", least=_CHANNELS), dataset=name)
            claims += [
                Claim(f"{title}: GQ’s time grows less with the channels than the {other}’s.", less, grows),
                Claim(f"{title}: GQ reduces the loss faster in time than the {other}.", reduces, SOONER, trained=True),
            ]
        smaller = only(shrinks("gq-paper", "adjoint", (16, 32)), dataset=name)
        claims.append(
            Claim(
                f"{title}: GQ’s advantage over the adjoint is smaller with a batch of 32 than of 16.",
                smaller,
                "the ratio of the two times falls by at least a twentieth, with as many channels as were timed",
            )
        )
    claims += [
        Claim(
            f"MNIST, batch of 256: GQ is slower than the {other}.",
            only(faster(other, "gq-paper"), dataset="mnist", batch=256),
            QUICKER,
        )
        for other in ("adjoint", "seminorm")
    ]
    ours = only(faster("gq", "gq-paper"), dataset="mnist", batch=16)
    return [*claims, Claim("MNIST, batch of 16: gq is faster than gq-paper.", ours, QUICKER, ours=True)]


def _ablation_of_c() -> list[Claim]:
    time, accuracy = ("step",), ("final", "test_accuracy")
    ends, capped = (1e-3, 1e5), (1e2, 1e5)
    longer = every(
        rises("C", "c", ends, time, "gq-paper"), rises("C", "c", (1e-3, 1e-1), time, "gq-paper", by_least=0.0)
    )
    costs = rises("C", "c", (1e-3, 1e-1), accuracy, "gq-paper", ratio=False, by_least=1.0)
    return [
        Claim(
            "The smallest C takes the least time.",
            longer,
            "less than C = 0.1, and a twentieth less than C = 100,000",
        ),
        Claim(
            "The smallest C costs accuracy.",
            of_large_models(costs, "C", LARGE),
            "at least one percentage point less than with C = 0.1; the paper at width 1500",
            trained=True,
        ),
        Claim(
            "C = 0.1 has the accuracy of C = 100.",
            stays("C", "c", (1e-1, 1e2), accuracy, "gq-paper", margin=1.0, ratio=False),
            "within one percentage point",
            trained=True,
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
            trained=True,
        ),
    ]


def _sines_claims() -> list[Claim]:
    many = "at least half as much again"
    apart = "means apart by less than the sum of the deviations over seeds"
    alike = with_seeds("regularity", _MOST_SEEDS, lambda method: like_regular(method, 250))
    lower = with_seeds("regularity", _MOST_SEEDS, lambda method: like_regular(method, 250, lower=True))
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
        *large_models(),
        Claim("All methods reach the same error.", same("test_mse", COMPARED, Margin(0.01, 0.1)), ERROR, trained=True),
        *loss_curves("test_mse"),
        Claim("Irregular times cost much more time.", irregular_cost("regular", "merged", "gq-paper", 1.5), many),
        Claim("With irregular times the error is not significantly different.", alike, apart, trained=True),
        Claim("The error is slightly lower with irregular times.", lower, "lower", trained=True),
        *ours(),
        *rows,
    ]


def _ou_claims() -> list[Claim]:
    kl = ("final", "test_kl")
    comparable = same("test_kl", ("gq-paper", *_SDE), Margin(absolute=0.0074))
    smaller = with_seeds("cosines", _MOST_SEEDS, lambda m: rises("cosines", "cosines", (50, 0), kl, m))
    longer = with_seeds("cosines", _MOST_SEEDS, lambda m: rises("cosines", "cosines", (0, 50), ("step",), m))
    little = with_seeds("cosines", _MOST_SEEDS, lambda m: pays_little("cosines", "cosines", (5, 50), "test_kl", m))
    return [
        Claim("GQ is faster than the SDE adjoint.", faster("gq-paper", _SDE[1]), QUICKER),
        Claim(
            "Direct backpropagation through the SDE is faster than GQ.",
            faster(_SDE[0], "gq-paper", most=50),
            "at least a twentieth less time for a step, up to width 50, as at 100 the paper’s run out of memory",
        ),
        Claim("GQ needs less memory than direct backpropagation through the SDE.", leaner("gq-paper", _SDE[0])),
        Claim(
            "Times fluctuate rather than grow with the model.",
            keeps_time("gq-paper", 1.5),
            "from the smallest to the largest width, less than half as much again",
        ),
        Claim(
            "The KL divergences are comparable.",
            comparable,
            "means less than 0.0074 from that of gq-paper, a standard deviation of the paper’s",
            trained=True,
        ),
        Claim(
            "The curves of GQ and of the SDE adjoint match.",
            matching_curves("test_kl", ("gq-paper", _SDE[1]), 0.1),
            CURVES,
            trained=True,
        ),
        Claim(
            "GQ reduces the loss faster in time than the SDE adjoint.",
            sooner("gq-paper", _SDE[1], "test_kl", least=0),
            SOONER,
            trained=True,
        ),
        Claim("More cosines, smaller KL.", smaller, "by at least a twentieth from 0 to 50", trained=True),
        Claim("More cosines, more time.", longer, "by at least a twentieth from 0 to 50"),
        Claim(
            "Beyond 5 cosines the KL gains little for the time.",
            little,
            "the KL falls by a smaller factor than the time rises",
            trained=True,
        ),
        *ours(),
        Claim("gq is faster than direct backpropagation through the SDE.", faster("gq", _SDE[0]), QUICKER, ours=True),
    ]


CLAIMS: dict[str, list[Claim]] = {
    "toy-gradient": [
        Claim(
            "GQ’s gradients are as accurate as the adjoint’s.",
            close_errors("gq-paper", "adjoint", 3.0, ("z0", "a", "T")),
            "errors within a factor of three, on average over end times, at both tolerances",
        ),
        Claim(
            "Direct, adjoint and GQ have the same loss.",
            every(*(close_errors("gq-paper", other, 1.001, ("loss",)) for other in ("direct", "adjoint"))),
        ),
        Claim("Direct has other gradients than the adjoint.", opposite(close_errors("direct", "adjoint", 1.001))),
        Claim(
            "Direct’s errors are larger than the adjoint’s.",
            larger_errors("direct", "adjoint", ("z0", "a")),
            "in z0 and in a, on average over end times, at both tolerances; the gradient in T is the same",
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
        Claim(
            "Monte Carlo is the least accurate.",
            most_accurate("monte-carlo", ("trapezoid", "simpson", "boole", "gauss"), (5, 9), least=True),
            "with 5 and with 9 evaluations",
        ),
    ],
    "memory": [
        Claim("GQ’s memory is constant in the tolerance.", constant_memory("gq-paper"), "grows by less than a quarter"),
        Claim("The adjoint’s memory is constant in the tolerance.", constant_memory("adjoint"), "the same"),
        Claim(
            "The adjoint needs slightly less memory than GQ.",
            less_memory("adjoint", "gq-paper"),
            "at the tightest tolerance; the paper has a state of one number",
        ),
        Claim("Direct’s memory grows with the steps.", opposite(constant_memory("direct")), "by a quarter or more"),
        Claim("ACA’s memory grows with the steps.", opposite(constant_memory("aca")), "by a quarter or more"),
        Claim("MALI’s memory does not grow with the steps.", constant_memory("mali"), "less than a quarter", ours=True),
    ],
    "nested-spheres": [
        *large_models(COMPARED),
        *(
            Claim(f"The {slow}’s time grows more with the width than direct’s.", growth("direct", slow), GROWTH)
            for slow in ("adjoint", "seminorm")
        ),
        *numbers_of_evaluations(),
        Claim(
            "All methods reach the same accuracy.", same("test_accuracy", COMPARED, Margin(3.0)), ACCURACY, trained=True
        ),
        *loss_curves("test_loss"),
        *_ablation_of_c(),
        *ours(),
    ],
    "sines": _sines_claims(),
    "images": _image_claims(),
    "ou": _ou_claims(),
    "crossing": [
        *large_models(),
        Claim(
            "The seminorm is slightly faster than the adjoint.",
            faster("seminorm", "adjoint", 1.0),
            "less time for a step, at the largest width",
        ),
        Claim(
            "The adjoint’s and the seminorm’s time grows linearly with the number of parameters.",
            linear_growth(("adjoint", "seminorm"), 0.75, 1.25),
            "with a power between 0.75 and 1.25, from width 500",
        ),
        *numbers_of_evaluations(),
        Claim("All methods reach the same error.", same("test_mse", COMPARED, Margin(0.01, 0.1)), ERROR, trained=True),
        Claim("The errors are low.", low("test_mse", COMPARED, 0.01), "means below 0.01, of 4 before", trained=True),
        *loss_curves("test_mse"),
        *ours(),
    ],
}
