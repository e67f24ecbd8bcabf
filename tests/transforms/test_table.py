"""Every cell of the table in docs/torch-func.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quadjoint as qj
from quadjoint.errors import forget_warnings
from transforms import features
from transforms.features import FEATURES, NAMES
from trust import processes
from trust.helpers import LEAN, name_of, quiet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch-func.md"
REPLICAS = "`DistributedDataParallel`"
# An error that says what to do instead.
REMEDY = r"use gradient='direct'|need gradient='direct'|use_reentrant=False"


def table() -> dict[str, dict[str, str]]:
    """The cells by row and gradient."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head = [name.strip("`") for name in rows[0][1:]]
    return {row[0]: dict(zip(head, row[1:], strict=True)) for row in rows[2:]}


TABLE = table()


def test_the_table_has_a_row_for_everything_that_is_tested_and_a_column_for_every_gradient() -> None:
    assert set(TABLE) == {*FEATURES, REPLICAS}
    assert all(set(row) == set(NAMES) for row in TABLE.values())


def cells() -> list[Any]:
    return [pytest.param(row, name, id=f"{row.replace('`', '')}-{name}") for row in FEATURES for name in NAMES]


@pytest.mark.parametrize(("row", "gradient"), cells())
def test_cell(row: str, gradient: str) -> None:
    says, attempt = TABLE[row][gradient], FEATURES[row]
    if says == "refused":
        with quiet(), pytest.raises((ValueError, RuntimeError), match=REMEDY):
            attempt(gradient)
    elif says == "if direct":
        with quiet():
            attempt(gradient)
        with pytest.raises(ValueError, match=REMEDY):
            features.batched(LEAN)  # where it is another
    elif says == "no effect":
        forget_warnings()
        with pytest.warns(qj.QuadjointWarning, match="has no effect"):
            attempt(gradient)
    else:
        assert says == "yes"
        with quiet():
            attempt(gradient)


def test_replicas() -> None:
    """What stands in their row is tested with two processes, in tests/trust/test_many_processes.py."""
    assert set(TABLE[REPLICAS].values()) == {"yes"}
    assert {*TABLE[REPLICAS]} <= {name_of(gradient) for gradient in processes.REPLICATED}
