"""Figures and report come from the JSON lines alone, whatever else is in the file."""

from __future__ import annotations

import base64
import copy
import json
import re
import warnings
from xml.etree import ElementTree

import pytest

from experiments.pages import Reader
from quadjoint.experiments import store
from quadjoint.experiments.claims import CLAIMS
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.figures import FIGURES
from quadjoint.experiments.pictures import OVERVIEW, as_svg, draw_all, pictures
from quadjoint.experiments.plots import canvas
from quadjoint.experiments.report import render, write_report


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


def test_a_figure_that_would_carry_nothing_is_not_drawn(drawn):
    """The tiny grid has one width of each task, so none of what is drawn against the width; only crossing has the clock
    at two. Nor has it ablations, a second data set or a second tolerance."""
    out, figures = drawn
    names = {path.stem for path in (out / "figures").glob("*.svg")}
    assert names == set(figures)
    assert names == {
        *("toy-gradient", "integration", "memory", "nested-spheres-data", "sines-regularity", OVERVIEW),
        *("nested-spheres", "sines", "crossing", "crossing-cost", "ou-solutions", "ou-solutions-direct"),
    }


def test_every_figure_has_a_caption_of_sentences(drawn):
    for picture in drawn[1].values():
        assert picture.caption.endswith(".") and len(picture.caption.split()) > 10


def test_the_page_begins_with_the_verdict_the_figure_and_the_contents(page):
    places = [
        page.index(words) for words in ("statements of the paper", "<figure>", "A statement agrees if", "contents")
    ]
    assert places == sorted(places)
    links = [attrs["href"] for tag, attrs in Reader(page).tags if tag == "a"]
    assert links and all(f'id="{link[1:]}"' in page for link in links)


def test_what_was_run_where_and_how_long_is_said(page, records):
    text = Reader(page).text
    commit = records[0]["environment"]["commit"]
    assert commit is None or commit[:12] in text
    assert records[0]["environment"]["versions"]["torch"] in text and "of computation" in text


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
    figure = FIGURES["memory"]["memory"](many).figure
    assert [ax.get_title() for ax in figure.axes] == [
        *("State of 1 number", "State of 100 numbers", "State of 200 numbers", "State of 300 numbers")
    ]
    assert figure.get_suptitle() == "4 of 300 sizes"
    (images,) = [r for r in records if r["experiment"] == "images" and r["config"]["method"] == "gq"]
    batches = [images | {"config": images["config"] | {"batch": size}} for size in range(1, 301)]
    assert len(FIGURES["images"]["images-batch-size"](batches).figure.axes[0].get_yticks()) == 12
    sines = next(r for r in records if r["experiment"] == "sines" and r["config"]["study"] == "regularity")
    times = [sines | {"config": sines["config"] | {"times": count}} for count in range(1, 301)]
    assert len(FIGURES["sines"]["sines-regularity"](times).figure.axes[0].get_xticks()) == 12


def test_a_warning_of_the_drawing_is_said_and_the_figure_kept(records):
    strange = copy.deepcopy([r for r in records if r["experiment"] == "toy-gradient"])
    for record in strange:
        errors = record["result"]["errors"]
        record["result"]["errors"] = {name: [1e308] * len(found) for name, found in errors.items()}
    said: list[str] = []
    pictures(store.Results(strange), said.append)
    assert all(words.startswith("figure toy-gradient") for words in said) and said


def test_no_results_are_refused_in_words(tmp_path):
    for make in (draw_all, write_report):
        with pytest.raises(Refusal, match="there are no results in"):
            make(tmp_path, print)


def test_an_unknown_experiment_is_counted_and_does_not_hurt(records):
    other = copy.deepcopy(records[0]) | {"experiment": "of tomorrow"}
    assert "of tomorrow" in render(store.Results([other]), [])


def test_the_authors_code_has_figures_of_its_own_and_no_line_in_the_others(records):
    """Ten methods of ours and three of theirs were too many for one legend."""
    guests = copy.deepcopy([r for r in records if r["experiment"] in ("crossing", "clock")])
    for record in guests:
        if record["experiment"] == "clock":
            found = record["result"]["methods"]
            found |= {"paper:gq": found["gq-paper"], "paper:adjoint": found["adjoint"]}
    drawn = pictures(store.Results(guests), lambda message: None)
    with_theirs = {name for name, picture in drawn.items() if b"paper:gq" in picture.svg}
    assert with_theirs == {"crossing-authors"}


def test_the_contents_count_every_run(records):
    page = render(store.Results(records), [])
    contents = page[page.index('id="contents"') : page.index('id="baselines"')]
    counts = [int(n) for n in re.findall(r"<td>(\d+)</td></tr>", contents)]
    assert sum(counts) == len(records)


def test_statements_that_were_not_measured_are_folded(records):
    """With one experiment's clock there are many."""
    few = [r for r in records if r["experiment"] == "clock"]
    page = render(store.Results(few), [])
    part = page[page.index('<h2 id="crossing"') :]
    table, _, rest = part.partition("<details>")
    assert "not measured" not in table and "not measured by these runs" in rest
    for claim in CLAIMS["crossing"]:
        assert claim.statement in part
