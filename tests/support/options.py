"""Command lines and variables as a Config, or as the sentence that refuses them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import asdict

from launcher.config import config
from launcher.config.config import SECTIONS, Config
from launcher.config.options import command_line
from launcher.model.errors import UsageError


def resolve(*words: str, environ: Mapping[str, str] | None = None, **variables: str) -> Config:
    """The Config of these options, in front of a script of no importance."""
    args = command_line.parse([*words, "train.py"])
    return config.resolve(args, {**(environ or {}), **variables}, "/usr/bin/python3", "train-3")


def list_fields(made: Config) -> dict[str, object]:
    """The values of all sections by the names of their fields; two of one name are alike."""
    found = [item for name in SECTIONS for item in asdict(getattr(made, name)).items() if item[0] != "origins"]
    assert all(dict(found)[field] == value for field, value in found)
    return {**dict(found), **{name: value.read() for name, value in made.extensions.items()}}


def list_origins(made: Config) -> dict[str, str]:
    """The origins of all sections."""
    return {field: origin for name in SECTIONS for field, origin in getattr(made, name).origins.items()}


def refusal(*words: str, **variables: str) -> tuple[str, str | None]:
    """The sentence and the hint."""
    with pytest.raises(UsageError) as caught:
        resolve(*words, **variables)
    assert caught.value.exit_code == 2
    return str(caught.value), caught.value.hint
