"""Docstrings as Markdown: an extension for griffe, which reads them for the reference.

They are plain text, made to be read in an editor. Here, what would be mistaken for Markdown of another meaning is
fenced: examples (``>>>`` would be quotations) and tables drawn with ``====``; and ``::`` before an indented block goes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAGRAPH = re.compile(r"\n[ ]*\n")


def as_markdown(text: str) -> str:
    """Fence examples and tables; everything else stays as it is."""
    out: list[str] = []
    for paragraph in PARAGRAPH.split(text):
        first = paragraph.lstrip("\n").split("\n", 1)[0]
        indent = " " * (len(first) - len(first.lstrip()))
        if first.lstrip().startswith(">>> "):
            kind = "pycon"
        elif first.lstrip().startswith("===="):
            kind = "text"
        else:
            out.append(re.sub(r"::$", ":", paragraph))
            continue
        if out and out[-1].startswith(f"{indent}```{kind}"):  # one example of several paragraphs
            out[-1] = out[-1].removesuffix(f"\n{indent}```") + f"\n\n{paragraph}\n{indent}```"
        else:
            out.append(f"{indent}```{kind}\n{paragraph}\n{indent}```")
    return "\n\n".join(out)


class Markdown(griffe.Extension):
    """Applies `as_markdown` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
