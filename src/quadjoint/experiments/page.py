"""Parts of an HTML page. Every text is escaped, and nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from quadjoint.experiments.verdicts import Claim, Finding, Verdict

STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fff; --line: #d0d0d0; --soft: #f4f4f4; --quiet: #5a5a5a;
  --yes: #0a6b3d; --no: #a4260b; --open: #7a5a00; --link: #00574d; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --back: #16181b; --line: #41454b; --soft: #22262b;
  --quiet: #a8adb3; --yes: #6fd3a0; --no: #ff9478; --open: #e5c15a; --link: #6fc7b9; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 60rem; padding: 1rem; }
a { color: var(--link); } h1 { font-size: 1.7rem; line-height: 1.2; margin-bottom: .3rem; }
h2 { margin-top: 3rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); } h3 { margin: 1.6rem 0 .4rem; }
.quiet { color: var(--quiet); font-size: .9rem; } .glance { font-size: 1.1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; vertical-align: top; }
th { border-bottom-width: 2px; font-weight: 600; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
caption { text-align: left; font-size: .95rem; padding: .25rem 0; } .claims { width: 100%; }
.claims th, .claims td { text-align: left; } .claims th { white-space: nowrap; } .claims td:first-child { width: 40%; }
.claims td:nth-child(2) { white-space: nowrap; } .claims small { display: block; color: var(--quiet); }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figcaption { font-size: .9rem; color: var(--quiet); max-width: 46rem; } li { overflow-wrap: anywhere; }
.yes { color: var(--yes); } .no { color: var(--no); font-weight: 600; }
.open { color: var(--open); } .none { color: var(--quiet); } details { margin: .6rem 0; } summary { cursor: pointer; }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; font-size: .8rem; }
@media (max-width: 40rem) { body { font-size: 15px; padding: .7rem; } table { font-size: .82rem; }
  figure img { max-width: none; width: 38rem; }
  .claims, .claims tbody, .claims tr, .claims td { display: block; } .claims tr:first-child { display: none; }
  .claims td { border: 0; padding: .1rem 0; } .claims td:first-child { width: auto; }
  .claims tr { border-bottom: 1px solid var(--line); padding: .4rem 0; } }
@media print { :root { --text: #000; --back: #fff; --line: #999; --soft: #eee; --yes: #000; --no: #000; --open: #000; }
  body { max-width: none; font-size: 11pt; } h2 { break-before: page; } figure, table { break-inside: avoid; }
  .scroll { overflow: visible; } }
"""
LOOKS = {Verdict.AGREES: "yes", Verdict.DISAGREES: "no", Verdict.UNDECIDED: "open", Verdict.MISSING: "none"}
# What is said of a statement of ours.
OWN = {Verdict.AGREES: "holds", Verdict.DISAGREES: "does not hold"}


def document(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>" + "\n".join(parts) + "</body></html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    look = f' class="{kind}"' if kind else ""
    return f"<p{look}>{escape(text)}</p>"


def listed(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of escaped cells that scrolls sideways on a narrow screen."""
    top = "".join(f"<th>{escape(str(cell))}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<tr>{top}</tr>{body}</table></div>'


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def figure(svg: bytes, caption: str) -> str:
    picture = base64.b64encode(svg).decode()
    words = escape(caption)
    image = f'<div class="scroll"><img alt="{words}" src="data:image/svg+xml;base64,{picture}"></div>'
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


def claims_table(title: str, pairs: Sequence[tuple[Claim, Finding]]) -> str:
    """Statement and what it is taken to mean, verdict, numbers."""
    rows = ""
    for claim, finding in pairs:
        verdict = OWN.get(finding.verdict, finding.verdict.value) if claim.ours else finding.verdict.value
        meaning = f"<small>{escape(claim.meaning)}</small>" if claim.meaning else ""
        rows += (
            f'<tr><td>{escape(claim.statement)}{meaning}</td><td class="{LOOKS[finding.verdict]}">{verdict}</td>'
            f"<td>{escape(finding.words)}</td></tr>"
        )
    head = f"<tr><th>{escape(title)}</th><th>these runs</th><th>measured</th></tr>"
    return f'<table class="claims">{head}{rows}</table>' if rows else ""
