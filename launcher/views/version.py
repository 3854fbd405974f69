"""Which meshrun this is: its version, and the commit that it was built from, where that is known.

`commit.txt` contains the commit: git writes it into an archive (`export-subst` in .gitattributes), `setup.py` into an
sdist and a wheel. In a checkout the file contains a placeholder, and git is asked. Nothing is read until the commit is
needed. `setup.py` runs this module before the requirements of meshrun are installed, so it imports only the library.
"""

from __future__ import annotations

import os
import re
import subprocess

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMIT_FILE = "launcher/commit.txt"
BUILT_FROM = ("launcher", "rendezvous", "meshrun.py")
_COMMIT = re.compile(r"[0-9a-f]{40,64}(-dirty)?")
_BRANCH = re.compile(r"# branch\.oid ([0-9a-f]{40,64})$")  # git-status(1), porcelain format version 2
_SHORT = 12  # digits, as in the kernel's messages
_GIT_LIMIT_S = 10.0


def describe_version() -> str:
    """Return the version, and the commit if it is known."""
    from rendezvous import __version__

    commit, dash, change = find_commit().partition("-")
    return f"{__version__} (commit {commit[:_SHORT]}{dash}{change})" if commit else __version__


def find_commit(home: str = HOME) -> str:
    """Return the commit, with -dirty behind it if the packages have changed since; "" if it is not known.

    `home`: the directory of the packages.
    """
    try:
        with open(os.path.join(home, COMMIT_FILE), encoding="ascii") as file:
            text = file.read(1024).strip()
    except (OSError, ValueError):
        text = ""
    return text if _COMMIT.fullmatch(text) else _ask_git(home)


def _ask_git(home: str) -> str:
    """Ask git for the commit of a checkout.

    Only of this one: the packages may be installed somewhere in the checkout of another project, and variables may name
    its repository.
    """
    repository = os.path.join(home, ".git")
    if not os.path.lexists(repository):
        return ""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    place = {"GIT_DIR": repository, "GIT_WORK_TREE": home, "GIT_OPTIONAL_LOCKS": "0"}  # do not write into it
    command = ["git", "status", "--porcelain=v2", "--branch", "--", *BUILT_FROM]
    try:
        done = subprocess.run(
            command, cwd=home, env=environ | place, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_GIT_LIMIT_S, check=True,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError):  # without git, or it refuses the repository
        return ""
    lines = done.stdout.splitlines()
    commit = next((found[1] for line in lines if (found := _BRANCH.match(line))), "")
    is_changed = any(not line.startswith("#") for line in lines)
    return commit + "-dirty" * (bool(commit) and is_changed)
