"""Every option of the command, in one table.

The parser below, the help, the reference page, the variables an option can be set by and the suggestions
for a misspelt flag are all read from `TABLE`, so they cannot disagree. Names, spellings and defaults are
torchrun 2.13's where it has the option; an option that does not work yet is in the table too, so that it is
refused by name and never ignored.

The words of a command line are read by this table and not by click: importing click alone takes as long as
everything else before the first worker (docs/internals/decisions/table-parsing.md). What a value means is
not decided here but in `config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from launcher.errors import UsageError

Kind = Literal["text", "flag", "count", "seconds", "ask"]
State = Literal["works", "not yet", "no effect"]
Source = Literal["torchrun", "torchrun without variable", "ours"]


class Option(NamedTuple):
    """One row. `default` is what stands for "not given", as a person would write it ("" when there is nothing).

    `kind`: how the value is written: text; a flag (in a variable 0 or 1); a count (a whole number); seconds; or
    "ask" for -h and --version, which have no variable. `state`: "no effect" options are accepted with a remark.
    `source`: whose name it is; torchrun's come first when a prefix is completed, and have a PET_ variable, but for
    two that torchrun reads from none. `last_variable`: one more, outside both families, that is read last.
    """

    name: str
    kind: Kind
    metavar: str
    default: str
    help: str
    group: str
    state: State = "works"
    short: str = ""
    source: Source = "torchrun"
    last_variable: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to write it out: the short form, with dashes, with underscores."""
        underscored = "--" + self.name.replace("-", "_")
        return tuple(dict.fromkeys(filter(None, (self.short, self.flag, underscored))))

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that set it, strongest first."""
        if self.kind == "ask":
            return ()
        suffix = self.name.replace("-", "_").upper()
        pet = f"PET_{suffix}" if self.source == "torchrun" else ""
        return tuple(filter(None, (f"LAUNCHER_{suffix}", pet, self.last_variable)))

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("flag", "ask")


# The parts of the help: what `-h NAME` takes, and its heading. Each fits a screen.
GROUPS = {
    "size": "How many workers, and the grid they form",
    "placement": "Which node gets which ranks",
    "script": "What a worker runs",
    "restarts": "When something fails or stops",
    "output": "Where the output goes",
    "meeting": "How the nodes of a job find each other",
    "addresses": "Addresses and ports",
    "missing": "torchrun's options that do not work yet",
    "planned": "Options of our own that do not work yet",
    "help": "Help",
}


def _later(name: str, kind: Kind, metavar: str, default: str, help: str, source: Source = "torchrun") -> Option:
    group = "planned" if source == "ours" else "missing"
    return Option(name, kind, metavar, default, help, group, state="not yet", source=source)


# fmt: off
TABLE: tuple[Option, ...] = (
    Option("nnodes", "text", "N|MIN:MAX", "1:1", "Nodes of the job. This version runs on one.", "size"),
    Option("nproc-per-node", "text", "N|auto|gpu|cpu", "auto if accelerators are found, else 1",
           "Workers on this node.", "size"),
    Option("devices-per-worker", "text", "N|all", "1", "Devices a worker gets for itself.", "size", source="ours"),
    Option("mesh", "text", "AXIS=SIZE,...", "dp=*", "The grid of ranks, outermost axis first, e.g. pp=4,dp=*,tp=8; "
           "one axis may be * and takes what is there.", "size", source="ours"),
    Option("elastic", "text", "MIN:MAX", "1:", "Sizes the axis with * may take; N, MIN: and :MAX will do.",
           "size", source="ours"),
    Option("dp-min", "count", "N", "1", "The same as --elastic N: for the axis with *.", "size", source="ours"),
    Option("dp-max", "count", "N", "none", "The same as --elastic :N for the axis with *.", "size", source="ours"),

    Option("traffic", "text", "AXIS=WEIGHT[:KIND],...", "tp=100,cp=30,ep=20,dp=10,pp=3", "Bytes a rank sends along an "
           "axis, in proportion; A+B is one group over both. KIND is ring, line or all.", "placement", source="ours"),
    Option("tolls", "text", "LEVEL=TOLL,...", "host=1, then 2, 4, 8, ...",
           "Cost of leaving a domain of a level.", "placement", source="ours"),
    Option("unit", "count", "N", "inner axes that fit a node", "Consecutive ranks that stay on one node.",
           "placement", source="ours"),
    Option("within", "text", "AXIS=LEVEL,...", "", "Every group of the axis stays inside one domain of the level; "
           "one machine knows only host.", "placement", source="ours"),
    Option("whole", "text", "LEVEL[:HOSTS]", "", "Domains of the level are used with all their HOSTS nodes or not at "
           "all; one machine knows none.", "placement", source="ours"),
    Option("move-cost", "text", "COST", "5 % of the plan for all", "Cost of moving a rank to another node.",
           "placement", source="ours"),

    Option("module", "flag", "", "0", "SCRIPT is a module, run as by python -m.", "script", short="-m"),
    Option("no-python", "flag", "", "0", "SCRIPT is a program, run without Python.", "script"),
    Option("run-path", "flag", "", "0", "Run SCRIPT by runpy.run_path. Wins over --no-python.", "script"),
    Option("role", "text", "NAME", "default", "Name of the workers, seen in ROLE_NAME and in prefixes.", "script"),
    Option("virtual-local-rank", "flag", "", "0", "Every worker sees LOCAL_RANK 0 and its own GPU as device 0.",
           "script"),

    Option("max-restarts", "count", "N", "0", "How often the workers are restarted before the job fails.", "restarts"),
    Option("shutdown-timeout", "seconds", "SECONDS", "30", "From the stop signal to the kill.", "restarts",
           last_variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    Option("signals-to-handle", "text", "NAME,...", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
           "Signals that are passed on to the workers and stop the job.", "restarts"),
    Option("lease-ttl", "seconds", "SECONDS", "none on one machine", "If the agent freezes for so many seconds, its "
           "workers are killed.", "restarts", source="ours"),
    Option("monitor-interval", "seconds", "SECONDS", "0.1", "No effect: nothing here polls.", "restarts",
           state="no effect"),

    Option("log-dir", "text", "DIR", "a temporary directory", "Base directory of the log files; each run makes its own "
           "below it.", "output"),
    Option("redirects", "text", "0-3|RANK:0-3,...", "0", "Log files instead of the console: 0 for nothing, 1 "
           "stdout, 2 stderr, 3 both.",
           "output", short="-r"),
    Option("tee", "text", "0-3|RANK:0-3,...", "0", "Log files and the console, likewise.", "output", short="-t"),
    Option("local-ranks-filter", "text", "RANK,...", "all", "Local ranks whose output the console shows.", "output"),

    Option("standalone", "flag", "", "0", "One node that meets nobody: the other options of this group, --node-rank, "
           "--master-addr and --master-port then have no effect.", "meeting"),
    Option("rdzv-backend", "text", "static|c10d", "static", "On one node both mean the agent's own store.", "meeting"),
    Option("rdzv-endpoint", "text", "HOST[:PORT]", "", "With static: the master's address. Else no effect on one node.",
           "meeting"),
    Option("rdzv-id", "text", "ID", "random", "Name of the run.", "meeting"),
    Option("rdzv-conf", "text", "KEY=VALUE,...", "", "torchrun's further settings. No effect on one node.", "meeting"),

    Option("node-rank", "count", "N", "0", "On one node it can only be 0.", "addresses"),
    Option("master-addr", "text", "ADDRESS", "--local-addr, else loopback", "MASTER_ADDR of the workers.", "addresses"),
    Option("master-port", "count", "PORT", "a fresh free one for every round", "MASTER_PORT of the workers.",
           "addresses"),
    Option("local-addr", "text", "ADDRESS", "loopback", "This node's address, as others reach it.", "addresses"),

    _later("start-method", "text", "METHOD", "spawn", "How worker processes are made."),
    _later("event-log-handler", "text", "NAME", "null", "Where events go."),
    _later("logs-specs", "text", "NAME", "", "A plug-in for logs.", "torchrun without variable"),
    _later("duplicate-stdout-filters", "text", "TEXT,...", "", "Copy matching stdout."),
    _later("duplicate-stderr-filters", "text", "TEXT,...", "", "Copy matching stderr."),
    _later("numa-binding", "text", "MODE", "", "Bind workers to CPUs.", "torchrun without variable"),
    _later("target-nodes", "count", "N", "", "Nodes to wait for at the start.", "ours"),
    _later("start-timeout", "seconds", "SECONDS", "", "Limit of that wait.", "ours"),
    _later("join-grace", "seconds", "SECONDS", "", "Wait for further nodes.", "ours"),
    _later("grow", "text", "never|delay|checkpoint", "", "When new nodes are used.", "ours"),
    _later("grow-delay", "seconds", "SECONDS", "", "Quiet before growing.", "ours"),
    _later("port-range", "text", "FIRST:LAST", "", "Ports to listen on.", "ours"),
    _later("interface", "text", "NAME", "", "Network interface to use.", "ours"),
    _later("preload", "text", "MODULE,...", "", "Import once, fork workers.", "ours"),

    Option("help", "ask", "[GROUP]", "", "This text, or the part of it that is called GROUP.", "help", short="-h"),
    Option("version", "ask", "", "", "The version of meshrun.", "help", source="ours"),
)
# fmt: on

# What `demand` reads, against the mesh and the network's levels.
DEMANDS = ("traffic", "unit", "within", "whole", "tolls", "elastic", "dp-min", "dp-max", "move-cost")

BY_NAME = {option.name: option for option in TABLE}
_BY_SHORT = {option.short: option for option in TABLE if option.short}


class Words(NamedTuple):
    """A command line taken apart. `values`: option name -> the text given, "1" for a flag.

    `asks` is "help" (perhaps with the group in `topic`) or "version" when nothing is to be run.
    """

    values: Mapping[str, str]
    script: str | None = None
    script_args: tuple[str, ...] = ()
    asks: Literal["", "help", "version"] = ""
    topic: str = ""


def parse(words: Sequence[str]) -> Words:
    """Take a command line apart, by argparse's rules. Raises UsageError for what no option can mean.

    Options end at the first word that is none: the script. All that follows is the script's, untouched. One `--`
    directly before or behind the script is dropped, as by torchrun; any other is the script's. The last of several
    values counts.
    """
    values: dict[str, str] = {}
    at = 0
    is_dashed = False
    while at < len(words) and _looks_like_flag(words[at]):
        word = words[at]
        at += 1
        if word == "--":
            is_dashed = True
            break
        for option, attached in _options_in(word):
            if option.kind == "ask":
                topic = attached or (words[at] if at < len(words) else "")
                asks: Literal["help", "version"] = "help" if option.name == "help" else "version"
                return Words(values, asks=asks, topic=topic if topic in GROUPS else "")
            if option.kind == "flag":
                values[option.name] = "1"
            elif attached is not None:
                values[option.name] = attached
            elif at < len(words) and _can_be_value(words[at]):
                values[option.name] = words[at]
                at += 1
            else:
                raise UsageError(f"{option.flag} needs a value", f"{option.flag} {option.metavar}")
    if at == len(words):
        return Words(values)
    script, *rest = words[at:]
    if rest[:1] == ["--"] and not is_dashed:
        del rest[0]
    return Words(values, script=script, script_args=tuple(rest))


def _looks_like_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def _can_be_value(word: str) -> bool:
    """Whether the word after an option is its value: argparse's rule, by which -1 and "-a b" are values."""
    return not _looks_like_flag(word) or word[1:].replace(".", "", 1).isdigit() or " " in word


def _options_in(word: str) -> Iterable[tuple[Option, str | None]]:
    """The options of one word, each with the value attached to it: --tee=3, -t3, -t=3, or several as in -mt3."""
    if word.startswith("--"):
        name, equals, attached = word.partition("=")
        option = find(name)
        if equals and not option.takes_value and option.name != "help":
            raise UsageError(f"{option.flag} is a flag and takes no value, {word} gives it one")
        yield option, attached if equals else None
        return
    rest = word[1:]
    while rest:
        letter, rest = f"-{rest[0]}", rest[1:]
        if letter not in _BY_SHORT:
            raise _unknown(word)
        option = _BY_SHORT[letter]
        if not option.takes_value:
            yield option, None
            continue
        yield option, (rest.removeprefix("=") if rest else None)
        return


def find(spelling: str) -> Option:
    """The option that `spelling` (--name, --na_me or the start of one) means. Raises UsageError for none or several.

    torchrun's own names are tried first, so that a prefix which is complete there means the same here.
    """
    name = spelling[2:].replace("_", "-")
    if name in BY_NAME:
        return BY_NAME[name]
    if name:
        begun = [option for option in TABLE if option.name.startswith(name)]
        for found in ([option for option in begun if option.source != "ours"], begun):
            if len(found) == 1:
                return found[0]
            if found:
                raise UsageError(f"{spelling} could mean {' or '.join(option.flag for option in found)}")
    raise _unknown(spelling)


def _unknown(word: str) -> UsageError:
    spelling = word.partition("=")[0]
    names = {option.name: option.flag for option in TABLE}
    return UsageError(
        f"unknown option {spelling}",
        did_you_mean(spelling.lstrip("-").replace("_", "-"), names)
        or "meshrun -h lists the options; options of the script stand behind its name",
    )


def did_you_mean(word: str, known: Mapping[str, str], likeness: float = 0.7) -> str:
    """The question after a misspelt word, or "" if nothing is near. `known`: what it may be -> how to write that.

    `likeness` runs from 0 to 1, the same word; 0.7 takes --mehs for --mesh.
    """
    from difflib import get_close_matches  # only on the way to an error

    close = get_close_matches(word, known, n=1, cutoff=likeness)
    if not close:
        # The beginning of a name is a name too, and may be misspelt: --npoc for --nproc-per-node.
        beginnings = {name[: len(word) + 1]: name for name in known}
        close = [beginnings[start] for start in get_close_matches(word, beginnings, n=1, cutoff=likeness)]
    return f"did you mean {known[close[0]]}?" if close else ""


class Given(NamedTuple):
    """An option's text and where it was found: its flag, a variable, or "default" (then the text is not used)."""

    option: Option
    text: str
    origin: str

    @property
    def is_default(self) -> bool:
        return self.origin == "default"

    @property
    def is_flag(self) -> bool:
        return self.origin.startswith("--")

    @property
    def text_if_given(self) -> str | None:
        return None if self.is_default else self.text

    def __str__(self) -> str:
        """How the user wrote it, for messages."""
        if self.is_flag:
            return self.origin if self.option.kind == "flag" else f"{self.origin} {self.text}"
        return f"{self.origin}={self.text}"


def gather(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Given]:
    """Where each option's value comes from: the command line, LAUNCHER_*, PET_*, else its default.

    An empty text counts as not given. Raises UsageError for an option that does not work yet, unless its value is
    the default, which asks for nothing.
    """
    return {option.name: _given(option, values, environ) for option in TABLE if option.kind != "ask"}


def _given(option: Option, values: Mapping[str, str], environ: Mapping[str, str]) -> Given:
    candidates = [(option.flag, values.get(option.name)), *((name, environ.get(name)) for name in option.variables)]
    for origin, text in candidates:
        if text is None or (text == "" and option.kind == "text"):
            continue
        given = Given(option, text, origin)
        if option.state == "not yet" and text != option.default:
            if given.is_flag:
                raise UsageError(f"{option.flag} does not work yet", "leave it out for now")
            raise UsageError(f"{given}: {option.flag} does not work yet", f"unset {origin} for now")
        return given
    return Given(option, option.default, "default")
