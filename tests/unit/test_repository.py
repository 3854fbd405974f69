"""The rules of the repository that a machine can check: what a file may hold, and that what is written twice agrees."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from docs import events, meshctl, options, settings, tested
from docs.images import idea, life, packages, round
from tests.support.documents.pages import ROOT, anchors, blocks, links, pages

FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "launcher", "rendezvous", "tests")
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".svg", ".typed", ".sh", ".sbatch", ".service", ""}
# A ratchet: it does not grow unless the commit that raises it says why. Lines of code are those that are not blank,
# comment, docstring or the text below a field, so that explaining costs nothing.
CODE_MAX = 
