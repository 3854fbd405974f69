"""Every option, as a flag and by each of its variables, with texts that nobody means: a sentence each, or acceptance.

Nothing is started: what the words mean is worked out as far as an agent does it before it forks.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from launcher import extensions
from launcher.agent import membership
from launcher.config.config import Config
from launcher.config.options import table
from launcher.config.options.readers import Option
from launcher.model.errors import UsageError
from launcher.placement.adapter import feasibility
from tests.support.options import list_fields, resolve

RUBBISH = {
    "empty": "", "blanks": " \t ", "zero": "0", "minus one": "-1", "a fraction": "1.5", "an exponent": "1e3",
    "not a number": "NaN", "infinity": "-inf", "a huge number": "9" * 30, "too many digits": "9" * 5000,
    "a huge time": "1e308", "past any float": "1e999", "underscores": "1_000", "digits of another script": "४२",
    "a superscript": "²", "words": "no such thing", "unicode": "zürich-節点", "a smile": "🙂",
    "right to left": "\u202eabc", "control characters": "\x01\x1b[31mred\x7f", "a newline": "1\n2",
    "not UTF-8": b"caf\xe9".decode(errors="surrogateescape"), "very long": "x" * 100_000,
    "a long list": "a=1," * 20_000, "commas": ",,,", "colons": ":::", "one colon": ":",
    "a path": "../../etc/passwd", "a format": "%s{0}${HOME}", "brackets": "[[[", "half an address": "[::1",
    "a flag": "--nnodes", "backwards": "9:1", "stars": "dp=*,tp=*",
}  # fmt: skip
# Where nodes meet, other options matter than on one machine; of several values the last one counts.
NETWORKS = (
    ["--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=h:29400", "--mesh=dp=*,tp=2"],
    ["--nnodes=2", "--rdzv-endpoint=etcd://h", "--rdzv-id=7"],
    ["--nnodes=2", "--master-addr=h", "--node-rank=1"],
)
OPTIONS = [option for option in (*table.list_options(), *table.SETTINGS) if option.read is not None]


def judged(words: list[str], environ: dict[str, str]) -> Config | UsageError:
    """The Config of a command line, checked as far as an agent does before it starts anything, or the refusal."""
    try:
        made = resolve(*words, environ=environ)
        membership.make_settings(made.rendezvous, made.workers.max_restarts, made.shutdown.shutdown_timeout_s)
        feasibility.resolve_limits(made.placement)
    except UsageError as error:
        return error
    return made


def ways(option: Option, number: int, text: str) -> Iterator[tuple[tuple[str, ...], list[str], dict[str, str]]]:
    """Each way to give an option this text: what a refusal may name, words, variables. `number`: of the text."""
    for variable in option.variables:
        yield (variable,), [], {variable: text}
    if option.source == "variable":
        return
    word = f"{option.flag}={text}"
    yield (option.name,), [word], {}
    # With others a text such as "1" may be right, and one of them wrong beside it.
    network = NETWORKS[number % len(NETWORKS)]
    yield (option.name, "--nnodes", "--node-rank"), [*network, word], {}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_rubbish_is_accepted_or_refused_with_its_place_told(option: Option, capsys: pytest.CaptureFixture[str]) -> None:
    amiss = []
    for number, (kind, text) in enumerate(RUBBISH.items()):
        for places, words, environ in ways(option, number, text):
            found = judged(words, environ)
            if isinstance(found, UsageError):
                sentence = str(found)
                is_named = any(place in sentence for place in places)
                if not is_named or not sentence.isprintable() or len(sentence) > 1000:
                    amiss.append(f"{kind} by {places[0]}: {sentence[:200]!r}")
                if found.hint is not None and (not found.hint.isprintable() or len(found.hint) > 300):
                    amiss.append(f"{kind} by {places[0]}, hint: {found.hint[:200]!r}")
            else:
                notes = [note for note in found.notes if not note.isprintable()]
                amiss += [f"{kind} by {places[0]}, note: {note[:200]!r}" for note in notes]
    told = capsys.readouterr().err
    amiss += [f"said: {line[:200]!r}" for line in told.splitlines() if not line.isprintable()]
    assert not amiss, "\n".join(amiss)


# What a person would write; a flag is 1, a count 2, a time 20.
SENSIBLE = {
    "nnodes": "2:3", "nproc-per-node": "4", "devices": "nvidia:2", "visible-env": "FOO_VISIBLE",
    "devices-per-worker": "all", "mesh": "dp=*,tp=2", "elastic": "1:2", "traffic": "dp=3", "level-costs": "host=3",
    "rates": "host=4Gbit", "unit": "1", "within": "dp=host", "whole": "rack:2", "role": "trainer",
    "signals-to-handle": "SIGTERM", "preemption-signal": "SIGUSR1", "preemption-file": "soon", "notices": "off",
    "progress-file": "step", "store-outage": "stop", "presence-proof": "off", "log-dir": "logs", "redirects": "3",
    "tee": "0:1", "local-ranks-filter": "0", "rdzv-backend": "etcd", "rdzv-endpoint": "k:29400", "rdzv-id": "run",
    "rdzv-conf": "timeout=9", "rdzv-prefix": "jobs", "node-name": "n1", "grow": "never", "on-finished": "exit",
    "master-addr": "m", "local-addr": "l", "interface": "eth9", "port-range": "1:9", "worker-port-range": "1:9",
    "duplicate-stdout-filters": "loss", "duplicate-stderr-filters": "loss", "logs-specs": "mine",
    "event-log-handler": "console", "log-times": "on", "events": "events", "notify": "true", "request-nodes": "true",
    "progress": "kubeflow", "start-method": "fork", "numa-binding": "node", "locality": "zone=a,leaf=l3",
    "locality-sources": "none", "framework": "jax", "device-binding": "visible", "health-check": "true",
    "hang-timeout": "7", "serve": "8080", "metrics-port": "9400", "metrics-file": "meshrun.prom", "on-hang": "restart",
    "preload": "torch", "hang-evidence": "0",
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_variables_of_an_option_mean_what_the_flag_means(option: Option) -> None:
    numbers = {"": "1", "N": "2", "PORT": "2", "SETS": "2", "SECONDS": "20"}
    text = SENSIBLE.get(option.name) or numbers[option.metavar]
    flag = f"{option.flag}={text}" if option.takes_value else option.flag
    has_effect = False
    for base in ([], *NETWORKS):
        others = [word for word in base if not word.startswith(f"{option.flag}=")]
        is_setting = option.source == "variable"
        by_flag = meaning(others, {option.flag: text}) if is_setting else meaning([*others, flag], {})
        for variable in option.variables:
            assert meaning(others, {variable: text}) == by_flag
        has_effect = has_effect or by_flag != meaning(others, {})
    assert has_effect == (not option.why_ignored)


def meaning(words: list[str], environ: dict[str, str]) -> dict[str, object] | None:
    """What is made of it, but for where it was said; None if it is refused."""
    found = judged(words, environ)
    return list_fields(found) if isinstance(found, Config) else None


def test_the_table_of_extensions_names_the_rows_that_their_folders_declare() -> None:
    folders = Path(extensions.__file__).parent
    modules = [f"launcher.extensions.{path.parent.name}.options" for path in folders.glob("*/options.py")]
    declared = {row.name: f"{module}:ROWS" for module in modules for row in getattr(import_module(module), "ROWS", ())}
    assert declared == extensions.OPTIONS
    assert not [name for name in declared if name in table.BY_NAME]


def test_rows_of_an_extension_are_imported_where_one_is_set_and_by_no_other_start() -> None:
    code = "import sys\nfrom launcher.agent import command\n{}\nprint([name for name in sys.modules if '{}' in name])"
    for words, loaded in (
        ("['--nproc=2', 't.py']", []),  # a beginning of torchrun's
        ("['--serve=0', 't.py']", ["launcher.extensions.page", "launcher.extensions.page.options"]),
    ):
        script = code.format(f"command.parse({words}, {{}})", "launcher.extensions.")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert ast.literal_eval(done.stdout) == loaded
