"""Lines of results with anything in them, in random places: a page comes of them, and what is left out is said."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.pages import Reader
from quadjoint.experiments import store
from quadjoint.experiments.pictures import pictures
from quadjoint.experiments.report import render

ODD = (
    *(None, True, 0, -1, 0.0, -1.5, float("nan"), float("inf"), -float("inf"), 10**30, 10**290, 1e308, 1e-320),
    *("", "nan", "\ud800", "$x^", "[/b]", "</td>", "x\x00y", "_hidden"),
    *([], [[]], {}, {"a": 1}, [None], [float("nan")], [0.0, 0.0], ["x"]),
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a record: what holds it and its name or number there. Of long lists only the beginning."""
    names = list(node) if isinstance(node, dict) else range(min(len(node), 3)) if isinstance(node, list) else ()
    for name in names:
        yield node, name
        yield from places(node[name])


def changed(record: dict, chance: random.Random) -> dict:
    """The record with one to four changes: something odd in a place, behind it, or nothing there any more."""
    record = copy.deepcopy(record)
    for _ in range(chance.choice((1, 1, 2, 4))):
        holder, name = chance.choice(list(places(record)))
        act = chance.random()
        if act < 0.15:
            del holder[name]
        elif act < 0.3 and isinstance(holder, list):
            holder.append(copy.deepcopy(chance.choice(ODD)))
        else:
            holder[name] = copy.deepcopy(chance.choice(ODD))
    return record


def fuzzed(records: list[dict], seed: int, path) -> store.Results:
    """Seven lines of one experiment, four of them changed, as they are read from a file."""
    chance = random.Random(seed)
    experiment = chance.choice(sorted({r["experiment"] for r in records}))
    there = [r for r in records if r["experiment"] == experiment]
    lines = chance.sample(there, k=min(7, len(there)))
    odd = [changed(line, chance) for line in lines[:4]]
    path.write_text("\n".join(json.dumps(line) for line in odd + lines[4:]))
    results = store.read(path)
    assert {line["key"] for line in lines[4:]} <= results.keys()
    return results


@pytest.mark.parametrize("block", range(6))
def test_a_page_comes_of_any_change_of_the_lines(records, tmp_path, block):
    for seed in range(50 * block, 50 * block + 50):
        results = fuzzed(records, seed, tmp_path / f"{seed}.jsonl")
        problems = list(results.problems)
        page = render(results, problems, {})
        assert Reader(page.encode().decode()).stack == []  # every tag is closed
        assert all(problem.isprintable() for problem in problems), problems


def draw(records: list[dict], seed: int, path) -> None:
    """Every figure that is drawn is a picture; one that is not is named."""
    said: list[str] = []
    for picture in pictures(fuzzed(records, seed, path), said.append).values():
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg")
    assert all(words.startswith("figure ") and words.isprintable() for words in said)


@pytest.mark.parametrize("seed", range(8))
def test_figures_come_of_any_change_of_the_lines(records, tmp_path, seed):
    draw(records, seed, tmp_path / "fuzzed.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_figures_come_of_five_hundred_changes(records, tmp_path, block):
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        draw(records, seed, tmp_path / f"{seed}.jsonl")
