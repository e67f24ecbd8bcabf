"""``quadjoint demo | reproduce | plot | report | bench | data``.

The heavy parts are imported by the command that needs them, so that ``quadjoint --help`` answers at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ImportError as missing:  # a bare install has only torch and numpy
    raise SystemExit(f"The quadjoint command needs {missing.name}: pip install 'quadjoint[experiments]'") from missing

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train neural ODEs and SDEs: the demo, every experiment of the paper, plots, report, benchmarks.",
)
data_app = typer.Typer(no_args_is_help=True, help="Get the image data sets.")
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option("--out", help="Directory of results; results/PRESET if not given.")]
Preset = Annotated[str, typer.Option(help="quick (a laptop, under an hour) or paper (the paper's grid).")]


def main() -> None:
    """The entry point: refusals and failing disks are one sentence and exit code 1, Ctrl-C is exit code 130."""
    from quadjoint.experiments.faults import Refusal

    try:
        app()
    except Refusal as refusal:
        Console(stderr=True, highlight=False).print(f"quadjoint: {refusal}", markup=False)
        raise SystemExit(1) from None
    except OSError as error:  # a full disk, a folder that must not be written to
        Console(stderr=True, highlight=False).print(f"quadjoint: {error}", markup=False)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("outputs"),
    jobs: Annotated[int, typer.Option(help="Processes at once; 0: one for each core.", min=0)] = 0,
) -> None:
    """Train on nested spheres and on sine curves with every method: a table and a picture in two minutes."""
    from quadjoint.experiments.demo import run_demo

    run_demo(out, jobs or _cores(), Console())


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or all.")],
    preset: Preset = "quick",
    methods: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    widths: Annotated[str | None, typer.Option(help="These instead of the preset's.")] = None,
    seeds: Annotated[str | None, typer.Option(help="These instead of the preset's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out: Out = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the image data sets.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once, one thread each; 0: one for each core.", min=0)] = 0,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto or local.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the runs.")] = False,
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
        jobs=jobs or _cores(),
        ray=ray,
        list_only=list_only,
    )
    raise typer.Exit(reproduce(request, Console()))


@app.command()
def plot(out: Out = None, preset: Preset = "quick") -> None:
    """Draw every figure that the results allow, into OUT/figures."""
    from quadjoint.experiments.plots import draw_all

    out = out or Path("results") / preset
    console = Console()
    for path in draw_all(out, partial(console.print, markup=False)):
        console.print(f"{path}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def report(out: Out = None, preset: Preset = "quick") -> None:
    """Write one self-contained HTML page from the results, OUT/report.html."""
    from quadjoint.experiments.report import write_report

    console = Console()
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
    from quadjoint.experiments.faults import Refusal

    package = Path(__file__).resolve()
    for root in (package.parents[2], Path.cwd()):
        if (root / "benchmarks" / "run.py").is_file():
            return root / "benchmarks" / "run.py"
    raise Refusal(
        "the benchmarks are part of the source checkout, not of the installed package; clone the repository and run "
        "quadjoint bench in it"
    )


@data_app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="mnist, cifar10 or svhn.")],
    to: Annotated[Path | None, typer.Option("--to", help="Directory for the files.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Take the files from this directory.")] = None,
) -> None:
    """Download a data set, check it, and say where it is."""
    from quadjoint.experiments.fetch import fetch_dataset

    console = Console()
    path = fetch_dataset(name, to=to, source=source, console=console)
    console.print(f"{name} is in {path}", highlight=False, markup=False, soft_wrap=True)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    from quadjoint.experiments.faults import Refusal

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
