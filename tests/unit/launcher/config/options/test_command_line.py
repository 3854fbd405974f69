"""Taking a command line apart, and where an option's value comes from."""

from __future__ import annotations

import pytest

from launcher.config import help
from launcher.config.options import command_line, table
from launcher.config.options.readers import Value
from launcher.model.errors import UsageError


def given(*words: str) -> dict[str, str]:
    """The option values in front of a script."""
    parsed = command_line.parse([*words, "train.py"])
    assert parsed.script == "train.py"
    return dict(parsed.values)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--nproc-per-node 4", {"nproc-per-node": "4"}),
        ("--nproc_per_node=4", {"nproc-per-node": "4"}),
        ("--nproc-per_node 4", {"nproc-per-node": "4"}),
        ("--np=4", {"nproc-per-node": "4"}),
        ("--nproc-per-node=1 --nproc-per-node=4", {"nproc-per-node": "4"}),
        ("-r3", {"redirects": "3"}),
        ("-r 3", {"redirects": "3"}),
        ("-r=3", {"redirects": "3"}),
        ("--redirect=3", {"redirects": "3"}),
        ("-mt3", {"module": "1", "tee": "3"}),
    ],
)
def test_every_spelling_of_an_option_means_the_same(words: str, values: dict[str, str]) -> None:
    assert given(*words.split()) == values


def test_values_may_be_empty_or_negative_and_an_empty_text_is_none() -> None:
    assert given("--role=") == {"role": ""}
    assert given("--role", "") == {"role": ""}
    assert given("--max-restarts", "-1") == {"max-restarts": "-1"}
    assert given("--role", "-a b") == {"role": "-a b"}
    assert given("--rdzv-conf=a=1,b=2") == {"rdzv-conf": "a=1,b=2"}
    empty = dict.fromkeys(("PET_LOG_DIR", "PET_MAX_RESTARTS", "LAUNCHER_STANDALONE", "LAUNCHER_LEASE_TTL"), "")
    found = command_line.resolve_values({"rdzv-endpoint": ""}, {**empty, "PET_STANDALONE": "1"})
    for name in ("log-dir", "rdzv-endpoint", "max-restarts", "lease-ttl"):
        assert found[name].is_default
    assert found["standalone"].origin == "PET_STANDALONE"
    assert command_line.resolve_values({"max-restarts": ""}, {})["max-restarts"].origin == "--max-restarts"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("--max-r", "max-restarts"),
        ("--st", None),
        ("--stan", "standalone"),
        ("--t", "tee"),  # ours are --target-nodes and --traffic, but torchrun has only --tee
        ("--no", None),
        ("--no-", "no-python"),
        ("--v", "virtual-local-rank"),  # before our --version
        ("--ver", "version"),
        ("--h", "help"),
        ("--gro", "grow"),
        ("--grow", "grow"),
        ("--m", None),
    ],
)
def test_prefixes_resolve_among_torchruns_names_first(spelling: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(UsageError, match=f"^{spelling} could mean --"):
            command_line.find_option(spelling)
    else:
        assert command_line.find_option(spelling).name == name


def test_what_follows_the_script_is_the_scripts_less_one_double_dash_beside_it() -> None:
    words = command_line.parse(
        ["--nproc-per-node", "2", "train.py", "--nproc-per-node", "8", "-h", "--", "--no-such", "-r3"]
    )
    assert words.values == {"nproc-per-node": "2"}
    assert words.script_args == ("--nproc-per-node", "8", "-h", "--", "--no-such", "-r3")
    assert command_line.parse(["-m", "--", "pkg", "--", "a"]) == command_line.ParsedArgs(
        {"module": "1"}, "pkg", ("--", "a")
    )
    assert command_line.parse(["train.py", "--", "--lr=1", "--"]).script_args == ("--lr=1", "--")
    assert command_line.parse(["train.py", "a", "--", "b"]).script_args == ("a", "--", "b")
    assert command_line.parse(["--", "--odd.py"]).script == "--odd.py"
    assert command_line.parse(["--"]).script is None

    assert command_line.parse(["-", "a"]) == command_line.ParsedArgs({}, "-", ("a",))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nproc-per-node"], "--nproc-per-node needs a value"),
        (["--nproc-per-node", "--standalone"], "--nproc-per-node needs a value"),
        (["-r"], "--redirects needs a value"),
        (["-r", "--", "x"], "--redirects needs a value"),
        (["--standalone=1", "x.py"], "--standalone is a flag and takes no value, --standalone=1 gives it one"),
        (["--master", "x.py"], "--master could mean --master-addr or --master-port"),
        # The value may be a password for the script, given before its name.
        (["-ptoken", "x.py"], "unknown option -p"),
        (["-p=token", "x.py"], "unknown option -p"),
        (["--pw=token", "x.py"], "unknown option --pw"),
    ],
)
def test_a_word_that_cannot_be_taken_is_named_without_a_value(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        command_line.parse(words)
    assert str(caught.value) == sentence
    if "needs a value" in sentence:
        assert caught.value.hint in (
            "write --nproc-per-node N|auto|gpu|cpu|xpu|...",
            "write --redirects 0-3|RANK:0-3,...",
        )


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--nporc-per-node", "did you mean --nproc-per-node?"),
        ("--nprco_per_node=4", "did you mean --nproc-per-node?"),
        ("--mehs", "did you mean --mesh?"),
        ("--npoc", "did you mean --nproc-per-node?"),
        ("--qqqq", "run meshrun -h for the options; options of the script go after its name"),
        ("-nporc-per-node", "did you mean --nproc-per-node?"),
        ("-y", "run meshrun -h for the options; options of the script go after its name"),
        ("-x", "export the variable: workers inherit the environment"),
    ],
)
def test_an_unknown_option_gets_a_near_miss_suggested(word: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        command_line.parse([word, "x.py"])
    assert str(caught.value) == f"unknown option {word.partition('=')[0]}"
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("words", "asks", "topic"),
    [
        (["-h"], "-h", ""),
        (["--help"], "--help", ""),
        (["-h", "output"], "-h", "output"),
        (["--help=output"], "--help", "output"),
        (["--help=no_such.py"], "--help", "no_such.py"),
        (["-h", "train.py"], "-h", ""),
        (["--version"], "--version", ""),
        (["--completion", "bash"], "--completion", "bash"),
        (["--completion=fish"], "--completion", "fish"),
    ],
)
def test_help_and_version_can_be_asked_before_the_script(words: list[str], asks: str, topic: str) -> None:
    parsed = command_line.parse(words)
    assert (parsed.action, parsed.topic) == (asks, topic)


@pytest.mark.parametrize("name", ["mesh", "logs-specs", "numa-binding"])
def test_options_that_torchrun_reads_from_no_variable_have_none_of_its(name: str) -> None:
    variable = f"PET_{name.upper().replace('-', '_')}"
    assert command_line.resolve_values({}, {variable: "x"})[name].is_default


def test_names_are_unique_and_the_flag_wins_over_launcher_over_pet() -> None:
    options = table.list_options()
    assert len({option.name for option in options}) == len(options)
    assert {option.group for option in options} == set(help.GROUPS)
    environ = {"LAUNCHER_ROLE": "second", "PET_ROLE": "third"}
    found = command_line.resolve_values({"role": "first"}, environ)["role"]
    assert (found.text, found.origin, str(found)) == ("first", "--role", "--role first")
    found = command_line.resolve_values({}, environ)["role"]
    assert (found.text, found.origin, str(found)) == ("second", "LAUNCHER_ROLE", "LAUNCHER_ROLE=second")
    del environ["LAUNCHER_ROLE"]
    assert command_line.resolve_values({}, environ)["role"].origin == "PET_ROLE"
    assert command_line.resolve_values({}, {})["role"] == Value(table.BY_NAME["role"], "default", "default")
