"""The section of ``docs/reliability.md`` on two processes: which gradient works with which wrapper of torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trust.helpers import name_of
from trust.processes import REPLICATED, Found, run
from trust.test_many_processes import assert_right

WRAPPERS = {
    "replicated": "`DistributedDataParallel`",
    "unused": "the same, parameters unused",
    "unused, static graph": "the same, `static_graph=True`",
    "accumulated": "the same, accumulated under `no_sync`",
    "sharded": "`fully_shard` around the model",
    "accumulated shards": "the same, accumulated without synchronisation",
    "dynamics sharded": "`fully_shard` of the dynamics themselves",
}


def processes() -> Iterable[str]:
    with tempfile.TemporaryDirectory() as folder:
        ranks = run(Path(folder))
    rows, right, refused = [], 0, 0
    for kind, name in WRAPPERS.items():
        words = []
        for gradient in REPLICATED:
            words.append(_outcome([f for rank in ranks for f in rank[kind][name_of(gradient)]], gradient))
        right, refused = right + words.count("yes"), refused + words.count("refused")
        rows.append(f"| {name} | {' | '.join(words)} |")
    total = len(WRAPPERS) * len(REPLICATED)
    yield (
        f"{len(WRAPPERS)} ways to train in two processes (gloo), each with {len(REPLICATED)} gradient methods: {right} "
        f"of {total} gave the gradients of one process, {refused} are refused in words. Dynamics whose own parameters "
        "are sharded need `direct`: all others evaluate f in the backward pass, when its parameters are not there."
    )
    yield ""
    yield f"| wrapper | {' | '.join(map(name_of, REPLICATED))} |"
    yield f"| --- |{' --- |' * len(REPLICATED)}"
    yield from rows


def _outcome(found: list[Found], gradient: Any) -> str:
    if all(isinstance(f, str) and "fully_shard" in f for f in found):
        return "refused"
    try:
        for f in found:
            assert_right(f, gradient)
    except AssertionError:
        return "**wrong**"
    return "yes"
