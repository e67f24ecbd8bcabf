"""A hook for mkdocs: formulas in blocks marked ``math`` become MathML, which browsers draw without any script.

The blocks hold a small part of TeX, the part that is used here (GitHub draws them too): letters, numbers, operators,
``_`` and ``^``, ``\\frac``, ``\\mathrm``, ``\\text``, spaces, Greek letters and the symbols in `SYMBOLS`; in an
``aligned`` environment, lines end with ``\\\\`` and are aligned at ``&``. Anything else is refused when the site is
built.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "theta": "θ",
    "kappa": "κ",
    "tau": "τ",
    "lambda": "λ",
    "mu": "μ",
    "xi": "ξ",
    "pi": "π",
    "sigma": "σ",
    "phi": "φ",
    "omega": "ω",
    "Delta": "Δ",
    "Theta": "Θ",
    "Sigma": "Σ",
}
SYMBOLS = {
    "int": "∫",
    "sum": "∑",
    "partial": "∂",
    "cdot": "·",
    "times": "×",
    "le": "≤",
    "ge": "≥",
    "approx": "≈",
    "dots": "…",
    "top": "⊤",
    "circ": "∘",
    "to": "→",
    "in": "∈",
    "infty": "∞",
    "langle": "⟨",
    "rangle": "⟩",
    "lceil": "⌈",
    "rceil": "⌉",
    "sqrt": "√",
    "pm": "±",
}
SPACES = {"quad": "1em", "qquad": "2em", ",": "0.17em", ";": "0.28em", "!": "-0.17em"}
# By where indices stand (beside, or below and above) and which there are; "^" comes before "_" in order.
TAGS = (
    {(): "", ("_",): "msub", ("^",): "msup", ("^", "_"): "msubsup"},
    {(): "", ("_",): "munder", ("^",): "mover", ("^", "_"): "munderover"},
)
TOKEN = re.compile(r"\\([A-Za-z]+|[,;!])|(\d+(?:\.\d+)?)|([A-Za-z])|(\s+)|([{}^_&])|(\S)")
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Reads one line of a formula."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens: list[tuple[str, str]] = []
        for found in TOKEN.finditer(source):
            kinds = ("command", "number", "letter", "blank", "mark", "other")
            self.tokens += [(kind, value) for kind, value in zip(kinds, found.groups(), strict=True) if value]
        self.position = 0

    def peek(self) -> tuple[str, str]:
        while self.position < len(self.tokens) and self.tokens[self.position][0] == "blank":
            self.position += 1
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.position += 1
        return token

    def row(self, until: str = "") -> Iterator[str]:
        """Atoms with their indices, up to the end of the line or of the group."""
        while self.peek()[0] != "end" and self.peek() != ("mark", until):
            base = self.atom()
            scripts = {}
            while self.peek() in (("mark", "_"), ("mark", "^")):
                mark = self.take()[1]
                scripts[mark] = self.atom()
            below = base == f"<mo>{SYMBOLS['sum']}</mo>"  # the limits of a sum stand below and above it
            tag = TAGS[below][tuple(sorted(scripts))]
            content = base + "".join(scripts[mark] for mark in "_^" if mark in scripts)
            yield f"<{tag}>{content}</{tag}>" if scripts else base
        if until:
            self.take()

    def atom(self) -> str:
        kind, value = self.take()
        if (kind, value) == ("mark", "{"):
            return f"<mrow>{''.join(self.row('}'))}</mrow>"
        if kind == "number":
            return f"<mn>{value}</mn>"
        if kind == "letter":
            return f"<mi>{value}</mi>"
        if kind == "other":
            fixed = ' stretchy="false"' if value in "()[]|" else ""
            return f"<mo{fixed}>{html.escape('−' if value == '-' else value)}</mo>"
        if kind == "command":
            return self.command(value)
        raise ValueError(f"cannot read the formula {self.source!r} at {value!r}")

    def command(self, name: str) -> str:
        if name == "frac":
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if name in ("mathrm", "text"):
            return f"<mtext>{html.escape(self.words())}</mtext>"
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>"
        if name in SYMBOLS:
            fixed = ' stretchy="false"' if name in ("langle", "rangle") else ""
            return f"<mo{fixed}>{SYMBOLS[name]}</mo>"
        raise ValueError(f"the formula {self.source!r} uses \\{name}, which docs/mathml.py does not know")

    def words(self) -> str:
        """The text in braces, with its spaces."""
        self.take()
        end = self.tokens.index(("mark", "}"), self.position)
        text = "".join(value for _, value in self.tokens[self.position : end])
        self.position = end + 1
        return text


def formula(source: str) -> str:
    """One block as MathML."""
    rows = []
    source = source.replace("\\begin{aligned}", "").replace("\\end{aligned}", "")
    for line in source.strip().split("\\\\"):
        cells = "".join(f"<mtd><mrow>{''.join(Reader(cell).row())}</mrow></mtd>" for cell in line.split("&"))
        rows.append(f"<mtr>{cells}</mtr>")
    table = f'<mtable displaystyle="true">{"".join(rows)}</mtable>'
    return f'<div class="formula"><math display="block">{table}</math></div>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return BLOCK.sub(lambda found: formula(found[1]), markdown)
