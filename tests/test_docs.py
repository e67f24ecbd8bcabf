"""The documentation is true: every block of code runs, the site builds without a network, every example works."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MIGRATED = sorted((ROOT / "examples" / "migration").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))

FENCE = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """A block of a page with the remarks before it.

    ``needs: package`` and ``slow`` concern the block; ``output`` says that it is what the block before prints, ``output
    but for numbers`` that it is so up to numbers (times, sizes that depend on fitted constants).
    """

    language: str
    text: str
    line: int
    needs: str | None
    slow: bool
    output: bool
    numbers: bool
    printed: bool  # by an example, elsewhere


def blocks(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(source):
        remarks, language, text = match.groups()
        needs = re.search(r"needs: (\w+)", remarks)
        line = source.count("\n", 0, match.start(3)) + 1
        before = source[: match.start()]
        printed = before.rfind("<!-- printed: ") > before.rfind("<!-- /printed -->")
        flags = ["slow" in remarks, "output" in remarks, "but for numbers" not in remarks, printed]
        found.append(Block(language, text, line, needs and needs[1], *flags))
    return found


def without_numbers(text: str) -> str:
    return re.sub(r"[\d.,]*\d (k?B|MB|GB|ms)|\d[\d.,]*", "#", text)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True)
def settings_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs change torch's settings as they like and write to the current directory."""
    monkeypatch.chdir(tmp_path)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


def run_page(page: Path, slow: bool) -> None:
    """Run the blocks of a page one after another, as a reader would; output that is shown must be what is printed."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        if block.output:
            shown, wanted = (text if block.numbers else without_numbers(text) for text in (block.text, printed))
            assert shown.split() == wanted.split(), f"{name(page)}:{block.line}"
        if block.language != "python" or (block.slow and not slow):
            continue
        if block.needs and importlib.util.find_spec(block.needs) is None:
            continue
        code = compile("\n" * (block.line - 1) + block.text, name(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            exec(code, namespace)
        printed = out.getvalue()


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))], ids=name)
def test_code_on_the_page_runs(page: Path) -> None:
    run_page(page, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.slow for b in blocks(p))], ids=name)
def test_slow_code_on_the_page_runs(page: Path) -> None:
    run_page(page, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a language, or with a misspelt one, would not be run."""
    assert {block.language for block in blocks(page)} <= {"python", "text", "sh", "math"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_and_commands_that_are_named_exist(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?<![\w/])(?:examples|docs|benchmarks|tests)/[\w/]+\.\w+", source):
        assert (ROOT / path).is_file(), path
    commands = "\n".join(block.text for block in blocks(page) if block.language == "sh")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"^make (\w+)", commands, re.MULTILINE):
        assert target in targets, target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    """Also those that mkdocs does not see, which are the README's. (Headings are checked when the site is built.)"""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", prose):
        assert (page.parent / target).exists(), target


def test_commands_of_quadjoint_are_as_the_pages_say() -> None:
    """Every ``quadjoint`` command in a block has a subcommand and options that the program knows."""
    import typer

    from quadjoint import cli

    group = typer.main.get_command(cli.app)
    text = "\n".join(block.text for page in PAGES for block in blocks(page) if block.language == "sh")
    commands = re.findall(r"^(?:torchrun .*-m )?quadjoint(?:\.cli)? (.+)$", text, re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        words, known = shlex.split(command, comments=True), group
        while words and words[0] in getattr(known, "commands", {}):
            known = known.commands[words.pop(0)]  # type: ignore[attr-defined]
        known.make_context("quadjoint", words).close()  # parses, runs nothing


def test_every_public_name_is_in_the_reference() -> None:
    """Tables of names (``GRADIENTS``, ``METHODS``, ``TABLEAUS``) and submodules are data, and have no entry."""
    import quadjoint
    from quadjoint import cde, nn, sde

    reference = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    listed = {entry.rpartition(".")[2] for entry in re.findall(r"^::: ([\w.]+)", reference, re.MULTILINE)}
    for members in re.findall(r"members: \[(.*)\]", reference):
        listed |= set(members.split(", "))
    public = {
        *quadjoint.__all__,
        *nn.__all__,
        *sde.__all__,
        *cde.__all__,
        "odeint_adjoint",
        "odeint_event",
        "odeint_dense",
    }
    assert public - {"GRADIENTS", "METHODS", "TABLEAUS", "cde", "nn", "sde"} <= listed


def generated() -> Any:
    """The hook that makes tables from the code."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_method_argument_option_and_figure() -> None:
    """A name without words stops the making of its table; here, that the tables have them all and say what is so."""
    import dataclasses
    import inspect

    import quadjoint as qj
    from quadjoint.solver.methods.catalogue import known_options

    hook = generated()
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    listed = {row[0].strip("`"): row for row in rows}
    options = set().union(*(known_options(name) for name in qj.METHODS if name != "scipy_solver"))
    figures = {field.name for field in dataclasses.fields(qj.Stats)}
    arguments = inspect.signature(qj.odeint).parameters.keys() | inspect.signature(qj.solve).parameters.keys()
    assert {*qj.METHODS, *options, *figures, *arguments} <= listed.keys()
    assert listed["dopri5"][1:6] == ["5", "7 (6 new)", "yes", "", "4"] and listed["rk4"][3] == ""
    for name, parameter in inspect.signature(qj.solve).parameters.items():
        default = hook.ARGUMENTS[name][0]
        assert parameter.default is parameter.empty if not default else eval(default) == parameter.default, name
    settings = {field.name: field.default for field in dataclasses.fields(hook.StepSettings)}
    for name in ("safety", "ifactor", "dfactor", "min_step"):
        assert float(hook.OPTIONS[name][0]) == settings[name]
    assert int(hook.OPTIONS["max_num_steps"][0].replace(",", "")) == settings["max_num_steps"]


@pytest.mark.parametrize("page", PAGES[1:], ids=name)
def test_code_fits_a_narrow_column(page: Path) -> None:
    """The words of the examples, which are folded, may be wider."""
    for block in blocks(page):
        if block.language != "math" and not block.printed:
            assert max((len(line) for line in block.text.splitlines()), default=0) <= 80, f"line {block.line}"


def test_times_in_the_readme_are_those_of_the_committed_benchmarks() -> None:
    from benchmarks.headline import against_diffrax, table

    lines = (ROOT / "benchmarks" / "results" / "results.jsonl").read_text().splitlines()
    records, readme = [json.loads(line) for line in lines], (ROOT / "README.md").read_text()
    assert "\n".join(table(records)) in readme
    assert against_diffrax(records) in " ".join(readme.split())


def test_the_readme_says_of_the_experiments_what_their_report_says() -> None:
    report = (ROOT / "results" / "evening" / "report.html").read_text(encoding="utf-8")
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    pattern = r"Of (\d+) statements of the paper, (\d+ agree with these runs, .*? were not measured)\."
    every, verdicts = re.search(pattern, report, re.DOTALL).groups()
    runs, hours, minutes = re.search(r"(\d+) runs, (\d+):(\d\d) h of computation", report).groups()
    tables = [table for table in re.findall(r"<table.*?</table>", report, re.DOTALL) if "<th>we say</th>" in table]
    ours = re.findall(r'<td class="[a-z]+">([^<]*)<', "".join(tables))
    assert f"Of {every} statements of the paper, {verdicts}" in readme
    assert f"its {runs} runs took {int(hours) + int(minutes) / 60:.1f} hours in sum" in readme
    fates = [ours.count(fate) for fate in ("holds", "does not hold", "cannot tell")]
    assert "of {} statements of our own, {} hold, {} do not, and {} are left open".format(len(ours), *fates) in readme


@pytest.mark.parametrize("module", ["independent", "launches", "overhead", "step_graphs", "stiff", "torchdiffeq_suite"])
def test_tables_on_pages_are_those_of_the_committed_benchmarks(module: str) -> None:
    from benchmarks.output import between_marks, load

    benchmark = importlib.import_module(f"benchmarks.{module}")
    of_records = {"independent": "markdown", "stiff": "summary", "torchdiffeq_suite": "by_test"}.get(module, "table")
    assert between_marks(module, getattr(benchmark, of_records)(load(module))) in benchmark.PAGE.read_text()


def test_navigation_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert str(page.relative_to(ROOT / "docs")) in navigation


def test_tables_in_docstrings_become_markdown() -> None:
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "docs" / "docstrings.py")
    assert spec is not None and spec.loader is not None
    docstrings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docstrings)
    drawn = "Shapes:\n\n====  ======\nkind  shape\n====  ======\nall   (*n, d)\n====  ======"
    assert docstrings.as_markdown(drawn) == "Shapes:\n\n| kind | shape |\n| --- | --- |\n| all | (\\*n, d) |"
    assert docstrings.as_markdown(">>> 1\n1\n\n>>> 2\n2") == "```pycon\n>>> 1\n1\n\n>>> 2\n2\n```"


def test_site_builds_without_a_network(tmp_path: Path) -> None:
    """Strictly: no broken link, no missing page; and nothing in the pages is loaded from another server."""
    nowhere = "http://127.0.0.1:9"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": nowhere, "https_proxy": nowhere}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(https?:[^\"' >]+)", page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"
    formulas = (tmp_path / "site" / "how-it-works.html").read_text()
    assert "<math" in formulas and "```math" not in formulas
    style = (tmp_path / "site" / "assets" / "site.css").read_text()
    (font,) = re.findall(r'@font-face [^}]*url\("([^"]+)"\)', style)
    assert (tmp_path / "site" / "assets" / font).read_bytes()[:4] == b"wOF2"  # bundled, not fetched


def test_generated_tables_and_printed_words_on_the_pages_are_those_of_today() -> None:
    """Made by ``python docs/generated.py``."""
    hook = generated()
    made = {name: 0 for name in ("generated", "printed")}
    for path in (ROOT / "docs").glob("*.md"):
        page = path.read_text(encoding="utf-8")
        assert hook.on_page_markdown(page) == page, f"{path.name}: run python docs/generated.py"
        for name in made:
            made[name] += page.count(f"<!-- /{name} -->")
    assert made == {"generated": len(hook.TABLES), "printed": len(EXAMPLES)}


def test_formulas_become_mathml() -> None:
    spec = importlib.util.spec_from_file_location("mathml", ROOT / "docs" / "mathml.py")
    assert spec is not None and spec.loader is not None
    mathml = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mathml)
    assert "<mfrac><mi>a</mi><mrow><mn>2</mn><mi>π</mi></mrow></mfrac>" in mathml.formula(r"\frac a {2 \pi}")
    assert "<munder><mo>∑</mo><mi>i</mi></munder>" in mathml.formula(r"\sum_i")
    assert "<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup>" in mathml.formula(r"\int_0^1")
    assert mathml.formula(r"a &= b \\ &= c").count("<mtr>") == 2
    with pytest.raises(ValueError, match="unknowable"):
        mathml.formula(r"\unknowable")


def run_example(source: str, path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """Run a script as if from the command line; returns what it has defined."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    path.write_text(source, encoding="utf-8")
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        pyplot.close("all")


@pytest.mark.parametrize("script", [e for e in EXAMPLES if e.stem != "data_parallel"], ids=name)
def test_example_runs_and_saves_its_picture(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").symlink_to(ROOT / "examples" / "data")
    run_example(script.read_text(encoding="utf-8"), tmp_path / script.name, monkeypatch, "--quick")
    assert (tmp_path / "outputs" / f"{script.stem}.png").stat().st_size > 5000


def test_data_parallel_example(tmp_path: Path) -> None:
    """Two processes end with equal weights (the script checks that itself and fails otherwise)."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT / "src")}
    script = str(ROOT / "examples" / "data_parallel.py")
    done = subprocess.run(
        [*command, script, "--quick"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes, largest difference between their weights 0.0e+00" in done.stdout
    assert (tmp_path / "outputs" / "data_parallel.png").is_file()


@pytest.mark.parametrize("script", EXAMPLES, ids=name)
def test_numbers_of_an_example_are_those_it_printed(script: Path) -> None:
    """Decimal fractions on the page on examples, in the words of the committed run, to the digits of the page."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    (section,) = [part for part in page.split("\n## ") if f"<!-- printed: {script.stem} -->" in part]
    section = re.sub(r"<!-- printed.*?<!-- /printed -->", "", section, flags=re.DOTALL)
    words = (ROOT / "docs" / "assets" / "examples" / f"{script.stem}.txt").read_text(encoding="utf-8")
    printed = [float(number) for number in re.findall(r"\d+\.\d+(?:e[+-]?\d+)?", words)]
    for number in re.findall(r"\b\d+\.\d+\b", section):
        digits = len(number.partition(".")[2])
        assert any(round(found, digits) == float(number) for found in printed), number


@pytest.mark.parametrize("script", [*EXAMPLES, *MIGRATED], ids=name)
def test_examples_are_short(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.parametrize("script", MIGRATED, ids=name)
def test_one_import_line_is_all_that_changes(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With either import the program runs and its losses are the same, to the solver's tolerance."""
    ours = script.read_text(encoding="utf-8")
    theirs, changed = re.subn(
        r"^from quadjoint\.torchdiffeq import", "from torchdiffeq import", ours, flags=re.MULTILINE
    )
    assert changed == 1
    losses = [
        run_example(source, tmp_path / f"{who}.py", monkeypatch, "--quick")["losses"]
        for who, source in (("ours", ours), ("theirs", theirs))
    ]
    assert len(losses[0]) >= 3
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_there_are_two_notebooks() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_notebook_is_its_script_with_outputs(notebook: Path) -> None:
    """Its code is that of the script of the same name; every cell was run, in order, without an error, to a picture."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    script = (ROOT / "examples" / f"{notebook.stem}.py").read_text(encoding="utf-8")
    body = script.split('"""', 2)[2]
    wanted = [line for line in body.splitlines() if line.strip() and not line.startswith("# %%")]
    assert [line for cell in code for line in "".join(cell["source"]).splitlines() if line.strip()] == wanted
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
