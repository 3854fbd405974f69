"""A forked worker is what `python train.py` is: each program runs twice, started by Python and forked, and is compared.

What may differ is listed here with its reason, and in docs/internals/decisions.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.supervisor.fork_server import fork_server
from tests.processes.test_as_main import FAIL
from tests.support.jobs import environment_probe
from tests.support.processes.small_supervisor import SmallSupervisor

# Of what `probed` sees.
DIFFERENT = {
    "modules": "those that were preloaded",
    "importers": "and where they were looked for",
    "environment of the process": "the kernel keeps what a process was started with: the fork server's",
    "frozen": "until the end the collector leaves alone what is shared with the fork server, and so it stays shared",
    "exit handlers": "one more, which ends that",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(environment_probe.__file__, tmp_path / "look.py")
    (tmp_path / "package").mkdir()
    shutil.copy(environment_probe.__file__, tmp_path / "package" / "look.py")
    (tmp_path / "folder").mkdir()
    shutil.copy(environment_probe.__file__, tmp_path / "folder" / "__main__.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(environment_probe.__file__, "__main__.py")
    (tmp_path / "fail.py").write_text(FAIL)
    (tmp_path / "package" / "fail.py").write_text(FAIL)
    (tmp_path / "syntax.py").write_text("x = (\n")
    return tmp_path


@pytest.fixture
def supervisor(folder: Path) -> Iterator[SmallSupervisor]:
    with SmallSupervisor(folder) as supervisor:
        yield supervisor


def facts(text: str, run: str) -> dict[str, Any]:
    """What was seen, without the names of this run's files and addresses of objects."""
    import re

    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    found: dict[str, Any] = json.loads(re.sub(r"/(?:warm|cold)\d+\.", "/file.", text).replace(run, "run"))
    return found


@pytest.mark.parametrize(
    ("how", "words", "flags"),
    [
        ("script", ("look.py", "a", "-b", "pools"), []),
        ("module", ("package.look", "a", "pools"), []),
        ("script", ("folder", "a"), []),
        ("script", ("archive.zip",), ["-X", "dev"]),
        ("script", ("package/look.py",), ["-W", "error", "-O", "-s"]),
        ("code", ("import runpy; runpy.run_path('look.py', run_name='__main__')", "a"), []),
    ],
    ids=["script", "module", "directory", "archive", "flags", "code"],
)
def test_a_forked_worker_sees_what_it_sees_when_python_starts_it(
    supervisor: SmallSupervisor, how: str, words: tuple[str, ...], flags: list[str]
) -> None:
    variables = {"RANK": "3", "WITH": "é\udc80", "PYTHONHASHSEED": "7", "PYTHONPATH": "somewhere"}
    common: dict[str, str | None] = {"PYTHONHASHSEED": "7", "PYTHONPATH": "somewhere"}
    cold = supervisor.run_cold(how, *words, flags=flags, **variables, PROBED="cold.json")
    answer = supervisor.start(["colorsys"], how, *words, flags=flags, **common)
    assert (answer[0], answer[2]) == ("ready", []), (answer, supervisor.output("server"))
    assert supervisor.run(**variables, PROBED="warm.json") == cold
    assert cold[0] == 0, cold
    seen = [facts((supervisor.folder / f"{run}.json").read_text(), f"{run}.json") for run in ("cold", "warm")]
    different = {name for name, value in seen[0].items() if seen[1][name] != value}
    assert different <= DIFFERENT.keys(), {name: [one[name] for one in seen] for name in different - DIFFERENT.keys()}
    assert {*seen[1]["modules"]} - {*seen[0]["modules"]} == {"colorsys"}
    looked = {*seen[1]["importers"]} - {*seen[0]["importers"]}
    assert all(entry.startswith(str(supervisor.folder)) for entry in looked), looked
    assert seen[1]["words"][0][0] != "-c" or how == "code"


def test_every_end_looks_as_it_does_under_python(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "fail.py")
    for word in ("raise", "interrupt", "text", "3", "-1", "4294967299", "hook", "broken hook", "0"):
        assert supervisor.run(word) == supervisor.run_cold("script", "fail.py", word), word
    assert supervisor.run("interrupt")[0] == -signal.SIGINT
    cold = [supervisor.run_cold("script", "fail.py", "unfinished"), *left(supervisor.folder)]
    assert [supervisor.run("unfinished"), *left(supervisor.folder)] == cold
    assert cold[1:] == ["left in a buffer", "left, too"]


def left(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("text", "binary")]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("script", ("syntax.py",)),
        ("script", ("nowhere.py",)),
        ("module", ("package.fail", "raise")),
        ("module", ("package.nowhere",)),
        ("code", ("def f(): 1 / 0\nf()",)),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0][:15],
)
def test_what_cannot_run_fails_as_under_python(supervisor: SmallSupervisor, how: str, words: tuple[str, ...]) -> None:
    supervisor.start(["colorsys"], how, *words)
    cold = supervisor.run_cold(how, *words)
    assert supervisor.run() == cold
    assert cold[0] != 0


def test_words_that_only_one_worker_has_are_in_its_argv(supervisor: SmallSupervisor) -> None:
    (supervisor.folder / "words.py").write_text("import sys; print(sys.argv, sys.orig_argv[1:])")
    supervisor.start(["colorsys"], "script", "words.py", "--local-rank=0", "a")
    for words in (("--local-rank=0", "a"), ("--local-rank=1", "a"), ("b", "c", "d"), ()):
        expected = supervisor.run_cold("script", "words.py", *words)
        ((number, pid),) = supervisor.born()
        assert supervisor.release(number, words=("script", "words.py", *words)) is None
        assert (supervisor.ask("wait", pid), *supervisor.output(f"warm{number}")) == expected


def test_another_script_than_that_of_the_fork_server_is_refused(supervisor: SmallSupervisor) -> None:
    supervisor.start(["colorsys"], "script", "fail.py", "0")
    ((number, pid),) = supervisor.born()
    failed, sentence, _ = supervisor.release(number, words=("script", "look.py"))
    assert (failed, sentence) == ("failed", "cannot run 'look.py': the fork server was started for 'fail.py'")
    assert supervisor.ask("wait", pid) == 127


def test_the_environment_is_that_of_an_exec_and_keeps_what_an_import_set(
    supervisor: SmallSupervisor,
) -> None:
    (supervisor.folder / "setting.py").write_text(
        "import os\nos.environ.update(OWN='import', NEW='import', BOTH='import')\ndel os.environ['GONE']\n"
        "os.environ.setdefault('GIVEN', 'import')\n"
    )
    (supervisor.folder / "show.py").write_text(
        "import os, subprocess\n"
        "print({k: v for k, v in os.environ.items() if k in 'OWN NEW BOTH GONE GIVEN LESS'.split()})\n"
        "assert subprocess.check_output('env').decode('utf-8', 'surrogateescape').splitlines() "
        "== [f'{k}={v}' for k, v in os.environ.items()]"
    )
    variables = {"OWN": "agent", "GONE": "agent", "BOTH": "agent"}
    answer = supervisor.start(["setting"], "script", "show.py", **variables, LESS="agent")
    assert answer[0] == "ready", answer
    ((number, pid),) = supervisor.born()
    variables |= {"GIVEN": "worker", "BOTH": "worker", "ODD": "\udc80"}
    assert supervisor.release(number, **variables) is None
    code, stdout, stderr = supervisor.ask("wait", pid), *supervisor.output(f"warm{number}")
    assert (code, stderr) == (0, "")
    assert eval(stdout) == {"OWN": "import", "BOTH": "worker", "GIVEN": "worker", "NEW": "import"}


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize", "none"])
def test_what_a_user_has_site_load_runs_before_the_imports(supervisor: SmallSupervisor, name: str) -> None:
    if (
        name == "usercustomize"
        and "True" not in supervisor.run_cold("code", "print(__import__('site').ENABLE_USER_SITE)")[1]
    ):
        pytest.skip("this Python, in a virtual environment as a rule, has no directory of the user's")
    (supervisor.folder / "own").mkdir()
    (supervisor.folder / "own" / f"{name}.py").write_text("import sys; sys.customized = __file__")
    (supervisor.folder / "asks.py").write_text(
        "import os, sys; seen = getattr(sys, 'customized', None), os.environ['PYTHONPATH']"
    )
    (supervisor.folder / "shows.py").write_text(
        "import asks, os, sys\nprint(asks.seen, sys.path, 'sitecustomize' in sys.modules, os.environ['PYTHONPATH'])"
    )
    path = {"PYTHONPATH": str(supervisor.folder / "own")}
    answer = supervisor.start(["asks"], "script", "shows.py", **path)
    assert answer[0] == "ready", (answer, supervisor.output("server"))
    assert supervisor.run(**path) == supervisor.run_cold("script", "shows.py", **path)


def test_a_sitecustomize_that_fails_is_told_of_by_every_worker(supervisor: SmallSupervisor) -> None:
    (supervisor.folder / "own").mkdir()
    (supervisor.folder / "own" / "sitecustomize.py").write_text("1 / 0")
    path = {"PYTHONPATH": str(supervisor.folder / "own")}
    supervisor.start(["colorsys"], "script", "fail.py", **path)
    cold = supervisor.run_cold("script", "fail.py", "0", **path)
    assert supervisor.run("0") == cold
    assert "division by zero" in cold[2]


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_a_python_that_would_not_load_the_hook_is_refused(supervisor: SmallSupervisor, flag: str) -> None:
    answer = supervisor.start(["colorsys"], "script", "fail.py", flags=[flag])
    assert answer[0] == "refused"
    assert "so workers cannot be forked from it" in answer[1]
    assert supervisor.ask("wait", supervisor.server_pid) == 0


def test_an_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "orig_argv")
    problem = fork_server._find_problem()
    assert problem is not None
    assert problem[0].endswith("; 3.10 or newer is needed")


def test_a_place_that_pythonpath_cannot_name_is_refused(
    supervisor: SmallSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = supervisor.folder / "a:b" / "launcher"
    shutil.copytree(Path(fork_server.__file__).parent, copy / "forkserver")
    (copy / "__init__.py").touch()
    monkeypatch.setattr(fork_server, "__file__", str(copy / "forkserver" / "fork_server.py"))
    answer = supervisor.start(["colorsys"], "script", "fail.py")
    assert answer[:2] == [
        "refused", f"--preload: meshrun is installed in {copy}/forkserver, which PYTHONPATH cannot name"
    ]  # fmt: skip
