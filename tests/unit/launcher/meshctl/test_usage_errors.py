"""What a refused command of meshctl says, and the next step: a word's only where the error is about that word."""

from __future__ import annotations

import click
import pytest

from launcher.config.options.readers import PASSWORD_HINT
from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
from launcher.meshctl.group import meshctl
from launcher.meshctl.usage_errors import explain
from launcher.model.errors import UsageError

SHELL = "let a shell replace {}, or write its value: single quotes, YAML and env files leave it as it is"


def refuse(*words: str) -> tuple[str, str | None]:
    """The sentence and the hint."""
    with pytest.raises((click.ClickException, UsageError)) as caught:
        meshctl.main(args=list(words), prog_name="meshctl", standalone_mode=False)
    found = explain(caught.value, words)
    assert isinstance(found, UsageError)
    return str(found), found.hint


@pytest.mark.parametrize("where", ["root:hunter2@etcd:2379", '"root:hunter2@etcd:2379"'])
def test_a_password_is_repeated_neither_in_the_sentence_nor_in_the_hint(where: str) -> None:
    assert refuse("status", "job", "--rdzv-endpoint", where) == (
        "--rdzv-endpoint: a user and password there can be read by other users", PASSWORD_HINT,
    )  # fmt: skip
    assert "hunter2" not in str(refuse("status", "job", f"--rdzv-endpoint={where}", "--jsno"))
    conf = f"user=root,password={where}"
    assert refuse("status", "job", "--rdzv-endpoint=h", "--rdzv-conf", conf)[1] == PASSWORD_HINT


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("stop", "job", "--timeout=$T"), SHELL.format("$T")),
        (("stop", "job", "--timeout", "$T"), SHELL.format("$T")),
        (("stop", "job", "--timeout", "x\r"), "give the file that it comes from Unix line ends"),
        (("stop", "$RUN", "--timeout", "x"), "write a number, such as 60"),
        (("stop", "job", "\u2014timeout"), "write --timeout in ASCII: it has '\\u2014' (em dash)"),
        (("stop", "$RUN", "--tiemout=5"), "did you mean --timeout?"),
        (("statsu", "$RUN"), "did you mean meshctl status?"),
        (("$COMMAND",), SHELL.format("$COMMAND")),
        (("plan", "$CLUSTER"), SHELL.format("$CLUSTER")),
        (("plan", "dgx:2x2x2", "--mesh=dp=8", "--lose=$NODE"), SHELL.format("$NODE")),
        (("plan", "none.json", "--mesh=$MESH"), "use meshctl plan -h"),
    ],
)
def test_a_word_gives_the_hint_of_an_error_that_is_about_it(words: tuple[str, ...], hint: str) -> None:
    assert str(refuse(*words)[1]).startswith(hint)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (UsageError("no run is there"), SHELL.format("$RUN")),
        (UsageError("no run is there", "name another store"), "name another store"),
    ],
)
def test_a_word_takes_over_no_hint(error: UsageError, hint: str) -> None:
    found = explain(error, ["status", "$RUN"])
    assert isinstance(found, UsageError)
    assert found.hint == hint
