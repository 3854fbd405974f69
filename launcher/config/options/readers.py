"""What an option is, what a value of it is, and the readers: from a value's text to what it means.

A reader refuses an invalid text in one sentence, a UsageError that names the flag or the variable, and knows only its
own option. What options mean together is in `launcher.config.config` and `launcher.config.options.rendezvous`.
"""

from __future__ import annotations

import keyword
import signal
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from launcher import extensions
from launcher.model import mesh as meshes
from launcher.model.errors import UsageError, sanitize, suggest
from launcher.model.mesh import Mesh

NumaMode = Literal["node", "socket", "exclusive", "core-complex"]
OptionSource = Literal["torchrun", "torchrun without variable", "ours", "variable"]
_Answer = TypeVar("_Answer")

# Characters of a node's description (launcher/placement/adapter/description.py); a host's name has fewer.
SHORT_TEXT_MAX = 255
_SECONDS_MAX = 1e9  # the kernel's timers count further, a typing error is more likely
_WORKERS_MAX = 10_000  # so that a wrong number does not make this machine unusable
_STANDBY_MAX = 16  # sets: each costs as many processes as there are workers, and a restart needs one
_WORKER_KEYWORDS = {"auto": "auto", "gpu": "gpu", "cpu": "cpu", "xpu": "xpu", "cuda": "gpu", "all": "gpu", "max": "gpu"}
_UNHANDLEABLE = {
    **dict.fromkeys(("SIGKILL", "SIGSTOP"), "no process can handle it"),
    **dict.fromkeys(("SIGCHLD", "SIGCLD"), "it tells the agent that a worker has ended"),
}
# Keys of --rdzv-conf: those that set fields of the agreement's Settings; those of a store; and those that torchrun
# reads for one backend or another, and that have no effect here.
TIME_FIELDS = {
    "timeout": "start_timeout_s",
    "join_timeout": "start_timeout_s",
    "last_call_timeout": "join_grace_s",
    "close_timeout": "farewell_s",
}
STORE_KEYS = (
    "is_host", "protocol", "etcd_prefix", "user", "password_file",
    "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert",
)  # fmt: skip
HEARTBEAT_KEYS = ("heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt")
IGNORED_KEYS = (*HEARTBEAT_KEYS, "read_timeout", "store_type", "use_libuv", "rank")
KNOWN_KEYS = (*TIME_FIELDS, *STORE_KEYS, *IGNORED_KEYS)
_NUMBER_KEYS = (*TIME_FIELDS, *HEARTBEAT_KEYS, "read_timeout")
PASSWORD_HINT = "write it to a file, and set password_file=PATH or LAUNCHER_ETCD_PASSWORD_FILE"


class Option(Struct, frozen=True):
    """One row of the table (`table.TABLE`)."""

    source: OptionSource
    """The origin of the name; torchrun's come first when a prefix is completed, and have a PET_ variable, except two
    that torchrun reads from none.
    """
    name: str
    group: str
    """Of the help; a setting, which has none, names its section here."""
    metavar: str
    """How a value is written, "" for a flag."""
    read: Callable[[Value], Any] | None
    """The reader of a value; None for -h and --version."""
    default: str
    """The value of an option that is not set, as a user would write it; or, in words or "", what happens then. Words
    need a reader that asks `Value.is_default`, such as one of `make_optional`, or `parse_timeout`. Rows of
    `rendezvous.settings`, and of extensions, are read only if they are set.
    """
    help: str
    field: str | None = None
    """Of the section, by default the name, with _s for seconds; "" for options that have none of their own. Not used
    in a row of an extension, and neither is `section`: its value is in `Config.extensions`.
    """
    section: str = ""
    """Of the Config, by default called like the group; after a dot, the mapping in it that holds the value."""
    short: str = ""
    last_variable: str = ""
    """One more, outside both families, that is read last."""
    why_ignored: str = ""
    """Of an option that is checked and has no effect: what holds instead."""
    why_ignored_alone: str = ""
    """Of an option that has no effect on one machine: the end of the sentence that says so."""
    unset: tuple[str, ...] = ()
    """Variables that no worker inherits unless this extension's option has its default: the agent does what they are
    for.
    """

    @property
    def takes_value(self) -> bool:
        return self.read is not None and bool(self.metavar)

    @property
    def is_text(self) -> bool:
        """Whether an empty value counts as not set on the command line too; for a number or a flag it is an error."""
        return self.metavar not in ("", "N", "PORT", "SECONDS", "SETS")

    @property
    def flag(self) -> str:
        """What a user sets: the flag, or the variable of a setting without one."""
        return f"LAUNCHER_{self._suffix}" if self.source == "variable" else f"--{self.name}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings: the short form, with dashes, with underscores."""
        return tuple(dict.fromkeys(filter(None, (self.short, self.flag, "--" + self.name.replace("-", "_")))))

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that set it, highest precedence first."""
        if self.read is None:
            return ()
        pet = f"PET_{self._suffix}" if self.source == "torchrun" else ""
        return tuple(filter(None, (f"LAUNCHER_{self._suffix}", pet, self.last_variable)))

    @property
    def _suffix(self) -> str:
        return self.name.replace("-", "_").upper()

    @property
    def field_name(self) -> str:
        """The field of the section, or of the mapping in it."""
        if self.field is not None:
            return self.field
        return self.name.replace("-", "_") + ("_s" if self.metavar == "SECONDS" else "")


class Value(Struct, frozen=True):
    """An option's text and where it was found."""

    option: Option
    text: str
    origin: str
    """Its flag, a variable, or "default"."""
    is_detected: bool = False
    """Not set by the user, but read from a scheduler's variable, `origin`."""

    @property
    def is_default(self) -> bool:
        return self.origin == "default"

    @property
    def is_flag(self) -> bool:
        return self.origin.startswith("--")

    def read(self) -> Any:
        """Return what the text means. Raises UsageError if it means nothing."""
        assert self.option.read is not None
        try:
            return self.option.read(self)
        except UsageError as error:
            if error.hint == PASSWORD_HINT:
                raise  # a correction would repeat it
            raise UsageError(str(error), extensions.ask("value", self, error.hint) or None) from None

    def __str__(self) -> str:
        """The spelling of the user, for messages."""
        text = sanitize(self.text) or "''"
        if self.is_detected:
            return f"{self.option.flag} {text} (from {self.origin})"
        if self.is_flag:
            return f"{self.origin} {text}" if self.option.takes_value else self.origin
        return f"{self.origin}={text}"


def make_ignored(source: OptionSource, name: str, metavar: str, read: Callable[[Value], Any], why: str) -> Option:
    """Return the row of an option that existing command lines have, and that has no effect."""
    return Option(
        source, name, "legacy", metavar, read, "" if metavar else "0", f"No effect: {why}.", field="", why_ignored=why
    )


def make_optional(read: Callable[[Value], _Answer]) -> Callable[[Value], _Answer | None]:
    """Return a reader whose result is None where the option is not set."""
    return lambda value: None if value.is_default else read(value)


def parse_integer(text: str) -> int | None:
    """Return the number in `text`, None if it is none."""
    try:
        return int(text)
    except ValueError:
        return None


def parse_number(value: Value, demand: str, low: int, high: float = float("inf"), text: str | None = None) -> int:
    """Parse a whole number from `low` to `high`; `demand` ends the sentence that refuses another."""
    number = parse_integer(value.text if text is None else text)
    if number is None or not low <= number <= high:
        raise UsageError(f"{value}{demand}")
    return number


def parse_count(value: Value) -> int:
    """A whole number of at least 0."""
    return parse_number(value, " must be an integer >= 0", 0)


def parse_seconds(value: Value) -> float:
    """A time of at least 0 and less than thirty years."""
    return parse_seconds_text(value.text, str(value))


def parse_seconds_text(text: str, label: str) -> float:
    """Parse seconds in a part of an option, which `label` names in the error."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise UsageError(f"{label} is not a number of seconds")
    if number > _SECONDS_MAX:
        raise UsageError(f"{label} is more than {_SECONDS_MAX:.0f} s, thirty years")
    return number


def parse_timeout(value: Value) -> float | None:
    """A time; None if it is not set, or 0."""
    return None if value.is_default else parse_seconds(value) or None


class HangLimits(Struct, frozen=True):
    """For how long a node may show no progress: of its steps, before the first sign of any, and before the first step.

    The defaults of the two phases before the steps are an hour, since from outside nothing distinguishes a hang from
    the load of a large checkpoint or from a compilation, and both may take most of that.
    """

    step_s: float
    start_s: float = 3600.0
    first_step_s: float = 3600.0


_HANG_PHASES = {"start": "start_s", "first-step": "first_step_s"}


def parse_hang_timeout(value: Value) -> HangLimits | None:
    """SECONDS[,start=SECONDS][,first-step=SECONDS], in any order; None for 0. 0 in a phase: no limit there."""
    limits: dict[str, float] = {}
    for part in value.text.split(","):
        name, equals, text = (piece.strip() for piece in part.rpartition("="))
        field = _HANG_PHASES.get(name) if equals else "step_s"
        if field is None:
            question = suggest(name, {known: known for known in _HANG_PHASES}) or None
            raise UsageError(f"{value}: {sanitize(name)!r} is an unknown phase: use start or first-step", question)
        if field in limits:
            raise UsageError(f"{value} sets {name or 'the limit of a step'} twice")
        limits[field] = parse_seconds_text(text, f"{value.origin}: {sanitize(part.strip())!r}")
    if (step_s := limits.pop("step_s", None)) is None:
        raise UsageError(f"{value} needs a limit for a step", "use for example 600,first-step=7200")
    if step_s == 0 and limits:
        raise UsageError(f"{value}: 0 disables detection in every phase", "leave out start= and first-step=")
    if step_s == 0:
        return None
    usual = dict.fromkeys(_HANG_PHASES.values(), max(step_s, 3600.0))
    return HangLimits(step_s, **usual | {field: number or float("inf") for field, number in limits.items()})


def parse_lease_ttl(value: Value) -> float:
    """How long an unreachable node stays a member."""
    ttl_s = parse_seconds(value)
    if ttl_s == 0:
        raise UsageError(f"{value}: the lease must be longer than 0 s", "leave it out for the default")
    return ttl_s


def parse_choice(value: Value, hint: str | None = None) -> str:
    """One of the words that the metavar lists."""
    words = value.option.metavar.split("|")
    if value.text not in words:
        listed = " nor ".join(words) if len(words) < 4 else f"{', '.join(words[:-1])} nor {words[-1]}"
        question = hint or suggest(value.text, {word: word for word in words}, 0.6)
        raise UsageError(f"{value} is neither {listed}", question)
    return value.text


def parse_grow(value: Value) -> tuple[str, float | None]:
    """never, checkpoint, delay, or delay=SECONDS: the word, and the seconds if they are given."""
    policy, equals, seconds = value.text.partition("=")
    if policy == "delay" and equals:
        return policy, parse_seconds_text(seconds, f"{value}: {sanitize(seconds)!r}")
    if policy in ("never", "delay", "checkpoint") and not equals:
        return policy, None
    raise UsageError(f"{value} is not never, delay, delay=SECONDS or checkpoint")


def parse_switch(value: Value) -> bool:
    """One of two words, the first of which is True."""
    return value.option.metavar.startswith(parse_choice(value))


def parse_flag(value: Value) -> bool:
    """0 or 1."""
    if value.text not in ("0", "1"):
        raise UsageError(f"{value} is neither 0 nor 1")
    return value.text == "1"


def parse_backend(value: Value) -> str:
    """The name of a rendezvous backend."""
    known = ("static", "c10d", "etcd", "etcd-v2")
    if value.text not in known:
        question = suggest(value.text, {name: name for name in known})
        raise UsageError(f"{value}: the backends are static, c10d and etcd", question)
    return value.text


def parse_text(value: Value) -> str:
    """Any text; what it means is known later."""
    return value.text


def parse_printable(value: Value) -> str:
    """A text that becomes part of messages and file names."""
    if not value.text.isprintable():
        raise UsageError(f"{value.origin} {value.text!r}: it must contain only printable characters")
    return value.text


def parse_short_text(value: Value) -> str:
    """A text that goes to the other nodes."""
    if len(parse_printable(value)) > SHORT_TEXT_MAX:
        raise UsageError(f"{value.origin} has {len(value.text)} characters; the limit is {SHORT_TEXT_MAX}")
    return value.text


def parse_conf(value: Value) -> dict[str, str]:
    """Parse KEY=VALUE,... as a dictionary; also a time without effect has to be one. Passwords are not repeated."""
    conf: dict[str, str] = {}
    parts = () if value.is_default else value.text.split(",")
    rows = [(part.strip(), *(piece.strip() for piece in part.partition("="))) for part in parts]
    if any(_has_password(part) for part, *_ in rows):  # before any other part of the text is shown
        raise UsageError(f"{value.origin}: a password on the command line can be read by other users", PASSWORD_HINT)
    for part, key, _, text in rows:
        if not key or not text:
            raise UsageError(
                f"{value.origin}: {part!r} is not KEY=VALUE", "use for example timeout=600,read_timeout=60"
            )
        if key in _NUMBER_KEYS:
            parse_seconds_text(text, f"{value.origin}: {key}={text}")
        conf[key] = text
    return conf


def _has_password(part: str) -> bool:
    bare = part.lower().replace("password_file", "").translate(dict.fromkeys(map(ord, " \t\"'`")))
    return bare.startswith(("pass", "pw")) or "password=" in bare or "password:" in bare


def parse_endpoints(value: Value) -> str:
    """Addresses of a store, which `launcher.config.options.network` splits; without a password."""
    if "@" in value.text:
        raise UsageError(f"{value.origin}: a user and password there can be read by other users", PASSWORD_HINT)
    return value.text


def parse_name(value: Value) -> str:
    """A text that becomes a part of keys or of a directory's name."""
    if "/" in parse_printable(value):
        raise UsageError(f"{value}: a name that becomes part of a path cannot contain a /")
    return value.text


def parse_node_name(value: Value) -> str:
    """A text that is both a name and a short text."""
    parse_short_text(value)
    return parse_name(value).strip()


def parse_variable_name(value: Value) -> str:
    """The name of a variable; "" if none is named."""
    if not (value.is_default or (value.text.isascii() and value.text.isidentifier())):
        raise UsageError(f"{value} is not the name of a variable", "use a name such as CUDA_VISIBLE_DEVICES")
    return "" if value.is_default else value.text


def parse_command(value: Value, hint: str) -> str:
    """A command of the shell."""
    if not value.text.strip() or "\0" in value.text:
        raise UsageError(f"{value} is not a command", hint)
    return value.text


def parse_texts(value: Value) -> tuple[str, ...]:
    """Texts separated by commas; two commas are one inside a text. An empty text matches all and is dropped."""
    parts = [part.replace("\0", ",") for part in value.text.replace(",,", "\0").split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def parse_address(value: Value, text: str | None = None) -> tuple[str, int | None]:
    """HOST[:PORT], an IPv6 address in brackets if a port follows. `text`: a part of the value."""
    text = (value.text if text is None else text).strip()
    name, colon, number = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        name, number = text, ""
    elif ":" in name and is_address(text):
        sentence = f"{value}: the last part of {text} may be a port or belong to the address"
        raise UsageError(sentence, "write an IPv6 address in brackets, such as [::1]:29400")
    if colon and name != text and not number:
        raise UsageError(f"{value} has no port after its colon", "leave out the colon, or write the port")
    return parse_host(value, name), parse_port(value, number) if number else None


def parse_listen_address(value: Value) -> tuple[str, int]:
    """PORT, which is one of loopback, or HOST:PORT."""
    text = value.text.strip()
    host, colon, number = text.rpartition(":")
    if colon and (not host or (":" in host and not host.startswith("["))):
        raise UsageError(f"{value} is neither PORT nor HOST:PORT", "use 0.0.0.0:PORT to listen on all addresses")
    return parse_host(value, host) if colon else "127.0.0.1", parse_port(value, number)


def parse_host(value: Value, text: str | None = None) -> str:
    """A name or an address, without the brackets of IPv6. `text`: a part of the value."""
    name = (value.text if text is None else text).strip()
    if not name:
        raise UsageError(f"{value} names no host", "put the name or the address of a host before the port")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not is_host(name):
        sentence = f"{value}: {name!r} is neither an address nor the name of a host"
        raise UsageError(sentence, extensions.ask("host", value, name))
    return name


def is_address(text: str) -> bool:
    """Whether this is an IP address, without brackets."""
    from rendezvous.stores.addresses import pack_address  # only of IPv6 is it asked, and a start needs it for no other

    return pack_address(text) is not None


def is_host(name: str) -> bool:
    """Whether this may be the name or the address of a host."""
    address = name.partition("%")[0]  # fe80::1%eth0 names its interface
    if not address or len(name) > SHORT_TEXT_MAX:
        return False
    if ":" in name:
        return set(address) <= set("0123456789abcdefABCDEF:.")
    if set(address) <= set("0123456789."):
        parts = address.split(".")
        return len(parts) == 4 and all(part and int(part) < 256 for part in parts)
    return all(letter.isalnum() or letter in "_.-" for letter in address)


def parse_port(value: Value, text: str | None = None) -> int:
    """A port, 0 for any free one. `text`: a part of the value."""
    return parse_number(value, ": a port is a number from 0 (any free one) to 65535", 0, 65535, text)


def parse_port_range(value: Value) -> tuple[int, int]:
    """FIRST:LAST, both included."""
    bounds = [parse_integer(part) for part in value.text.split(":")]
    first, last = bounds[0], bounds[-1]
    if len(bounds) != 2 or first is None or last is None or not 0 < first <= last < 65536:
        raise UsageError(f"{value} is not FIRST:LAST with ports from 1 to 65535")
    return first, last


def parse_node_range(value: Value) -> tuple[int, int | None]:
    """N, MIN:MAX, or MIN: which is open above."""
    first, colon, last = (part.strip() for part in value.text.partition(":"))
    least, most = parse_integer(first), parse_integer(last if colon else first)
    if least is None or (most is None and not (colon and not last)):
        raise UsageError(f"{value} is neither a number of nodes nor MIN:MAX", "write for example 2 or 2:4")
    if least < 1:
        raise UsageError(f"{value}: at least 1 node is needed")
    if most is not None and least > most:
        raise UsageError(f"{value}: the minimum, {least}, is more than the maximum, {most}")
    return least, most


def parse_worker_count(value: Value) -> int | str:
    """A number, or auto, gpu, cpu or a possible device type."""
    count = parse_integer(value.text)
    if count is not None:
        if count < 1:
            raise UsageError(f"{value}: at least 1 worker is needed")
        if count > _WORKERS_MAX:
            raise UsageError(f"{value}: more than {_WORKERS_MAX} workers on one machine")
        return count
    if _WORKER_KEYWORDS.get(value.text) == value.text:
        return value.text
    # An extension of torch may register a device type of any name, which only torch knows.
    question = suggest(value.text, _WORKER_KEYWORDS)
    if question or not (value.text.isascii() and value.text.isidentifier()):
        raise UsageError(f"{value} is neither a number nor auto, gpu, cpu or a type of device", question)
    return value.text


def parse_mesh(value: Value) -> Mesh:
    """The grid of ranks."""
    try:
        return meshes.parse(value.text)
    except UsageError as error:
        if value.is_flag:
            raise
        raise UsageError(f"{value.origin}: {error}", error.hint) from None


def parse_devices_per_worker(value: Value) -> int | Literal["all"]:
    """A number of at least 1, or all."""
    return "all" if value.text == "all" else parse_number(value, " is neither a number of at least 1 nor all", 1)


class DeviceRequest(Struct, frozen=True):
    """The request of --devices."""

    kind: str
    number: int | None = None
    """None: all that are present."""
    shape: str = ""
    """The type of a TPU, such as v5e-16."""
    variable: str = ""
    """Makes the devices visible, from --visible-env; nothing is detected then."""

    def __str__(self) -> str:
        rest = self.shape or self.number
        return f"--devices {self.kind}" + (f":{rest}" if rest else "")


def parse_devices(value: Value) -> DeviceRequest:
    """KIND[:COUNT], or tpu:TYPE."""
    kind, colon, rest = (part.strip() for part in value.text.partition(":"))
    if not (kind.isascii() and kind.replace("-", "_").isidentifier()):
        raise UsageError(f"{value} is not a kind of device", "use for example nvidia, amd:4, tpu:v5e-16 or NAME:COUNT")
    count = parse_integer(rest)
    if colon and count is None and kind == "tpu" and rest:
        return DeviceRequest(kind, shape=rest)
    if colon and (count is None or count < 1):
        raise UsageError(
            f"{value} has no number of devices after its colon", f"use --devices {kind} for all that are found"
        )
    if count is not None and count > _WORKERS_MAX:
        raise UsageError(f"{value}: more than {_WORKERS_MAX} devices of one machine")
    return DeviceRequest(kind, count)


def parse_modules(value: Value) -> tuple[str, ...]:
    """Names as an import statement has them, separated by commas; () if not set."""
    names = [] if value.is_default else [name.strip() for name in value.text.split(",")]
    for number, name in enumerate(names):
        if not name:
            raise UsageError(f"{value} contains an empty name")
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
            raise UsageError(
                f"{value}: {sanitize(name)} is not the name of a module",
                "use the name as in an import, such as torch.nn",
            )
        if name in names[:number]:
            raise UsageError(f"{value} names {sanitize(name)} twice")
    return tuple(names)


def parse_standby(value: Value) -> int:
    """A number of sets of workers."""
    number = parse_count(value)
    if number > _STANDBY_MAX:
        sentence = f"{value}: more than {_STANDBY_MAX} standby sets of workers"
        raise UsageError(sentence, "use 1: a restart uses one set, and a new one is then created")
    return number


class Streams(Struct, frozen=True):
    """Which streams of which workers, in torchrun's code: 0 none, 1 stdout, 2 stderr, 3 both.

    `by_rank` is by local rank, and a rank that it does not name has none; without it `all_ranks` applies to all.
    """

    all_ranks: int = 0
    by_rank: Mapping[int, int] | None = None

    def select(self, local_rank: int) -> tuple[bool, bool]:
        """Whether (stdout, stderr) of this worker are selected."""
        code = self.all_ranks if self.by_rank is None else self.by_rank.get(local_rank, 0)
        return bool(code & 1), bool(code & 2)


def parse_streams(value: Value) -> Streams:
    """torchrun's 0-3, or RANK:0-3 with commas; here the rank may have several digits."""
    if value.text in ("0", "1", "2", "3"):
        return Streams(all_ranks=int(value.text))
    by_rank: dict[int, int] = {}
    for part in value.text.split(","):
        rank, _, code = part.partition(":")
        if not (rank.isascii() and rank.isdigit()) or code not in ("0", "1", "2", "3"):
            codes = (
                "use 0 for nothing, 1 for stdout, 2 for stderr, 3 for both; or codes of local ranks, such as 0:3,1:2"
            )
            raise UsageError(f"{value} is neither a code nor RANK:CODE,...", codes)
        by_rank[int(rank)] = int(code)
    return Streams(by_rank=by_rank)


def parse_local_ranks(value: Value) -> frozenset[int]:
    """Numbers separated by commas."""
    ranks = frozenset(parse_integer(part) for part in value.text.split(","))
    valid = frozenset(rank for rank in ranks if rank is not None and rank >= 0)
    if valid != ranks:
        raise UsageError(f"{value} is not a list of local ranks", "use for example 0,1,2")
    return valid


def explain_signal(name: str) -> str:
    """Return why no process, or not this one, can handle the signal; "" if it can."""
    if name not in signal.Signals.__members__:
        return ", ".join(filter(None, ("no such signal", _suggest_signal(name))))
    return _UNHANDLEABLE.get(name, "")


def _suggest_signal(name: str) -> str:
    return suggest(name.upper().removeprefix("SIG"), {known[3:]: known for known in signal.Signals.__members__})


def parse_signals(value: Value) -> tuple[str, ...]:
    """Names separated by commas. As in torchrun an unknown one is a warning: it may exist elsewhere."""
    return tuple(dict.fromkeys(name.strip() for name in value.text.split(",") if name.strip()))


def parse_signal(value: Value) -> str:
    """One signal that can be handled."""
    name = value.text.strip()
    if explain_signal(name):
        raise UsageError(
            f"{value} is not a signal that can be handled", _suggest_signal(name) or "use a signal such as SIGUSR1"
        )
    return name


def parse_locality(value: Value) -> tuple[tuple[str, str], ...] | str:
    """LEVEL=DOMAIN pairs, the outermost level first, or the name of a file, of @FILE; () if not set."""
    if value.is_default:
        return ()
    if value.text.startswith("@"):
        if value.text == "@":
            raise UsageError(f"{value}: there is no file name after @", "use for example @places")
        return parse_printable(value)[1:]
    from launcher.model.locality_path import parse_path

    return parse_path(value.text, str(value))


def parse_locality_sources(value: Value) -> tuple[str, ...] | None:
    """Names of sources; None for auto, () for none."""
    names = tuple(name.strip() for name in parse_printable(value).split(","))
    if names in (("auto",), ("none",)):
        return None if names == ("auto",) else ()
    for name in names:
        if not name:
            raise UsageError(f"{value} has an empty name", "use for example --locality-sources kubernetes,slurm")
        if name in ("auto", "none"):
            raise UsageError(
                f"{value}: {name} cannot be combined with others", "leave it out, or name all sources to query"
            )
        if names.count(name) > 1:
            raise UsageError(f"{value} names {name} twice")
    return names
