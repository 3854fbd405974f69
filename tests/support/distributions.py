"""An installed package that is none: a directory for sys.path with a module and the entry points it offers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(directory: Path, *, group: str, offers: Mapping[str, str], modules: Mapping[str, str]) -> Path:
    """Write it into `directory`, which is given back. `offers`: name -> "module:object"; `modules`: name -> source."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, source in modules.items():
        (directory / f"{name}.py").write_text(source)
    metadata = directory / f"{directory.name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {directory.name}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in offers.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return directory
