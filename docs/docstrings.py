"""Docstrings as Markdown: an extension for griffe, which reads them for the reference.

They are plain text, made to be read in an editor. Here, what would be mistaken for Markdown of another meaning is
fenced (examples, as ``>>>`` would be quotations) or written anew (tables drawn with ``====``); and ``::`` before an
indented block goes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAGRAPH = re.compile(r"\n[ ]*\n")


def table(lines: list[str]) -> str:
    """A table whose columns stand under ``====`` as one of Markdown; the first row is the head."""
    columns = [slice(found.start(), found.end()) for found in re.finditer("=+", lines[0])]
    columns[-1] = slice(columns[-1].start, None)
    rows = [[line[column].strip().replace("*", r"\*") for column in columns] for line in lines if "====" not in line]
    indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
    return "\n".join(f"{indent}| {' | '.join(row)} |" for row in [rows[0], ["---"] * len(columns), *rows[1:]])


def as_markdown(text: str) -> str:
    """Fence examples, write tables in Markdown; everything else stays as it is."""
    out: list[str] = []
    for paragraph in PARAGRAPH.split(text):
        first = paragraph.lstrip("\n").split("\n", 1)[0]
        indent = " " * (len(first) - len(first.lstrip()))
        if first.lstrip().startswith("===="):
            out.append(table(paragraph.strip("\n").splitlines()))
        elif not first.lstrip().startswith(">>> "):
            out.append(re.sub(r"::$", ":", paragraph))
        elif out and out[-1].startswith(f"{indent}```pycon"):  # one example of several paragraphs
            out[-1] = out[-1].removesuffix(f"\n{indent}```") + f"\n\n{paragraph}\n{indent}```"
        else:
            out.append(f"{indent}```pycon\n{paragraph}\n{indent}```")
    return "\n\n".join(out)


class Markdown(griffe.Extension):
    """Applies `as_markdown` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
