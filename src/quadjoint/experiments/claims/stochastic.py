"""What the paper says of the neural SDE."""

from __future__ import annotations

from quadjoint.experiments.claims.checks_ablation import STEP, Series, pays_little, rises
from quadjoint.experiments.claims.checks_accuracy import learnt_well
from quadjoint.experiments.claims.checks_cost import leaner
from quadjoint.experiments.claims.checks_curves import matching_curves, sooner
from quadjoint.experiments.claims.checks_time import faster, keeps_time
from quadjoint.experiments.claims.checks_training import Margin, same
from quadjoint.experiments.claims.common import CURVES, MOST_SEEDS, QUICKER, SOONER, quicker
from quadjoint.experiments.verdicts import Check, Claim, every, with_seeds

_DIRECT, _ADJOINT = "torchsde-direct", "torchsde-adjoint"
_KL = ("final", "test_kl")
_DEVIATION = 0.0074  # the paper's, of the KL at width 20 with 10 cosines


def _of_cosines(path: tuple[str, ...], method: str) -> Series:
    return Series("cosines", "cosines", path, method)


def _less_kl(more: int, fewer: int) -> Check:
    return with_seeds("cosines", MOST_SEEDS, lambda method: rises(_of_cosines(_KL, method), (more, fewer)))


CLAIMS = [
    Claim("GQ is faster than the SDE adjoint.", faster("gq-paper", _ADJOINT), QUICKER),
    Claim(
        "Direct backpropagation through the SDE is the fastest.",
        every(*(faster(_DIRECT, other, most=50) for other in ("gq-paper", _ADJOINT))),
        "at least a twentieth less time for a step, up to width 50, as at 100 the paper’s run out of memory",
    ),
    Claim("GQ needs less memory than direct backpropagation through the SDE.", leaner("gq-paper", _DIRECT)),
    Claim(
        "Times fluctuate rather than grow with the model.",
        keeps_time(("gq-paper", _DIRECT, _ADJOINT), 1.5),
        "from the smallest to the largest width, less than half as much again",
    ),
    Claim(
        "The KL divergences are comparable.",
        same("test_kl", ("gq-paper", _DIRECT, _ADJOINT), Margin(absolute=_DEVIATION, deviation=True)),
        f"means less than a standard deviation from that of gq-paper: {_DEVIATION}, the paper’s at width 20, or ours",
        trained=True,
    ),
    Claim(
        "The curves of GQ and of the SDE adjoint match.",
        matching_curves("test_kl", ("gq-paper", _ADJOINT), 0.1),
        CURVES,
        trained=True,
    ),
    Claim(
        "GQ reduces the loss faster in time than the SDE adjoint.",
        sooner("gq-paper", _ADJOINT, "test_kl", least=0),
        SOONER,
        trained=True,
    ),
    Claim(
        "More cosines, smaller KL.",
        every(_less_kl(1, 0), _less_kl(5, 1), _less_kl(50, 5)),
        "by at least a twentieth each from 0 to 1, from 1 to 5 and from 5 to 50; all methods solve the same ODE",
        trained=True,
    ),
    Claim(
        "More cosines, more time.",
        rises(_of_cosines(STEP, "gq-paper"), (1, 50)),
        "by at least a twentieth from 1 to 50; with none, the diffusion is not evaluated here",
    ),
    Claim(
        "Beyond 5 cosines the KL gains little for the time.",
        with_seeds("cosines", MOST_SEEDS, lambda method: pays_little(_of_cosines(_KL, method), (5, 50))),
        "from 5 to 50 the KL falls by a smaller factor than the time rises",
        trained=True,
    ),
    Claim(
        "The learnt distribution matches the true one.",
        learnt_well("gq-paper", 0.5, 0.25),
        "at three times, from one start: means less than half a deviation apart, deviations less than a quarter",
        trained=True,
    ),
    *quicker(),
    Claim("gq is faster than direct backpropagation through the SDE.", faster("gq", _DIRECT), QUICKER, ours=True),
]
