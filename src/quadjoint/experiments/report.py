"""One self-contained HTML page from the results: statements of the paper checked, figures, tables, configuration.

Nothing is loaded from elsewhere, and every text from the results is escaped.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from quadjoint.experiments import store
from quadjoint.experiments.claims import CLAIMS, TITLES
from quadjoint.experiments.display import duration
from quadjoint.experiments.faults import ODD_RECORD, Refusal
from quadjoint.experiments.figures import FIGURES
from quadjoint.experiments.files import write_whole
from quadjoint.experiments.plots import Records, by, mean_and_deviation, ordered, pictures, value
from quadjoint.experiments.published import UNKNOWN, Claim, Finding
from quadjoint.experiments.tables import published_tables

STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fff; --line: #ccc; --soft: #f3f3f3; --yes: #0a6b3d;
  --no: #a4260b; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --back: #16181b; --line: #444; --soft: #22262b;
  --yes: #6fd3a0; --no: #ff9478; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 1rem; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: right; }
th { background: var(--soft); } th:first-child, td:first-child, td.words { text-align: left; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
.claims th { text-align: left; } li { overflow-wrap: anywhere; }
figcaption { font-size: .9rem; } .yes { color: var(--yes); } .no { color: var(--no); }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; font-size: .8rem; }
@media (max-width: 40rem) { body { font-size: 15px; padding: .6rem; } table { font-size: .8rem; } }
@media print { :root { --text: #000; --back: #fff; --line: #999; --soft: #eee; --yes: #000; --no: #000; }
  body { max-width: none; font-size: 11pt; } h2 { break-before: page; } figure, table { break-inside: avoid; }
  .scroll { overflow: visible; } }
"""


def write_report(out: Path, say: Callable[[str], object], drawn: Mapping[str, bytes] | None = None) -> Path:
    """Write ``out/report.html``; lines of the results that cannot be used are said and listed.

    ``drawn`` are pictures of these results that were drawn already, by name.
    """
    results = store.read(out)
    if not results.records and not results.problems:
        raise Refusal(f"there are no results in {out}; run quadjoint reproduce first")
    problems = list(results.problems)
    page = render(results, problems, drawn)
    for problem in problems:
        say(problem)
    path = out / "report.html"
    write_whole(path, page.encode())
    return path


def render(results: store.Results, problems: list[str], drawn: Mapping[str, bytes] | None = None) -> str:
    """The page; figures that cannot be drawn are added to the problems."""
    drawn = pictures(results, problems.append) if drawn is None else drawn
    names = [name for name in TITLES if any(r["experiment"] == name for r in results.records)]
    parts = [_summary(results), _agreement(results)]
    for name in names:
        parts += [f'<h2 id="{escape(name)}">{escape(TITLES[name])}</h2>', _claims(name, results.of(name))]
        parts += [_figure(figure, drawn[figure]) for figure in FIGURES[name] if figure in drawn]
        parts += _guarded(_tables, name, results, problems)
        parts.append(_settings(results.of(name)))
        parts.append(_failures([r for r in results.records if r["experiment"] == name and r["status"] != "done"]))
    if problems:
        parts.append("<h2>Left out</h2>" + _list(problems))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>quadjoint: the experiments</title><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of escaped cells that scrolls sideways on a narrow screen."""
    top = "".join(f"<th>{escape(str(cell))}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<tr>{top}</tr>{body}</table></div>'


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _summary(results: store.Results) -> str:
    records = results.records
    counts = Counter(r["experiment"] for r in records)
    seconds = sum(r.get("seconds") or 0.0 for r in records if isinstance(r.get("seconds"), int | float))
    machines = [_machine(r) for r in records]
    facts = {name: sorted({machine[name] for machine in machines}) for name in (machines[0] if machines else {})}
    words = f"{len(records)} runs, {duration(seconds)} of computation in all."
    listed = _list(f"{name}: {', '.join(found)}" for name, found in facts.items())
    rows = [(TITLES.get(name, name), count) for name, count in counts.items()]
    return (
        "<h1>Faster training of neural ODEs: the experiments repeated</h1>"
        "<p>Norcliffe and Deisenroth, “Faster Training of Neural ODEs Using Gauss-Legendre Quadrature”, TMLR 2023. "
        "The method called gq-paper is theirs; gq, discrete and auto are this library's.</p>"
        f"<p>{escape(words)} Means and standard deviations are over seeds. A training step is one batch: "
        "forward, backward and optimiser. Gradient error: against the exact gradient; mismatch: against the gradient "
        "of the loss as it was computed; both of one gradient with the weights of the dynamics at three times (sines: "
        "twice) their initial size, the same for all methods.</p>" + table(("experiment", "runs"), rows) + listed
    )


def _machine(record: dict[str, Any]) -> dict[str, str]:
    found = record.get("environment")
    found = found if isinstance(found, dict) else {}
    versions = found.get("versions") if isinstance(found.get("versions"), dict) else {}
    return {
        "processor": str(found.get("processor")),
        "cores": str(found.get("cores")),
        "threads per run": str(found.get("threads")),
        "Python": str(found.get("python")),
        "torch": str((versions or {}).get("torch")),
        "commit": _short(str(found.get("commit"))),
    }


def _short(commit: str) -> str:
    """The first twelve digits; a ``+`` says that files differed from the commit."""
    return commit[:12] + ("+" if commit.endswith("+") and len(commit) > 12 else "")


def findings(name: str, records: Records) -> list[tuple[Claim, Finding]]:
    """The statements on an experiment, each checked on the records."""
    checked = []
    for claim in CLAIMS.get(name, []):
        try:
            checked.append((claim, claim.check(records)))
        except ODD_RECORD:
            checked.append((claim, UNKNOWN))
    return checked


VERDICTS = {True: "agrees", False: "disagrees", None: "not covered"}
OWN_VERDICTS = {True: "holds", False: "does not hold", None: "not covered"}
PLURALS = {
    **{"agrees": "agree", "disagrees": "disagree", "not covered": "are not covered"},
    **{"holds": "hold", "does not hold": "do not hold"},
}


def _agreement(results: store.Results) -> str:
    """How many statements agree, do not, and are not covered; and which."""
    if not results.records:
        return "<h2>Agreement with the paper</h2><p>Nothing to compare yet.</p>"
    every = [(name, *pair) for name in TITLES for pair in findings(name, results.of(name))]
    parts = ["<h2>Agreement with the paper</h2>"]
    kinds = ((False, "Of the paper's {} statements, {}.", VERDICTS), (True, "Of our own {}, {}.", OWN_VERDICTS))
    for ours, sentence, verdicts in kinds:
        group = [(name, claim, finding) for name, claim, finding in every if claim.ours == ours]
        counts = Counter(verdicts[finding.agrees] for _, _, finding in group)
        numbers = [f"{counts[verdict]} {PLURALS[verdict]}" for verdict in verdicts.values()]
        words = ", ".join(numbers)
        parts.append(f"<p>{escape(sentence.format(len(group), words))}</p>")
        for agrees in (False, None):
            listed = [
                f"{TITLES[name]}: “{claim.statement}” {finding.words}"
                for name, claim, finding in group
                if finding.agrees is agrees
            ]
            if listed:
                parts.append(f"<p>{verdicts[agrees].capitalize()}:</p>{_list(listed)}")
    return "".join(parts)


def _claims(name: str, records: Records) -> str:
    """Two tables: the paper's statements, then ours."""
    made = ""
    for ours, title, verdicts in ((False, "the paper says", VERDICTS), (True, "we say", OWN_VERDICTS)):
        rows = ""
        for claim, finding in findings(name, records):
            if claim.ours == ours:
                kind = {True: "yes", False: "no", None: ""}[finding.agrees]
                rows += (
                    f'<tr><td>{escape(claim.statement)}</td><td class="{kind}">{verdicts[finding.agrees]}</td>'
                    f'<td class="words">{escape(finding.words)}</td></tr>'
                )
        head = f"<tr><th>{title}</th><th>ours</th><th>measured</th></tr>"
        made += f'<div class="scroll"><table class="claims">{head}{rows}</table></div>' if rows else ""
    return made


def _figure(name: str, svg: bytes) -> str:
    picture = base64.b64encode(svg).decode()
    caption = escape(name.replace("-", " "))
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _guarded(make: Callable[..., list[str]], name: str, results: store.Results, problems: list[str]) -> list[str]:
    try:
        return make(name, results.of(name))
    except ODD_RECORD as error:
        problems.append(f"tables of {name} left out: a record is not as expected ({error!r})")
        return []


def _tables(name: str, records: Records) -> list[str]:
    """Ours beside the paper's where it gives numbers, then every cell."""
    made = [table(head, rows, caption) for caption, head, rows in published_tables(name, records)]
    trained = [r for r in records if "seconds_per_gradient" in r["result"]]
    if trained:
        fields = [f for f in ("dataset", "batch", "study", "times", "spacing", "cosines", "c") if _varies(trained, f)]
        metrics = [
            m for m in ("test_accuracy", "test_mse", "test_kl") if any(m in r["result"]["final"] for r in trained)
        ]
        head = (
            *fields,
            "width",
            "method",
            "seeds",
            "s per step",
            "backward evals",
            "peak MiB",
            "gradient error",
            "mismatch",
        )
        rows = [
            _row(key, group, metrics)
            for key, group in sorted(by(trained, *fields, "width", "method").items(), key=_order)
        ]
        made.append(f"<details><summary>All cells</summary>{table((*head, *metrics), rows)}</details>")
    return made


def _varies(records: Records, field: str) -> bool:
    return len({str(r["config"].get(field)) for r in records if field in r["config"]}) > 1


def _order(item: tuple[tuple[Any, ...], Records]) -> tuple[Any, ...]:
    *cell, width, method = item[0]
    return (*map(str, cell), width, ordered([*TITLES, method]).index(method))


def _row(key: tuple[Any, ...], group: Records, metrics: list[str]) -> tuple[str, ...]:
    def spread(*path: str, scale: float = 1.0, form: str = ".3g") -> str:
        mean, deviation = mean_and_deviation([value(r, *path) for r in group])
        if mean != mean:
            return ""
        return f"{mean * scale:{form}} ± {deviation * scale:.1g}" if len(group) > 1 else f"{mean * scale:{form}}"

    numbers = [
        spread("seconds_per_gradient"),
        spread("per_gradient", "backward_evaluations", form=".4g"),
        spread("peak_memory", scale=2**-20),
        spread("gradient_error", form=".1e"),
        spread("gradient_mismatch", form=".1e"),
    ]
    return (*map(str, key), str(len(group)), *numbers, *(spread("final", metric) for metric in metrics))


def _settings(records: Records) -> str:
    """Every setting of the experiment's runs with its values."""
    values: dict[str, set[str]] = {}
    for record in records:
        for name, setting in record["config"].items():
            values.setdefault(name, set()).add(f"{setting:g}" if isinstance(setting, float) else str(setting))
    lines = [f"{name}: {', '.join(sorted(found, key=lambda v: (len(v), v)))}" for name, found in values.items()]
    text = "\n".join(lines)
    return f"<details><summary>Configuration</summary><pre>{escape(text)}</pre></details>" if lines else ""


def _failures(records: Records) -> str:
    if not records:
        return ""
    rows = [(r["key"], r["result"].get("reason", "")) for r in records]
    return table(("run", "why it gave up"), rows, "Runs that gave up")
