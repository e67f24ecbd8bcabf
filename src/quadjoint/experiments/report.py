"""One self-contained HTML page from the results: what they say at a glance, then experiment by experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from quadjoint.experiments import store
from quadjoint.experiments.claims import TITLES
from quadjoint.experiments.display import duration
from quadjoint.experiments.faults import ODD_RECORD, Refusal
from quadjoint.experiments.figures import FIGURES
from quadjoint.experiments.files import write_whole
from quadjoint.experiments.overview import findings, glance
from quadjoint.experiments.page import claims_table, document, figure, folded, listed, paragraph, table
from quadjoint.experiments.pictures import OVERVIEW, Picture, pictures
from quadjoint.experiments.records import CLOCK, Records, of_experiment, set_apart
from quadjoint.experiments.tables import all_cells, authors_table, authors_words, published_tables
from quadjoint.experiments.timing import short_commit
from quadjoint.experiments.verdicts import RULE, Claim, Verdict, short

BASELINES = (
    "The baselines here differ from the authors’. A backward solve begins with the mean step of the forward one and "
    "keeps its step size at an observation, where theirs searches a new one each time. The norm of the adjoint’s error "
    "is the largest over the tensors of parameters, as in torchdiffeq today, where theirs is one mean over all of "
    "them: the adjoint takes as many steps or more. And gq-paper evaluates several nodes as a stack, theirs one after "
    "another. So GQ’s speed-up over the adjoint need not be that of the paper; the table has both."
)
SETTINGS = (
    "Settings are the paper’s unless this page says otherwise. Its times are those of whole trainings on a GPU, these "
    "of a training step on one thread of a CPU. Its largest widths are 3000 (spheres, crossing), 2000 (sines), 100 "
    "(OU) and 500 channels (images); statements and captions name those of these runs, and their seeds. aca and mali "
    "are this library’s own, and aca solves forwards as direct does. Of the toy gradients, the first figure has the "
    "tolerance and the C that the paper names, the second those that are the default of the authors’ code. Training "
    "paths of the Ornstein-Uhlenbeck process are drawn from their exact law, where the authors solve the SDE. Channels"
    " of the image models are those of the authors’ plots, as the paper’s text has no numbers."
)


def write_report(out: Path, say: Callable[[str], object], drawn: Mapping[str, Picture] | None = None) -> Path:
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


def render(results: store.Results, problems: list[str], drawn: Mapping[str, Picture] | None = None) -> str:
    """The page; figures that cannot be drawn are added to the problems."""
    drawn = pictures(results, problems.append) if drawn is None else drawn
    parts = [*_top(results, drawn), *_authors(results, problems)]
    for name in TITLES:
        if apart := set_apart(results, name):
            problems.append(f"{len(apart)} runs of {name} left out: most others of their kind have other settings")
        if of_experiment(results, name) or any(r["experiment"] == name for r in results.records):
            parts += _experiment(name, results, drawn, problems)
    parts += [_provenance(results)]
    if problems:
        parts.append("<h2>Left out</h2>" + listed(problems))
    return document("quadjoint: the paper’s experiments repeated", parts)


def _top(results: store.Results, drawn: Mapping[str, Picture]) -> list[str]:
    """Title, verdict, figure, contents."""
    parts = [
        "<h1>Faster training of neural ODEs: the experiments repeated</h1>",
        paragraph(_made(results), "quiet"),
    ]
    if not results.records:
        return [*parts, paragraph("Nothing to compare yet.")]
    parts.append(paragraph(" ".join(glance(results)), "glance"))
    if OVERVIEW in drawn:
        parts.append(figure(drawn[OVERVIEW].svg, drawn[OVERVIEW].caption))
    parts += [paragraph(RULE), _contents(results), paragraph(_methods(), "quiet")]
    return parts


def _methods() -> str:
    return (
        "The paper is Norcliffe and Deisenroth, “Faster Training of Neural ODEs Using Gauss-Legendre Quadrature”, "
        "TMLR 2023. gq-paper is its method as implemented here, adjoint and seminorm are the methods that it is "
        "compared with; gq, discrete and auto are this library’s. A training step is one batch: forward, backward "
        "and optimiser. Times on a CPU are those for which the run’s thread had a processor. ± is the standard "
        "deviation over seeds."
    )


def _contents(results: store.Results) -> str:
    """A line for every experiment: how its statements fare, with a link."""
    verdicts = (Verdict.AGREES, Verdict.DISAGREES, Verdict.UNDECIDED, Verdict.MISSING)
    rows = ""
    for name, title in TITLES.items():
        records = of_experiment(results, name)
        counts = Counter(f.verdict for claim, f in findings(name, results) if not claim.ours)
        link = f'<a href="#{escape(name)}">{escape(title)}</a>' if records else escape(title)
        cells = "".join(f"<td>{counts[verdict] or '–'}</td>" for verdict in verdicts)
        rows += f"<tr><td>{link}</td>{cells}<td>{len(results.of(name))}</td></tr>"
    if turns := len(results.of(CLOCK)):
        rows += (
            f"<tr><td>The clock, whose times are in all of these</td>{'<td></td>' * len(verdicts)}<td>{turns}</td></tr>"
        )
    strange = Counter(r["experiment"] for r in results.records if r["experiment"] not in (*TITLES, CLOCK))
    for name, count in strange.items():
        rows += f"<tr><td>{escape(name)}</td>{'<td>–</td>' * len(verdicts)}<td>{count}</td></tr>"
    head = "".join(f"<th>{cell}</th>" for cell in ("statements of the paper on", *(v.value for v in verdicts), "runs"))
    return f'<h2 id="contents">Contents</h2><div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _authors(results: store.Results, problems: list[str]) -> list[str]:
    """How our baselines differ from the authors', with their code's times where it has run."""
    settings = " ".join([SETTINGS, *_image_settings(results.of("images"))])
    parts = ['<h2 id="baselines">Our baselines and the authors’</h2>', paragraph(BASELINES), paragraph(settings)]
    try:
        made, words = authors_table(results), authors_words(results)
    except ODD_RECORD as error:
        problems.append(f"times of the authors' code left out: a record is not as expected ({error!r})")
        made, words = None, ""
    if made is None:
        return [
            *parts,
            paragraph("Their own code was not run here (quadjoint reproduce all --authors FOLDER does).", "quiet"),
        ]
    caption, head, rows = made
    return [*parts, paragraph(words), table(head, rows, caption)]


def _image_settings(records: Records) -> list[str]:
    """How image models were trained, if not as in the paper."""
    configs = [r["config"] for r in records if r["config"].get("round_images")]
    kinds = {(c["epochs"], c["round_images"], c["lr"], c["test_images"]) for c in configs}
    return [
        f"Image models were trained on {epochs * images} images, {epochs} rounds of {images}, which their epochs are, "
        f"at a learning rate of {short(lr)}, and tested on {tested}: the paper’s 15 epochs are of all images, at 1e-5 "
        "and 6e-5, and its tests too."
        for epochs, images, lr, tested in sorted(kinds)
    ]


def _experiment(name: str, results: store.Results, drawn: Mapping[str, Picture], problems: list[str]) -> list[str]:
    records = of_experiment(results, name)
    every = findings(name, results)
    checked = [pair for pair in every if pair[1].verdict is not Verdict.MISSING]
    parts = [
        f'<h2 id="{escape(name)}">{escape(TITLES[name])}</h2>',
        claims_table("the paper says", [pair for pair in checked if not pair[0].ours]),
        _unmeasured([claim for claim, finding in every if finding.verdict is Verdict.MISSING]),
        *(figure(drawn[key].svg, drawn[key].caption) for key in FIGURES[name] if key in drawn),
        *_tables(name, records, problems),
        claims_table("we say", [pair for pair in checked if pair[0].ours]),
    ]
    if rows := [*_failed(name, results), *_given_up(name, results)]:
        parts.append(folded(f"Gave up: {len(rows)}", table(("run", "why it gave up"), rows)))
    return [part for part in [*parts, _settings(results.of(name))] if part]


def _failed(name: str, results: store.Results) -> list[tuple[str, str]]:
    """Runs that gave up, and why."""
    failed = [r for r in results.records if r["experiment"] == name and r["status"] != "done"]
    return [(r["key"], r["result"].get("reason", "")) for r in failed]


def _given_up(name: str, results: store.Results) -> list[tuple[str, str]]:
    """Contestants of the clock on this task that gave up, and why."""
    rows = []
    for record in results.of(CLOCK):
        given_up = record["result"].get("given_up")
        if record["config"].get("task") == name and isinstance(given_up, dict):
            rows += [(f"{record['key']}: {method}", str(why)) for method, why in given_up.items()]
    return rows


def _unmeasured(claims: list[Claim]) -> str:
    """Statements on which there are no runs, folded."""
    if not claims:
        return ""
    count = "One statement" if len(claims) == 1 else f"{len(claims)} statements"
    return folded(f"{count} not measured by these runs", listed(claim.statement for claim in claims))


def _tables(name: str, records: Records, problems: list[str]) -> list[str]:
    """Ours beside the paper's where it gives numbers, then every cell, folded."""
    try:
        made = [table(head, rows, caption) for caption, head, rows in published_tables(name, records)]
        cells = all_cells(records)
        return [*made, folded("Every cell in numbers", table(*cells))] if cells else made
    except ODD_RECORD as error:
        problems.append(f"tables of {name} left out: a record is not as expected ({error!r})")
        return []


def _settings(records: Records) -> str:
    """Every setting of the experiment's runs with its values."""
    values: dict[str, set[str]] = {}
    for record in records:
        for name, setting in record["config"].items():
            values.setdefault(name, set()).add(short(setting) if isinstance(setting, float) else str(setting))
    lines = [f"{name}: {', '.join(sorted(found, key=lambda v: (len(v), v)))}" for name, found in values.items()]
    return folded("Configuration", f"<pre>{escape(chr(10).join(lines))}</pre>") if lines else ""


# Where the numbers come from ------------------------------------------------------------------------------


def _made(results: store.Results) -> str:
    """Runs, hours, commit and torch in one line."""
    facts = _facts(results)
    short = [f"{name} {', '.join(facts[name])}" for name in ("commit", "torch") if facts.get(name)]
    return (
        f"{len(results.records)} runs, {_hours(results)} of computation; {', '.join(short)}." if short else "No runs."
    )


def _hours(results: store.Results) -> str:
    return duration(sum(s for r in results.records if isinstance(s := r.get("seconds"), int | float)))


def _provenance(results: store.Results) -> str:
    if not results.records:
        return ""
    days = sorted(str(r.get("started"))[:10] for r in results.records if r.get("started"))
    lines = [f"{name}: {', '.join(found)}" for name, found in _facts(results).items()]
    span = f"{days[0]} to {days[-1]}" if days and days[0] != days[-1] else "".join(days[:1])
    lines += [f"days: {span}"] if span else []
    lines += [f"computation: {_hours(results)} in {len(results.records)} runs"]
    return '<h2 id="provenance">How this page was made</h2>' + listed(lines)


def _facts(results: store.Results) -> dict[str, list[str]]:
    machines = [_machine(r) for r in results.records]
    return {name: sorted({machine[name] for machine in machines}) for name in (machines[0] if machines else {})}


def _machine(record: dict[str, Any]) -> dict[str, str]:
    found = record.get("environment")
    found = found if isinstance(found, dict) else {}
    versions = found.get("versions") if isinstance(found.get("versions"), dict) else {}
    return {
        "commit": short_commit(str(found.get("commit"))),
        "quadjoint": str((versions or {}).get("quadjoint")),
        "torch": str((versions or {}).get("torch")),
        "torchsde": str((versions or {}).get("torchsde")),
        "Python": str(found.get("python")),
        "processor": str(found.get("processor")),
        "cores": str(found.get("cores")),
        "threads per run": str(found.get("threads")),
    }
