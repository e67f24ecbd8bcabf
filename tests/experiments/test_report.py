"""Figures and report come from the JSON lines alone, whatever else is in the file."""

from __future__ import annotations

import base64
import copy
import json
import re
import warnings
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from quadjoint.experiments import store
from quadjoint.experiments.claims import CLAIMS
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.figures import FIGURES
from quadjoint.experiments.plots import as_svg, canvas, draw_all, mean_and_deviation, pictures
from quadjoint.experiments.published import (
    Finding,
    comparable_times,
    faster,
    growth,
    leaner,
    matching_curves,
    opposite,
    same,
    trend,
)
from quadjoint.experiments.report import findings, render, write_report
from quadjoint.experiments.tables import published_tables


class Reader(HTMLParser):
    """Collects tags and text, and checks that tags close in order."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if "style" not in self.stack:
            self.text += data


def write(out, records, extra: bytes = b""):
    for record in records:
        store.append(out / store.RESULTS, record)
    if extra:
        with open(out / store.RESULTS, "ab") as file:
            file.write(extra)


@pytest.fixture(scope="module")
def drawn(records, tmp_path_factory):
    """The directory of the results and the figures drawn from them."""
    out = tmp_path_factory.mktemp("report")
    write(out, records)
    said: list[str] = []
    figures = draw_all(out, said.append)
    assert said == []
    return out, {path.stem: picture for path, picture in figures.items()}


@pytest.fixture(scope="module")
def page(drawn) -> str:
    out, figures = drawn
    said: list[str] = []
    text = write_report(out, said.append, figures).read_text(encoding="utf-8")
    assert said == []
    return text


def test_the_page_is_well_formed_and_self_contained(page):
    reader = Reader(page)
    assert reader.stack == []
    assert {tag for tag, _ in reader.tags} & {"script", "link", "iframe"} == set()
    sources = [attrs["src"] for tag, attrs in reader.tags if tag == "img"]
    assert sources and all(src.startswith("data:image/svg+xml;base64,") for src in sources)
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?https?:", page)


def test_every_figure_in_the_page_is_a_picture(page):
    for picture in re.findall(r"base64,([A-Za-z0-9+/=]+)", page):
        root = ElementTree.fromstring(base64.b64decode(picture))
        assert root.tag.endswith("svg")


def test_the_page_fits_phones_dark_rooms_and_paper(page):
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page and "@media print" in page


def test_every_statement_of_the_paper_is_in_the_page(page):
    text = Reader(page).text
    for claims in CLAIMS.values():
        for claim in claims:
            assert claim.statement in text


def test_figures_are_drawn_for_every_experiment(drawn):
    out, figures = drawn
    names = {path.stem for path in (out / "figures").glob("*.svg")}
    assert names == set(figures)
    # the tiny grid has no second data set, no ablation over C or cosines, and one tolerance
    absent = {"toy-gradient-tight", "images-cifar10", "images-svhn", "nested-spheres-C", "ou-cosines"}
    assert names == {name for figures in FIGURES.values() for name in figures} - absent


def test_the_same_results_give_the_same_picture():
    def draw():
        figure, (ax,) = canvas(1, 1)
        ax.plot([1, 2], [3, 4])
        return as_svg(figure)

    assert draw() == draw()


def test_a_name_with_characters_that_xml_cannot_hold_still_makes_a_picture():
    figure, (ax,) = canvas(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no font has them
        ax.set_title("a\x00b\x1f\uffffc --> <")
        assert ElementTree.fromstring(as_svg(figure)).tag.endswith("svg")


def test_text_from_the_results_cannot_become_markup(records, tmp_path):
    hostile = copy.deepcopy(next(r for r in records if r["experiment"] == "sines"))
    hostile["key"] = hostile["config"]["method"] = "<script>alert(1)</script>"
    hostile["config"]["spacing"] = '"><img src=x onerror=alert(2)>'
    hostile["environment"] = {"processor": "<b>bold</b>", "versions": {"torch": "<i>"}, "commit": "'\"<"}
    failed = copy.deepcopy(hostile) | {"status": "failed", "key": "k</td>", "result": {"reason": "<u>why</u>"}}
    write(tmp_path, [hostile, failed], b'{"cut off</script>')
    reader = Reader(write_report(tmp_path, lambda problem: None).read_text(encoding="utf-8"))
    assert reader.stack == []
    assert {tag for tag, _ in reader.tags} & {"script", "b", "i", "u"} == set()
    assert all("onerror" not in attrs for _, attrs in reader.tags)
    assert "<u>why</u>" in reader.text and "<b>bold</b>" in reader.text


def test_records_with_other_results_are_survived(records, tmp_path):
    """What is not there is not drawn; the rest of the page is."""
    others = [{}, {"curves": 3, "final": None}, {"curves": {"seconds": ["x"]}, "final": {"test_mse": "low"}}]
    strange = [copy.deepcopy(r) | {"result": others[i % 3], "key": f"{i}"} for i, r in enumerate(records)]
    write(tmp_path, strange)
    said: list[str] = []
    reader = Reader(write_report(tmp_path, said.append).read_text(encoding="utf-8"))
    assert reader.stack == [] and "Nested spheres" in reader.text


def test_truncated_and_foreign_lines_are_listed(records, tmp_path):
    write(tmp_path, records[:3], b'\n{"hello": 1}\n' + json.dumps(records[3]).encode()[:100])
    said: list[str] = []
    page = write_report(tmp_path, said.append).read_text(encoding="utf-8")
    assert len(said) == 2 and "cut off" in said[1]
    assert all(problem.split(":")[0] in page for problem in said)


def test_only_foreign_lines_still_make_a_page(tmp_path):
    (tmp_path / store.RESULTS).write_text("nonsense\n")
    page = write_report(tmp_path, lambda problem: None).read_text()
    assert "Nothing to compare yet" in page and "not JSON" in page


def test_of_many_sizes_as_many_are_drawn_as_fit_a_page(records):
    """A layout of 300 panels would take minutes."""
    one = next(r for r in records if r["experiment"] == "memory")
    many = [one | {"key": f"{size}", "config": one["config"] | {"width": size}} for size in range(1, 301)]
    figure = FIGURES["memory"]["memory"](many)
    assert [ax.get_title() for ax in figure.axes] == ["State of 1", "State of 100", "State of 200", "State of 300"]
    assert figure.get_suptitle() == "4 of 300 sizes"
    (images,) = [r for r in records if r["experiment"] == "images" and r["config"]["method"] == "gq"]
    batches = [images | {"config": images["config"] | {"batch": size}} for size in range(1, 301)]
    assert len(FIGURES["images"]["images-batch-size"](batches).axes) == 9
    sines = next(r for r in records if r["experiment"] == "sines" and r["config"]["study"] == "regularity")
    times = [sines | {"config": sines["config"] | {"times": count}} for count in range(1, 301)]
    assert len(FIGURES["sines"]["sines-regularity"](times).axes[0].get_xticks()) == 12


def test_a_warning_of_the_drawing_is_said_and_the_figure_kept(records):
    strange = copy.deepcopy([r for r in records if r["experiment"] == "memory"])
    for record in strange:
        record["result"]["peak_memory"] = [1e308] * len(record["result"]["peak_memory"])
    said: list[str] = []
    pictures(store.Results(strange), said.append)
    assert all(words.startswith("figure memory") for words in said) and said


def test_no_results_are_refused_in_words(tmp_path):
    for make in (draw_all, write_report):
        with pytest.raises(Refusal, match="there are no results in"):
            make(tmp_path, print)


def test_an_unknown_experiment_is_counted_and_does_not_hurt(records):
    other = copy.deepcopy(records[0]) | {"experiment": "of tomorrow"}
    assert "of tomorrow" in render(store.Results([other]), [])


# The checks of the paper's statements, on invented records --------------------------------------------------


def run(method, width=10, seconds=1.0, seed=0, study="widths", metric=1.0, **config) -> dict:
    settings = {"method": method, "width": width, "seed": seed, "study": study, **config}
    return {"config": settings, "result": {"seconds_per_gradient": seconds, "final": {"m": metric}}}


def test_faster_compares_means_at_the_largest_width():
    records = [run("a", 10, 9.0), run("b", 10, 1.0), run("a", 20, 1.0), run("a", 20, 3.0, seed=1), run("b", 20, 4.0)]
    finding = faster("a", "b")(records)
    assert finding == Finding(True, "b takes 2.00 times as long as a at width 20")
    assert faster("b", "a")(records).agrees is False
    assert faster("a", "c")(records).agrees is None


def test_growth_compares_ratios():
    records = [run("a", 1, 1.0), run("a", 9, 2.0), run("b", 1, 0.1), run("b", 9, 1.0)]
    assert growth("a", "b")(records).agrees is True
    assert growth("b", "a")(records).agrees is False


def test_same_allows_the_spread_over_seeds():
    close = [run("a", metric=1.0), run("b", metric=1.04)]
    assert same("m", ("a", "b"), relative=0.1, absolute=0.0)(close).agrees is True
    assert same("m", ("a", "b"), relative=0.01, absolute=0.0)(close).agrees is False
    spread = [run("a", metric=x, seed=x) for x in (0, 2)] + [run("b", metric=x, seed=x) for x in (1, 3)]
    assert same("m", ("a", "b"), relative=0.0, absolute=0.0)(spread).agrees is True


def test_trend_looks_at_the_ends():
    records = [run("a", study="s", c=c, seconds=c + 1.0) for c in (0.1, 10.0, 1.0)]
    path = ("seconds_per_gradient",)
    assert trend("s", "c", path, "a", rising=True)(records).agrees is True
    assert trend("s", "c", path, "a", rising=False)(records).agrees is False


def test_curves_are_compared_at_the_largest_trained_width():
    def curve(method, values, width=20):
        record = run(method, width)
        record["result"]["curves"] = {"loss": values}
        return record

    check = matching_curves("loss", ("a", "b"), relative=0.1)
    small = [curve("a", [1.0, 0.0], width=10), curve("b", [2.0, 2.0], width=10)]
    assert check([*small, curve("a", [2.0, 1.0]), curve("b", [2.0, 1.15])]).agrees is True
    finding = check([*small, curve("a", [2.0, 1.0]), curve("b", [2.0, 1.5])])
    assert finding == Finding(False, "width 20: at most 25 % of the first value apart (epoch 2 of 2)")
    assert check([curve("a", [1.0])]).agrees is None
    assert check([curve("a", [0.0, 1.0]), curve("b", [0.0, 2.0])]).agrees is None  # a part of nothing


def test_comparable_times_looks_at_the_smallest_width():
    records = [run("a", 10, 1.0), run("b", 10, 1.4), run("a", 20, 1.0), run("b", 20, 9.0)]
    assert comparable_times(("a", "b"), 1.5)(records).agrees is True
    assert comparable_times(("a", "b"), 1.3)(records).agrees is False
    assert comparable_times(("a", "c"), 1.5)(records).agrees is None


def test_leaner_compares_peaks_and_its_opposite_the_other_way():
    records = [run("a"), run("b")]
    for record, peak in zip(records, (2**20, 3 * 2**20), strict=True):
        record["result"]["peak_memory"] = peak
    assert leaner("a", "b")(records) == Finding(True, "peak at width 10: a 1 MiB, b 3 MiB")
    assert opposite(leaner("a", "b"))(records).agrees is False
    assert opposite(leaner("a", "c"))(records).agrees is None


def test_verdicts_change_with_the_records(records):
    """The page says what the records say: with the times of two methods exchanged, the verdict turns."""
    crossing = [r for r in copy.deepcopy(records) if r["experiment"] == "crossing"]
    verdicts = []
    for slow in ("adjoint", "gq-paper"):
        for record in crossing:
            record["result"]["seconds_per_gradient"] = 2.0 if record["config"]["method"] == slow else 1.0
        found = {claim.statement: finding.agrees for claim, finding in findings("crossing", crossing)}
        verdicts.append(found["GQ is faster than the adjoint for large models."])
    assert verdicts == [True, False]


def test_experiments_without_runs_are_not_covered(records):
    page = render(store.Results([r for r in records if r["experiment"] == "crossing"]), [])
    text = Reader(page).text
    for name in ("memory", "ou", "images"):
        assert CLAIMS[name][0].statement in text.partition("Not covered:")[2]


def test_the_tables_of_the_paper_stand_beside_ours(records):
    spheres = [run("gq-paper", study="C", c=c, seconds=1 + (c > 1)) for c in (1e-3, 1e-1, 1e2, 1e5)]
    ((_, head, rows),) = published_tables("nested-spheres", spheres)
    assert [row[head.index("paper: time")] for row in rows] == ["1.00", "1.46", "2.30", "2.31"]
    assert [row[head.index("ours: time")] for row in rows] == ["1.00", "1.00", "2.00", "2.00"]
    sines = [r for r in records if r["experiment"] == "sines"]
    (_, head, rows), (_, _, errors) = published_tables("sines", sines)
    assert [row[:2] for row in rows][3:5] == [["50 regular", "1.00"], ["50 merged", "19.45"]]
    assert [row[1] for row in errors] == ["0.08 ± 0.07", "0.07 ± 0.06", "0.11 ± 0.09", "0.09 ± 0.08"]
    assert [bool(row[2]) for row in errors] == [True, True, True, False]  # the tiny grid has no 50 merged times


def test_a_check_that_cannot_read_its_records_does_not_know():
    assert all(
        finding.agrees is None for _, finding in findings("sines", [{"config": {"study": "widths"}, "result": {}}])
    )


def test_mean_and_deviation_leave_out_what_is_not_a_number():
    assert mean_and_deviation([1.0, None, 3.0]) == (2.0, 1.0)
