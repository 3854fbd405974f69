"""Builds the documentation's site into site/: these pages, and the changelog as the page of release notes.

`make docs` runs it. Zensical reads one folder, so the pages are copied into build/site first. A warning is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def release_notes(changelog: str) -> str:
    """The changelog with links as they are from a page; what they name outside of docs/ is no page."""

    def adapt(match: re.Match[str]) -> str:
        words, target = match.groups()
        if "://" in target:
            return match[0]
        return f"[{words}]({target.removeprefix('docs/')})" if target.startswith("docs/") else words

    return LINK.sub(adapt, changelog.replace("# Changelog", "# Release notes", 1))


def build(folder: Path) -> Path:
    """Build in this folder; the folder of the site. Raises CalledProcessError, with the output, for a warning."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__", "*.cast"))
    version = subprocess.run([sys.executable, "-m", "meshrun", "--version"], check=True, capture_output=True, text=True)
    settings = (ROOT / "zensical.toml").read_text()
    (folder / "zensical.toml").write_text(
        settings.replace('copyright = "', f'copyright = "{version.stdout.strip()} · ')
    )
    (folder / "docs/release-notes.md").write_text(release_notes((ROOT / "CHANGELOG.md").read_text()))
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return folder / "site"


if __name__ == "__main__":
    try:
        built = build(ROOT / "build/site")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{failed.output}\nthe documentation does not build")
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    shutil.move(built, ROOT / "site")
