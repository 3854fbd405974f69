"""A script that is not there, or is none of Python's."""

from __future__ import annotations

import os
import re
from glob import escape, glob

from launcher.extensions.hints.habits import explain_command
from launcher.model import odd_text
from launcher.model.errors import sanitize, suggest

# One that is Python's too has a second line that Python reads as a text, with three quotes.
_SHELL_LINES = (b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/bash", b"#!/usr/bin/env bash", b"#!/usr/bin/env sh")


def explain_missing_script(script: str, mesh: str) -> str:
    """Return the next step for a script that does not exist. `mesh`: the one that was given, "" for none."""
    called = sanitize(script)
    directory, name = os.path.split(script)
    if cause := odd_text.explain(script) or explain_command(script):
        return cause
    if "=" in name and mesh:
        return f"separate axes with commas: --mesh {mesh},{called}"
    if re.match("[A-Z_]+=", name):
        return f"put {called} before meshrun: it sets a variable"
    if "=" in name:
        return "separate the parts of an option's value with commas, without blanks"
    if " " in name and name.partition(" ")[0].endswith(".py"):
        return "write the script and its arguments as separate words, without quotes around all of them"
    if script.startswith("~"):
        return "write the path of the home directory in full: no shell has replaced ~"
    if "/slurmd/" in directory and "SLURM_SUBMIT_DIR" in os.environ:
        return f"use $SLURM_SUBMIT_DIR/{sanitize(name)}: sbatch copies only its own script to {sanitize(directory)}"
    near = (re.split("[:,]", script)[0], name, *glob(f"*/{escape(name)}"))
    if place := next(filter(os.path.isfile, near), ""):
        return f"did you mean {sanitize(place)}?"
    try:
        present = os.listdir(directory or ".")
    except OSError:
        return f"check the path: no such directory: {sanitize(directory)}"
    # The ending alone makes two names of scripts alike.
    question = suggest(name, {entry: os.path.join(directory, entry) for entry in present}, similarity=0.8)
    if question:
        return question
    try:
        return f"check the current directory: it is {os.getcwd()}"
    except OSError:
        return "change the directory: the current one has been removed"


def explain_content(script: str, start: bytes, is_executable: bool, is_path: bool = False) -> tuple[str, str] | None:
    """Return why this file is no Python script, and the next step; None if it may be one.

    `start`: its first bytes. `is_path`: with --run-path, which overrides --no-python.
    """
    called = sanitize(script)
    if start.startswith(b"\x7fELF"):
        return f"{called} is a program, not a Python script", explain_command(script) or "add --no-python to run it"
    if script.endswith(".ipynb"):
        return f"{called} is a notebook", f"convert it first: jupyter nbconvert --to script {called}"
    if not script.endswith((".sh", ".bash")) and not (start.startswith(_SHELL_LINES) and b"'''" not in start):
        return None
    is_program = is_executable and start.startswith(b"#!")
    command = f"--no-python {_name_with_directory(script) if is_program else f'bash {called}'}"
    hint = f"leave out --run-path, and write {command}" if is_path else f"write {command}"
    return f"{called} is a shell script, not a Python script", hint


def _name_with_directory(script: str) -> str:
    return sanitize(script if "/" in script else f"./{script}")
