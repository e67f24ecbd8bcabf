"""``quadjoint demo | reproduce | plot | report | bench | data``.

The heavy parts are imported by the command that needs them, so that ``quadjoint --help`` answers at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO

from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.names import EXPERIMENTS, PRESETS

try:
    import typer
    from rich.console import Console
except ImportError as missing:  # a bare install has only torch and numpy
    raise SystemExit(
        f"The quadjoint command needs {missing.name}: pip install matplotlib psutil rich scipy typer"
    ) from missing

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train neural ODEs and SDEs: the demo, every experiment of the paper, plots, report, benchmarks.",
)
data_app = typer.Typer(no_args_is_help=True, help="Get the image data sets.")
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option("--out", help="Directory of results; results/PRESET if not given.")]
Preset = Annotated[str, typer.Option(help="; ".join(f"{name}: {about}" for name, about in PRESETS.items()) + ".")]


class Output(Console):
    """A console that says so when nobody reads it any more (as after ``| head -1``), once and to the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _drop(sys.stdout)
        raise BrokenPipeError


def main() -> None:
    """The entry point: refusals and failing disks are one sentence and exit code 1, Ctrl-C is exit code 130.

    Where the reader of the output is gone, the program ends as others do there: without a word.
    """
    try:
        app()
    except BrokenPipeError:
        _drop(sys.stdout)
        raise SystemExit(141) from None
    except (Refusal, OSError) as error:  # among the latter a full disk, a folder that must not be written to
        _complain(str(error))
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        _complain("stopped")
        raise SystemExit(130) from None


def _complain(sentence: str) -> None:
    try:
        print(f"quadjoint: {sentence}", file=sys.stderr, flush=True)
    except OSError:  # nobody reads that either
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Let what is still to be written, when the interpreter ends too, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _version(asked: bool) -> None:
    if asked:
        import torch

        import quadjoint

        typer.echo(f"quadjoint {quadjoint.__version__} (torch {torch.__version__}, Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("outputs"),
    jobs: Annotated[int, typer.Option(help="Processes at once; 0: one for each core.", min=0)] = 0,
) -> None:
    """Train on nested spheres and on sine curves with seven gradients: a table and a picture in two minutes."""
    from quadjoint.experiments.demo import run_demo

    run_demo(out, jobs or _cores(), Output())


@app.command(epilog="Experiments:\n\n" + "\n\n".join(f"  {name}: {about}" for name, about in EXPERIMENTS.items()))
def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENTS)}; or all.")],
    preset: Preset = "quick",
    methods: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    widths: Annotated[str | None, typer.Option(help="These instead of the preset's.")] = None,
    seeds: Annotated[str | None, typer.Option(help="These instead of the preset's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out: Out = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the image data sets.")] = None,
    authors: Annotated[
        Path | None, typer.Option(help="Folder of a clone of torch_gq_adjoint: the authors' code is then timed too.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once, one thread each; 0: one for each core.", min=0)] = 0,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto or local.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the runs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many runs, and how long they take.")] = False,
) -> None:
    """Repeat an experiment of the paper. Interrupt it whenever you like: started again, it goes on."""
    from quadjoint.experiments.reproduce import Request, reproduce

    request = Request(
        name=name,
        preset=preset,
        methods=_words(methods),
        widths=_numbers("--widths", widths),
        seeds=_numbers("--seeds", seeds),
        device=device,
        out=out or Path("results") / preset,
        data=data,
        authors=authors,
        jobs=jobs or _cores(),
        ray=ray,
        list_only=list_only,
        dry_run=dry_run,
    )
    raise typer.Exit(reproduce(request, Output()))


@app.command()
def plot(out: Out = None, preset: Preset = "quick") -> None:
    """Draw every figure that the results allow, into OUT/figures."""
    from quadjoint.experiments.pictures import draw_all

    out = out or Path("results") / preset
    console = Output()
    for path in draw_all(out, partial(console.print, markup=False)):
        console.print(f"{path}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def report(out: Out = None, preset: Preset = "quick") -> None:
    """Write one self-contained HTML page from the results, OUT/report.html."""
    from quadjoint.experiments.report import write_report

    console = Output()
    path = write_report(out or Path("results") / preset, partial(console.print, markup=False))
    console.print(f"{path}", highlight=False, markup=False, soft_wrap=True)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Run the benchmarks of this checkout; every argument goes to benchmarks/run.py."""
    script = _benchmarks()
    raise typer.Exit(subprocess.call([sys.executable, str(script), *context.args]))


def _benchmarks() -> Path:
    """The script in the checkout that this very file belongs to; nothing is run because of where the user stands."""
    here = Path(__file__).resolve()
    root = here.parents[2]
    script = root / "benchmarks" / "run.py"
    if here == root / "src" / "quadjoint" / "cli.py" and (root / "pyproject.toml").is_file() and script.is_file():
        return script
    raise Refusal(
        "the benchmarks are part of the source checkout, not of the installed package; clone the repository and run "
        "make bench in it"
    )


@data_app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="mnist, cifar10 or svhn.")],
    to: Annotated[Path | None, typer.Option("--to", help="Directory for the files.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Take the files from this directory.")] = None,
) -> None:
    """Download a data set, check it, and say where it is."""
    from quadjoint.experiments.fetch import fetch_dataset

    console = Output()
    path = fetch_dataset(name, to=to, source=source, console=console)
    console.print(f"{name} is in {path}", highlight=False, markup=False, soft_wrap=True)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    try:
        numbers = None if text is None else tuple(int(word) for word in _words(text) or ())
    except ValueError:
        raise Refusal(f"{option} takes whole numbers separated by commas, not {text!r}") from None
    if numbers is not None and (not numbers or min(numbers) < 0):
        raise Refusal(f"{option} takes whole numbers separated by commas, not {text!r}")
    return numbers


def _cores() -> int:
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


if __name__ == "__main__":
    main()
