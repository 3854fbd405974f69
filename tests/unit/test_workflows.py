"""The workflows and forms for GitHub: what they may do, and that what they name exists. They are not run here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rendezvous import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [ROOT / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature")]
PUBLISHER = "pypa/gh-action-pypi-publish"
PINNED = re.compile(r"uses: (\./\S+|[\w./-]+@[0-9a-f]{40} # v\d+(?:\.\d+)*)$")


def load(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def list_jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, job) for path in WORKFLOWS for name, job in load(path)["jobs"].items())


def list_steps() -> list[dict[str, Any]]:
    return [step for _, job in list_jobs() for step in job.get("steps", [])]


def find_publisher() -> dict[str, Any]:
    (job,) = (job for _, job in list_jobs() if PUBLISHER in str(job))
    return job


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_right_that_a_job_does_not_ask_for_and_no_secret(path: Path) -> None:
    text = path.read_text()
    workflow = load(path)
    assert workflow["permissions"] == {}
    assert all("permissions" in job for job in workflow["jobs"].values())
    assert all("timeout-minutes" in job for job in workflow["jobs"].values() if "steps" in job)
    assert "secrets" not in text
    # YAML reads the key `on` as True. With these, a fork's code would run with the rights of the repository.
    assert not {"pull_request_target", "workflow_run", "issue_comment"}.intersection(workflow[True])
    used = [line.strip().removeprefix("- ") for line in text.splitlines() if "uses: " in line]
    assert used
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_no_text_from_outside_becomes_a_command() -> None:
    assert [step["run"] for step in list_steps() if "${{" in step.get("run", "")] == []
    checkouts = [step for step in list_steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_a_tag_is_published_after_all_tests_and_without_a_password() -> None:
    (path,) = (path for path in WORKFLOWS if PUBLISHER in path.read_text())
    assert load(path)[True] == {"push": {"tags": ["v[0-9]*"]}}
    job = find_publisher()
    assert set(job["needs"]) == load(path)["jobs"].keys() - {"publish"}
    assert (job["permissions"], bool(job["environment"])) == ({"id-token": "write"}, True)
    assert not any(
        "run" in step or "checkout" in step["uses"] for step in job["steps"]
    )  # none of our code has the token
    assert not any(step["uses"].startswith(PUBLISHER) and "with" in step for step in job["steps"])
    rights = [job["permissions"] for _, job in list_jobs() if PUBLISHER not in str(job)]
    assert rights == [{"contents": "read"}] * len(rights)


@pytest.mark.parametrize(("tag", "is_published"), [(f"v{__version__}", True), (__version__, False), ("v99.0.0", False)])
def test_the_tag_is_the_version(tag: str, is_published: bool) -> None:
    (check,) = (step["run"] for step in list_steps() if "GITHUB_REF_NAME" in step.get("run", ""))
    done = subprocess.run(
        ["bash", "-e", "-c", check], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False, timeout=60
    )
    assert (done.returncode == 0) is is_published


def test_what_a_workflow_runs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in (step["run"] for step in list_steps() if "run" in step):
        for target, what in re.findall(r"^make (\w+)(?: WHAT=(\w+))?", command, re.MULTILINE):
            assert re.search(rf"^{target}{'-' + what if what else ''}:", makefile, re.MULTILINE)
        for script in re.findall(r"^\.\S+", command, re.MULTILINE):
            assert os.access(ROOT / script, os.X_OK)
    for _, job in list_jobs():
        assert "uses" not in job or (ROOT / job["uses"]).exists()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_each_question_once_and_wants_the_report_of_a_bug(path: Path) -> None:
    form = load(path)
    ids = [item["id"] for item in form["body"]]
    assert len(ids) == len(set(ids))
    assert form["body"][0]["validations"] == {"required": True}
    assert (path.stem == "bug") is ("meshctl doctor --report" in path.read_text())
