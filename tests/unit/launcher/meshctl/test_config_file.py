"""The configuration file of meshctl: what is written is read again, and what could mislead is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.meshctl.config_file import apply_config, check_setting, find_path, read_config, write_config
from launcher.model.errors import UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "config.toml"


def test_what_is_written_is_read_again_and_for_its_owner_only(path: Path) -> None:
    values = {"rdzv-endpoint": "etcds://h1:2379,h2", "rdzv-conf": 'cacert=/a "b"\\c,user=ü'}
    write_config(str(path), values)
    assert read_config(str(path)) == values
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_it_is_toml(path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    values = {"rdzv-endpoint": "h1:2379", "rdzv-conf": 'cacert=/a "b"\\c,user=ü'}
    write_config(str(path), values)
    assert tomllib.loads(path.read_text()) == values


def test_a_file_written_by_hand(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('# mine\n\n  rdzv_endpoint="h1" # old\n')
    path.chmod(0o600)
    assert read_config(str(path)) == {"rdzv-endpoint": "h1"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[store]\n", 'line 1: \\[store\\] is not of the form name = "text"'),
        ("rdzv-endpoint = h1\n", "line 1: rdzv-endpoint = h1 is not of the form"),
        ('\nrdzv-endpiont = "h1"\n', "line 2: unknown setting rdzv-endpiont"),
        ('rdzv-endpoint = "\\x41"\n', "is not a text in double quotes"),
        ('rdzv-endpoint = "' + "x" * 70_000, "is not a file of at most 65,536 bytes"),
    ],
)
def test_what_is_no_setting_is_refused_with_its_line(path: Path, text: str, sentence: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=sentence):
        read_config(str(path))


def test_a_file_that_others_can_change_is_refused(path: Path) -> None:
    write_config(str(path), {"rdzv-endpoint": "h1"})
    path.chmod(0o620)
    with pytest.raises(UsageError, match=r"can be changed by other users \(mode 620\)") as refused:
        read_config(str(path))
    assert refused.value.hint == f"chmod 600 {path}"


def test_no_file_is_no_setting(path: Path, tmp_path: Path) -> None:
    assert read_config(str(path)) == {}
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_config(str(tmp_path))


def test_where_it_is() -> None:
    assert find_path({"LAUNCHER_CONFIG": "x.toml", "HOME": "/h"}) == "x.toml"
    assert find_path({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == "/x/meshrun/config.toml"
    assert find_path({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}) == "/h/.config/meshrun/config.toml"


def test_flags_and_variables_win(path: Path) -> None:
    write_config(str(path), {"rdzv-endpoint": "h1", "rdzv-prefix": "mine", "store-token-file": "/t"})
    environ = {"LAUNCHER_CONFIG": str(path)}
    found, used = apply_config({}, environ)
    assert (found["LAUNCHER_RDZV_ENDPOINT"], found["LAUNCHER_RDZV_PREFIX"]) == ("h1", "mine")
    assert (found["LAUNCHER_STORE_TOKEN_FILE"], used) == ("/t", str(path))
    assert apply_config({}, {**environ, "LAUNCHER_RDZV_PREFIX": "b"})[0]["LAUNCHER_RDZV_PREFIX"] == "b"
    assert "LAUNCHER_RDZV_PREFIX" not in apply_config({"rdzv-prefix": "b"}, environ)[0]
    assert "LAUNCHER_STORE_TOKEN_FILE" not in apply_config({}, {**environ, "LAUNCHER_STORE_TOKEN": "t"})[0]


@pytest.mark.parametrize("variable", ["LAUNCHER_RDZV_ENDPOINT", "PET_RDZV_ENDPOINT", ""])
def test_nothing_of_the_file_goes_to_another_store(path: Path, variable: str) -> None:
    write_config(str(path), {"rdzv-endpoint": "h1", "store-token-file": "/t"})
    environ = {"LAUNCHER_CONFIG": str(path), **({variable: "h2"} if variable else {})}
    flags = {} if variable else {"rdzv-endpoint": "h2"}
    assert apply_config(flags, environ) == (environ, "")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("rdzv-endpiont", "h1", "unknown setting rdzv-endpiont"),
        ("rdzv-backend", "redis", "redis"),
        ("store-token-file", "token", "store-token-file must be an absolute path, not token"),
        ("rdzv-conf", "password=secret", "password"),
        ("rdzv-endpoint", "h1\x1b", "has control characters"),
    ],
)
def test_a_setting_is_checked_before_it_is_written(name: str, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        check_setting(name, text)
    assert "secret" not in str(refused.value)
