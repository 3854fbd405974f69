"""What Python says where it finds nothing to run, in several of its versions, and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.extensions.hints.nothing_to_run import explain_refusal

USAGE = (
    "unknown option --bogus\nusage: python [option] ... [-c cmd | -m mod | file | -] [arg] ...\n"
    "Try `python -h' for more information."
)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("No module named nosuch",
         "check the name after -m: nosuch is neither in {} nor installed for /venv/bin/python"),
        ("Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
         "check the name after -m: a is neither in {} nor installed for /venv/bin/python"),
        ("No module named package.x", "check the name after -m: package has no module x"),
        ("No module named trian", "did you mean train?"),
        ("No module named package.mode", "did you mean package.model?"),
        ("No module named package.__main__; 'package' is a package and cannot be directly executed",
         "give the name of a module in it, or create package/__main__.py"),
        ("Error while finding module specification for 'train.py' (ModuleNotFoundError: __path__ attribute not found "
         "on 'train' while trying to find 'train.py'). Try using 'train' instead of 'train.py' as the module name.",
         "write -m train: it is a file, not a package"),
        ("can't open file '/x/a.py': [Errno 2] No such file or directory",
         "check the path of the script: the current directory is {}"),
        ("can't open file 'a.py': [Errno 13] Permission denied",
         "check the permissions of the script and its directories with ls -l"),
        ("can't find '__main__' module in '/x/a'", "give the name of a script in it"),
        (USAGE, "correct the options before the name of the script: they are Python's own"),
        ("usage: train.py [-h] --data DATA\ntrain.py: error: unrecognized arguments: --x", ""),
        ("Relative module names not supported", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_next_step_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, hint: str) -> None:
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/model.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    line = words if not words or "usage" in words else f"a warning\n/venv/bin/python: {words}\n"
    assert explain_refusal(line, "/venv/bin/python") == hint.format(tmp_path)
