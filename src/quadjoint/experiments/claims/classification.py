"""What the paper says of image classification."""

from __future__ import annotations

from quadjoint.experiments.claims.checks_cost import leaner
from quadjoint.experiments.claims.checks_curves import matching_curves, sooner
from quadjoint.experiments.claims.checks_time import faster, growth, shrinks
from quadjoint.experiments.claims.checks_training import Margin, same
from quadjoint.experiments.claims.common import ACCURACY, ADJOINTS, CURVES, QUICKER, SOONER
from quadjoint.experiments.verdicts import Claim

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}  # by the name of the data set
_LARGE = 200  # channels from which a model is called large
_GROWS = "the ratio of the two times grows by at least a twentieth, from 50 to 200 channels or more"
_GROWS_SLIGHTLY = (
    "the ratio of the two times grows, from 50 to 200 channels or more; the paper says slightly, up to 500"
)
_LEANER = "peak of one gradient, with every number of channels; the paper does not train by direct because of it"
_SMALLER = (
    "GQ is the faster one with 16, and the ratio of the two times falls by at least a twentieth, with 200 channels or "
    "more"
)


def _learnt(dataset: str) -> list[Claim]:
    title, about = TITLES[dataset], {"dataset": dataset}
    accuracy = same("test_accuracy", ADJOINTS, Margin(absolute=3.0))
    curves = matching_curves("test_loss", ADJOINTS, 0.1)
    return [
        Claim(f"{title}: the accuracies are comparable.", accuracy, ACCURACY, trained=True, about=about),
        Claim(f"{title}: the loss curves match.", curves, CURVES, trained=True, about=about),
        Claim(
            f"{title}: direct backpropagation needs more memory than the adjoint.",
            leaner("adjoint", "direct"),
            _LEANER,
            about=about | {"batch": 16},
        ),
    ]


def _times(dataset: str, other: str) -> list[Claim]:
    title, about = TITLES[dataset], {"dataset": dataset}
    return [
        Claim(
            f"{title}: GQ’s time grows less with the channels than the {other}’s.",
            growth("gq-paper", other, least=_LARGE),
            _GROWS,
            about=about | {"batch": 16},
        ),
        Claim(
            f"{title}: with a batch of 32, GQ’s time still grows less than the {other}’s.",
            growth("gq-paper", other, least=_LARGE, factor=1.0),
            _GROWS_SLIGHTLY,
            about=about | {"batch": 32},
        ),
        Claim(
            f"{title}: GQ’s advantage over the {other} is smaller with a batch of 32 than of 16.",
            shrinks("gq-paper", other, (16, 32), least=_LARGE),
            _SMALLER,
            about=about,
        ),
        Claim(
            f"{title}: GQ reduces the loss faster in time than the {other}.",
            sooner("gq-paper", other, "test_loss", least=_LARGE),
            SOONER,
            trained=True,
            about=about,
        ),
    ]


CLAIMS = [
    *(
        claim
        for dataset in TITLES
        for claim in (*_learnt(dataset), *(row for other in ("adjoint", "seminorm") for row in _times(dataset, other)))
    ),
    *(
        Claim(
            f"MNIST, batch of 256: GQ is slower than the {other}.",
            faster(other, "gq-paper"),
            f"the {other} takes at least a twentieth less time for a step, with the most channels that were timed",
            about={"dataset": "mnist", "batch": 256},
        )
        for other in ("adjoint", "seminorm")
    ),
    Claim(
        "MNIST, batch of 16: gq is faster than gq-paper.",
        faster("gq", "gq-paper"),
        QUICKER,
        ours=True,
        about={"dataset": "mnist", "batch": 16},
    ),
]
