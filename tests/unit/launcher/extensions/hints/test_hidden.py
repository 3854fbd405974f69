"""Which file hides another, from the words of the exception and the files that are there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import launcher
from launcher.extensions.hints.hidden import explain_hidden, explain_import

OURS = str(Path(launcher.__file__).parent)
TRACEBACK = 'Traceback (most recent call last):\n  File "{}/job/train.py", line 1, in <module>\n    import x\n{}\n'
AS_MODULE = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n{}\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for packages that are installed, and one for the job, which is the current one."""
    for name in ("job", "job/scripts", "installed/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "installed/data/__init__.py").write_text("def load(): ...\n")
    (tmp_path / "installed/data/sets.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path / "job")
    return tmp_path


def create(place: Path, *names: str) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()


@pytest.mark.parametrize(
    ("files", "exception", "hint"),
    [
        (["job/data.py"], "ModuleNotFoundError: No module named 'data.sets'; 'data' is not a package",
         "rename {0}/job/data.py: it hides {0}/installed/data"),
        (["job/data/__init__.py"], "ModuleNotFoundError: No module named 'data.sets'",
         "rename {0}/job/data: it hides {0}/installed/data"),
        (["job/data/__init__.py"], "ImportError: cannot import name 'load' from 'data' ({0}/job/data/__init__.py)",
         "rename {0}/job/data: it hides {0}/installed/data"),
        (["job/data.py"], "AttributeError: module 'data' has no attribute 'load'",
         "rename {0}/job/data.py: it hides {0}/installed/data"),
        (["job/queue.py"], "AttributeError: partially initialized module 'queue' has no attribute 'Queue' (most likely "
         "due to a circular import)", "rename {0}/job/queue.py: it hides "),
        (["job/data/__init__.py"], "ModuleNotFoundError: No module named 'data.other'",
         "check {0}/job/data: it has no module other"),
        (["job/data.py"], "AttributeError: module 'data' has no attribute 'own'", ""),
        (["job/data.py"], "ImportError: cannot import name 'own' from 'data' ({0}/job/data.py)", ""),
        (["job/mine/__init__.py"], "ModuleNotFoundError: No module named 'mine.other'",
         "check {0}/job/mine: it has no module other"),
        (["job/data/own.py"], "ModuleNotFoundError: No module named 'data.own'",
         "create {0}/job/data/__init__.py: without it Python prefers {0}/installed/data"),
        ([], "ModuleNotFoundError: No module named 'data.own'", "check the version of data: it has no module own"),
        ([], "ModuleNotFoundError: No module named 'absent'", ""),
        (["job/data.py"], "ValueError: No module named 'data.sets'", ""),
        (["job/launcher.py"], "ModuleNotFoundError: No module named 'launcher.worker'; 'launcher' is not a package",
         "rename {0}/job/launcher.py: it hides meshrun's own package launcher"),
        (["job/rendezvous.py"], "ImportError: cannot import name 'errors' from 'rendezvous' ({0}/job/rendezvous.py)",
         "rename {0}/job/rendezvous.py: it hides meshrun's own package rendezvous"),
        (["job/launcher.py"], "ImportError: cannot import name 'launch' from partially initialized module 'launcher' "
         "(most likely due to a circular import) ({0}/job/launcher.py)",
         "rename {0}/job/launcher.py: it hides meshrun's own package launcher"),
        (["job/launcher/util.py"], "ModuleNotFoundError: No module named 'launcher.util'",
         "create {0}/job/launcher/__init__.py: without it Python prefers meshrun's own package launcher"),
        (["launcher/__init__.py", "launcher/util.py"], "ModuleNotFoundError: No module named 'launcher.util'",
         "add {0} to PYTHONPATH: the script has imported meshrun's own package launcher, not the one there"),
        (["src/launcher/__init__.py", "src/launcher/util.py"], "ModuleNotFoundError: No module named 'launcher.util'",
         "add {0}/src to PYTHONPATH: the script has imported meshrun's own package launcher, not the one there"),
        (["launcher/__init__.py"], "AttributeError: module 'launcher' has no attribute 'util'",
         "check the import: the script has imported meshrun's own package launcher, which has no util"),
        (["rendezvous/x.py", "rendezvous/__init__.py"],
         "ImportError: cannot import name 'x' from 'rendezvous' (/site/rendezvous/__init__.py)",
         "add {0} to PYTHONPATH: the script has imported meshrun's own package rendezvous, not the one there"),
        ([], "ModuleNotFoundError: No module named 'launcher.util'",
         "check the import: the script has imported meshrun's own package launcher, which has no util"),
    ],
)  # fmt: skip
def test_the_file_is_named(place: Path, files: list[str], exception: str, hint: str) -> None:
    create(place, *files)
    exception = exception.format(place)
    found = explain_hidden(exception, TRACEBACK.format(place, exception), is_own_python=True)
    assert found.startswith(hint.format(place)) if hint else found == ""


def test_under_m_python_looks_in_the_current_directory_first(place: Path) -> None:
    create(place, "job/data.py")
    exception = "ModuleNotFoundError: No module named 'data.sets'; 'data' is not a package"
    hint = explain_hidden(exception, AS_MODULE.format(exception), is_own_python=True)
    assert hint == f"rename {place}/job/data.py: it hides {place}/installed/data"


def test_of_another_python_only_our_own_packages_are_known(place: Path) -> None:
    create(place, "job/data.py", "job/launcher.py")
    for name, is_known in (("data.sets", False), ("launcher.worker", True)):
        exception = f"ModuleNotFoundError: No module named '{name}'; '{name.partition('.')[0]}' is not a package"
        hint = explain_hidden(exception, TRACEBACK.format(place, exception), is_own_python=False)
        assert hint.startswith("rename") is is_known


def test_a_pythonpath_that_leads_to_this_installation_hides_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(OURS).parent))
    exception = "ModuleNotFoundError: No module named 'launcher.util'"
    hint = explain_hidden(exception, TRACEBACK.format(place, exception), is_own_python=True)
    assert hint.startswith("check the import: the script has imported meshrun's own package launcher")


def test_only_a_file_that_was_imported_and_comes_first_is_said_to_hide_a_package(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(place, "job/data.py")
    monkeypatch.syspath_prepend(str(place / "job"))
    error = ImportError("no", name="data.sets")
    assert explain_import(error) is error
    import data  # type: ignore[import-not-found]

    assert str(explain_import(error)) == f"{place}/job/data.py hides the package data, which meshrun needs: rename it"
    monkeypatch.setattr(sys, "path", [str(place / "job")])
    assert explain_import(error) is error
    monkeypatch.delitem(sys.modules, data.__name__)
