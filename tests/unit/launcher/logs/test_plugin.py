"""A plug-in for logs by torchrun's contract: what it is told, how its paths are followed, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config import config
from launcher.config.options import command_line
from launcher.config.plugins import LOGS_SPECS
from launcher.logs.plugin import PluginRoutes, Std
from launcher.logs.routes import Route
from launcher.model.errors import UsageError
from tests.support.distributions import install

MODULE = """
import pathlib

class Dest:
    def __init__(self, **paths):
        self.__dict__.update(paths)

class Specs:
    root_log_dir = "/logs"
    def __init__(self, log_dir=None, redirects=None, tee=None, local_ranks_filter=None):
        self.given = (log_dir, redirects, tee, local_ranks_filter)
        self.asked = []
    def reify(self, envs):
        self.asked.append({rank: dict(env) for rank, env in envs.items()})
        for rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = f"/logs/{rank}.json"
            env["MINE"] = "1"
        return Dest(
            stdouts={0: "", 1: "/logs/1.out", 2: "/dev/null"},
            stderrs={0: "/logs/0.err", 1: "/logs/1.err", 2: "/logs/2.err"},
            tee_stdouts={1: "/logs/1.out", 2: "/dev/null"},
            tee_stderrs={1: "/elsewhere", 2: "/logs/2.err"},
            error_files={rank: f"/logs/{rank}.json" for rank in envs},
            filtered_stdout="/logs/found",
        )

class Missing(Specs):
    def reify(self, envs):
        return Dest(stdouts={0: ""}, stderrs={})

class Silent(Specs):
    def reify(self, envs):
        paths = {rank: "" for rank in envs}
        return Dest(stdouts=paths, stderrs=paths, error_files={0: "/e/0", 1: "/dev/null"})

class Changed(Specs):
    change = {}
    def reify(self, envs):
        paths = {rank: "" for rank in envs}
        return Dest(**{**dict(stdouts=paths, stderrs=paths, filtered_stdout="/logs/found"), **self.change})

class AnyPaths(Changed):
    change = {"stdouts": {0: b"/logs/0", 1: pathlib.PurePath("/dev/null")}}

class Listed(Changed):
    change = {"tee_stdouts": ["/logs/0"]}

class Numbers(Changed):
    change = {"stdouts": {0: 1, 1: 2}}

class Cut(Changed):
    change = {"error_files": {0: "/logs/\\0"}}

class Counts(Changed):
    def reify(self, envs):
        envs[0]["COUNT"] = 3
        return super().reify(envs)

class Leaves(Specs):
    def reify(self, envs):
        raise SystemExit("no\\nbucket")

class Refuses:
    def __init__(self, **options):
        raise ValueError("log_dir must be a bucket")

class Fails(Specs):
    def reify(self, envs):
        raise KeyError("bucket")
"""
OFFERS = {
    "fancy": "made_up_logs:Specs",
    "missing": "made_up_logs:Missing",
    "silent": "made_up_logs:Silent",
    "changed": "made_up_logs:Changed",
    "any-paths": "made_up_logs:AnyPaths",
    "listed": "made_up_logs:Listed",
    "numbers": "made_up_logs:Numbers",
    "cut": "made_up_logs:Cut",
    "counts": "made_up_logs:Counts",
    "leaves": "made_up_logs:Leaves",
    "refuses": "made_up_logs:Refuses",
    "fails": "made_up_logs:Fails",
    "gone": "made_up_logs:Gone",
    "uninstalled": "no_such_module:Specs",
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = install(tmp_path / "made_up", group=LOGS_SPECS, offers=OFFERS, modules={"made_up_logs": MODULE})
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "made_up_logs", raising=False)


def routes(name: str, *words: str, count: int = 3) -> tuple[PluginRoutes, list[str]]:
    made = config.resolve(command_line.parse(["--logs-specs", name, *words, "train.py"]), {}, sys.executable)
    warnings: list[str] = []
    return PluginRoutes(made, count, warnings.append), warnings


def environments(count: int = 3) -> dict[int, dict[str, str]]:
    return {rank: {"RANK": str(rank), "TORCHELASTIC_ERROR_FILE": "/of/the/round/before"} for rank in range(count)}


def specs(made: PluginRoutes) -> Any:
    return made._specs


def test_it_is_given_the_options_as_torchrun_gives_them() -> None:
    words = ("--log-dir", "/logs", "-r", "1", "-t", "0:3,2:2", "--local-ranks-filter", "0,2")
    log_dir, redirects, tee, ranks = specs(routes("fancy", *words)[0]).given
    assert (log_dir, int(redirects), ranks) == ("/logs", 1, {0, 2})
    assert {rank: int(code) for rank, code in tee.items()} == {0: 3, 2: 2}
    assert tee[0] & Std.ERR == Std.ERR
    assert specs(routes("fancy")[0]).given == (None, 0, 0, None)


def test_every_round_it_is_asked_with_the_environments_and_may_add_to_them() -> None:
    made, _ = routes("fancy")
    for round in (1, 2):
        told = environments()
        made.begin(round, 0, told)
        assert told[1] == {"RANK": "1", "TORCHELASTIC_ERROR_FILE": "/logs/1.json", "MINE": "1"}
    assert [asked[2]["TORCHELASTIC_ERROR_FILE"] for asked in specs(made).asked] == ["", ""]


def test_its_paths_are_followed() -> None:
    made, warnings = routes("fancy")
    made.begin(1, 0, environments())
    assert [made.find_route(rank, "stdout") for rank in range(3)] == [
        Route(inherits=True), Route(path="/logs/1.out", to_console=True), Route()
    ]  # fmt: skip
    assert made.find_route(0, "stderr") == Route(path="/logs/0.err")
    assert made.find_error_file(1, 0, 2) == "/logs/2.json"
    assert made.find_filter_file("stdout") == "/logs/found"
    assert warnings == []


def test_what_cannot_be_followed_is_said_once() -> None:
    made, warnings = routes("fancy")
    for round in (1, 2):
        made.begin(round, 0, environments())
        assert made.find_route(1, "stderr") == Route(path="/logs/1.err")
        assert made.find_filter_file("stderr") is None
    assert warnings == [
        "--logs-specs=fancy tees /elsewhere, which is not the file of that stderr: not shown",
        "--logs-specs=fancy names no file for lines that are looked for in stderr",
    ]


def test_paths_of_any_kind_are_followed() -> None:
    made, _ = routes("any-paths", count=2)
    made.begin(1, 0, environments(2))
    assert [made.find_route(rank, "stdout") for rank in range(2)] == [Route(path="/logs/0"), Route()]


def test_a_file_for_lines_that_nobody_tees_is_not_opened() -> None:
    made, warnings = routes("changed", count=2)
    for round in (1, 2):
        made.begin(round, 0, environments(2))
        assert made.find_filter_file("stdout") is None
    assert warnings == ["--logs-specs=changed tees no worker's stdout: nothing is looked for there"]


def test_the_error_file_reaches_a_worker_that_it_was_not_told_to() -> None:
    made, _ = routes("silent", count=2)
    told = environments(2)
    made.begin(1, 0, told)
    assert [told[rank]["TORCHELASTIC_ERROR_FILE"] for rank in range(2)] == ["/e/0", ""]


def test_the_start_says_who_decides() -> None:
    assert routes("fancy")[0].list_remarks() == [
        "--logs-specs=fancy (made_up_logs:Specs) says where output goes: /logs"
    ]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("refuses", "--logs-specs=refuses: made_up_logs:Refuses fails: ValueError: log_dir must be a bucket"),
        ("gone", "--logs-specs=gone: made_up_logs:Gone fails: AttributeError: "),
        ("uninstalled", "--logs-specs=uninstalled: no_such_module:Specs fails: ModuleNotFoundError: "),
        ("fails", "--logs-specs=fails: made_up_logs:Fails fails: KeyError: 'bucket'"),
        ("leaves", "--logs-specs=leaves: made_up_logs:Leaves fails: SystemExit: 'no\\nbucket'"),
        ("listed", "--logs-specs=listed: made_up_logs:Listed fails: AttributeError: "),
        ("numbers", "--logs-specs=numbers: made_up_logs:Numbers fails: TypeError: "),
        ("cut", "--logs-specs=cut: made_up_logs:Cut fails: ValueError: error_files of local rank 0 is "),
        ("counts", "--logs-specs=counts: made_up_logs:Counts sets COUNT to 3, which is no text"),
        ("missing", "--logs-specs=missing: made_up_logs:Missing names the stdout of local rank 0, there is"),
    ],
)  # fmt: skip
def test_one_that_does_not_work_is_refused_in_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        routes(name, count=2)[0].begin(1, 0, environments(2))
    assert str(caught.value).startswith(sentence)


def test_a_name_that_nobody_offers_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        routes("funcy")
    assert str(caught.value) == f"--logs-specs=funcy: no installed package offers it in {LOGS_SPECS}"
    assert str(caught.value.hint) == f"there is {', '.join(sorted({'default', *OFFERS}))}"
