"""What pyproject.toml cannot say: an sdist and a wheel carry the commit that they are built from.

MESHRUN_COMMIT names it where the sources come without their repository, as in the build of an image.
"""

import os
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HOME = Path(__file__).resolve().parent
version = runpy.run_path(str(HOME / "launcher" / "views" / "version.py"))


def write_commit(top: Path) -> None:
    """Write the commit into the packages in this directory; nothing if it is not known."""
    if commit := os.environ.get("MESHRUN_COMMIT") or version["find_commit"](str(HOME)):
        (top / version["COMMIT_FILE"]).write_text(f"{commit}\n")


class Build(build_py):
    """Copies the packages."""

    def run(self) -> None:
        if self.editable_mode:  # a checkout is asked each time
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # modules that are gone by now would be packed, too
        super().run()
        write_commit(Path(self.build_lib))


class Distribute(sdist):
    """Collects the sources."""

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


setup(cmdclass={"build_py": Build, "sdist": Distribute})
