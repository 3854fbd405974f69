"""The help: one screen first, a screen per group, complete when asked for, readable without colour."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import options
from launcher import extensions
from launcher.config import help
from launcher.config.options import command_line, table
from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
from launcher.meshctl.group import SECTIONS, meshctl
from tests.cli.running import Call, run
from tests.support.processes.terminal import Terminal
from tests.unit.docs.test_prose import ODD, list_sentences

MESHRUN = os.path.join(os.path.dirname(sys.executable), "meshrun")
USAGE = "[options] SCRIPT [arguments of the script]"


def test_every_option_is_in_the_help_with_its_variables_and_default() -> None:
    words = set(help.render_help().replace(",", " ").split())
    text = " ".join(help.render_help().split())
    for option in table.list_options():
        assert option.flag in words
        assert option.short == "" or option.short in words
        assert words.issuperset(option.variables)
        assert not option.takes_value or not option.default or f"[default: {option.default}]" in text


@pytest.mark.parametrize("group", help.GROUPS)
def test_each_group_fits_a_screen_and_shows_only_its_own_options(group: str) -> None:
    lines = help.render_group(group).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    flags = {word for line in lines if line.startswith("  -") for word in line.replace(",", " ").split()}
    assert {option.flag for option in table.list_options() if option.group == group} == {
        flag for flag in flags if flag.startswith("--")
    }


def test_help_is_plain_text_on_stdout_with_every_line_within_80_columns() -> None:
    outcome = run("meshrun", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == help.render_help() + "\n"
    assert "\x1b" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert outcome.out.startswith("Usage: meshrun [options] SCRIPT [arguments of the script]\n")


def test_the_first_screen_has_the_usage_common_options_and_all_groups(call: Call) -> None:
    outcome = call("meshrun", "-h")
    lines = outcome.out.splitlines()
    assert (outcome.code, outcome.err, lines[0]) == (0, "", "Usage: meshrun " + USAGE)
    assert len(lines) < 24  # the prompt follows
    assert max(map(len, lines)) <= 80
    assert set(help.GROUPS) <= set(" ".join(lines[-3:]).replace(",", "").split())
    shown = {line.split()[0] for line in lines if line.startswith("  --")}
    assert {"--nproc-per-node", "--nnodes", "--mesh", "--max-restarts"} <= shown
    for line in lines:
        if line.startswith("  meshrun "):  # an example
            assert command_line.parse(line.split()[1:]).script == "train.py"


def test_one_group_can_be_asked_for(call: Call) -> None:
    assert call("meshrun", "-h", "output").out == help.render_group("output") + "\n"
    assert call("meshrun", "--help=output").out == help.render_group("output") + "\n"
    assert help.render_group("max_restarts") == help.render_group("--max-restarts") == help.render_group("restarts")


def test_a_group_that_does_not_exist_lists_those_that_do(call: Call) -> None:
    outcome = call("meshrun", "-h", "foo")
    listed = ", ".join(help.GROUPS)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"meshrun: error: unknown group of options foo; the groups are {listed}\n"
    assert call("meshrun", "--help=localty").err.endswith("\nhint: did you mean -h locality?\n")
    for word, group in (("store", "rendezvous"), ("Network", "addresses"), ("logging", "output"), ("wait", "timeouts")):
        assert call("meshrun", "-h", word).err.endswith(f"\nhint: did you mean -h {group}?\n")
    assert set(help.GROUP_WORDS.values()) <= help.GROUPS.keys()
    assert not help.GROUP_WORDS.keys() & help.GROUPS.keys()
    assert help.render_group("elastic") == help.render_group("nproc") == help.render_group("size")
    assert help.render_group("rdzv") == help.render_group("rendezvous")
    assert call("meshrun", "-h", "train.py").out == call("meshrun", "-h").out


def show_on_terminal(word: str, pager: str) -> str:
    """What a terminal shows of the help."""
    with Terminal() as terminal:
        started = terminal.start([MESHRUN, word], env={**os.environ, "PAGER": pager, "TERM": "xterm"})
        shown = terminal.rest()
        assert started.returncode == 0
        return shown


def test_the_whole_help_goes_through_the_pager_on_a_terminal(tmp_path: Path) -> None:
    pager, seen = tmp_path / "pager", tmp_path / "seen"
    pager.write_text(f"#!/bin/sh\nexec cat > {seen}\n")
    pager.chmod(0o755)
    assert show_on_terminal("-h", str(pager)) == help.render_first_screen() + "\n"
    assert not seen.exists()
    assert show_on_terminal("--help", str(pager)) == ""
    assert seen.read_text() == help.render_help() + "\n"


@pytest.mark.parametrize("pager", ["/no/such/pager", 'less -X "'])
def test_a_pager_that_cannot_be_run_hides_nothing(pager: str) -> None:
    assert help.render_help() in show_on_terminal("--help", pager)


def test_the_version_is_one_line(call: Call) -> None:
    outcome = call("meshrun", "--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("meshrun 0.")


def test_a_reader_that_has_left_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([MESHRUN, "--help"], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_reference_page_names_every_spelling() -> None:
    """With dashes: that underscores are equivalent is said once."""
    page = options.page()
    for option in table.list_options():
        assert all(f"`{spelling}`" in page for spelling in option.spellings if "_" not in spelling)
        assert all(f"`{variable}`" in page for variable in option.variables)


def test_meshctl_alone_shows_its_commands_by_section(call: Call) -> None:
    outcome = run("meshctl")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    listed = [name for names in SECTIONS.values() for name in names]
    rows = re.findall(r"^  ([a-z]+) ", outcome.out, re.MULTILINE)
    assert rows == listed
    assert set(listed) == {*meshctl.commands, *extensions.COMMANDS}
    assert len(listed) <= 16
    assert not [name for name, command in meshctl.commands.items() if command.hidden]
    assert call("meshctl", "--version").out.startswith("meshctl 0.")


def test_a_control_character_of_a_word_is_escaped(call: Call) -> None:
    sentence = r"meshctl: error: unknown command 'no\x1bsuch'"
    assert call("meshctl", "no\x1bsuch") == (2, "", f"{sentence}\nhint: use meshctl -h to list the commands\n")


def test_the_help_is_plain_english() -> None:
    sentences = list_sentences(re.sub(r"\n +", " ", help.render_help()))
    assert not [sentence for sentence in sentences if ODD.search(sentence)]
