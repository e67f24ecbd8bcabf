"""What a release needs: one version, links that work elsewhere, workflows that fit the project."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import quadjoint

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = re.search(r'^Repository = "(.+)"$', PROJECT, re.MULTILINE)[1]


def test_the_version_is_written_in_the_package_alone():
    assert re.search(r'^dynamic = \["version"\]$', PROJECT, re.MULTILINE)
    assert re.search(r'^version = \{ attr = "quadjoint.__version__" \}$', PROJECT, re.MULTILINE)
    assert not re.search(r'^version = "', PROJECT, re.MULTILINE) and quadjoint.__version__ not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", quadjoint.__version__)


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def test_every_link_of_the_readme_is_a_whole_address():
    """A package index shows the page where the files beside it are not."""
    text = prose(README)
    addresses = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    labels = set(re.findall(r"\]\[([^\]]+)\]", text))
    assert len(labels) > 10 and labels == addresses.keys()  # each is given, and each is used
    direct = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in (*addresses.values(), *direct):
        assert target.startswith("https://"), target


def test_links_of_the_readme_to_this_repository_lead_to_what_is_in_it():
    targets = re.findall(rf"{re.escape(HOME)}/(blob|tree)/main/([^\s)]+)", README)
    assert len(targets) > 10 and README.count(HOME) == len(targets) + README.count(f"git clone {HOME} ")
    targets += [
        ("blob", path) for path in re.findall(r"raw\.githubusercontent\.com/[^/]+/[^/]+/main/([^\s\")]+)", README)
    ]
    for kind, path in targets:
        place = ROOT / path.partition("#")[0]
        assert place.is_file() if kind == "blob" else place.is_dir(), path


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[Any, Any]:
    return yaml.safe_load(request.param.read_text(encoding="utf-8"))


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_there_are_workflows_for_changes_docs_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "release"]


def test_a_workflow_names_the_versions_of_its_actions_and_may_do_little(workflow):
    """Nothing may write but the job that has to; every job ends by itself."""
    assert workflow["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action) for action in used), used
    for name, job in workflow["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 90, name
        assert set(job.get("permissions", {})) <= {"id-token", "pages", "contents"}
        writes = {kind for kind, right in job.get("permissions", {}).items() if right == "write"}
        assert not writes or name in ("publish", "page")
    assert not re.search(r"secrets\.", yaml.dump(workflow)), "a password is stored nowhere"


def test_commands_of_make_in_the_workflows_exist(workflow):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for step in steps(workflow):
        for command in re.findall(r"^make (.+)$", step.get("run", ""), re.MULTILINE):
            assert {word for word in command.split() if "=" not in word} <= targets, command


def load(name: str) -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def test_the_tests_run_with_every_python_and_with_the_oldest_and_newest_torch():
    matrix = load("ci")["jobs"]["tests"]["strategy"]["matrix"]
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", PROJECT)
    assert matrix == {"python": promised, "torch": ["oldest", "newest"]}
    (oldest,) = re.findall(r"torch>=([\d.]+)", PROJECT)
    (script,) = [step["run"] for step in load("ci")["jobs"]["tests"]["steps"] if "oldest" in step.get("if", "")]
    assert f"torch=={oldest}.0/" in script
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch==", pins, re.MULTILINE) and re.search(r"^sympy==", pins, re.MULTILINE)


def test_what_is_released_is_what_was_tested_and_goes_out_without_a_password():
    jobs = load("release")["jobs"]
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml" and "workflow_call" in load("ci")[True]  # "on" is true
    publish = jobs["publish"]
    assert set(publish["needs"]) == {"ci", "names"} and publish["permissions"] == {"id-token": "write"}
    assert [step["uses"].split("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    (upload,) = [step for step in steps(load("ci")) if "upload-artifact" in step.get("uses", "")]
    assert upload["with"]["name"] == publish["steps"][0]["with"]["name"]


def test_a_tag_that_does_not_fit_is_refused():
    """The lines that the release looks for are there, written as it looks for them (the changelog's once released)."""
    (check,) = [step["run"] for step in load("release")["jobs"]["names"]["steps"] if "run" in step]
    here = {"$version": quadjoint.__version__, "$REPOSITORY": HOME}
    for quoted, path in re.findall(r'grep -Fx "(.+)" (\S+)', check):
        wanted = quoted.replace('\\"', '"')
        for name, value in here.items():
            wanted = wanted.replace(name, value)
        assert wanted in (ROOT / path).read_text(encoding="utf-8").splitlines(), wanted
