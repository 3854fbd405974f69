"""Reading an option's text: numbers, times, addresses, ports and names, each refused in one sentence if it is none."""

from __future__ import annotations

from collections.abc import Callable

from launcher.errors import UsageError
from launcher.options import Given

SHORT_MAX = 255  # characters of what nodes tell each other, see `launcher.roster.description`; a host's name has fewer
_SECONDS_MAX = 1e9  # the kernel's timers count further, a slip of the pen is more likely


def count(given: Given) -> int:
    """A whole number of at least 0. Raises UsageError."""
    number = whole_number(given.text)
    if number is None or number < 0:
        raise UsageError(f"{given} is not a whole number of at least 0")
    return number


def seconds(given: Given) -> float:
    """A time of at least 0 and less than thirty years. Raises UsageError."""
    return seconds_of(given.text, str(given))


def seconds_of(text: str, what: str) -> float:
    """The same for a part of an option, which `what` names in the refusal."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise UsageError(f"{what} is not a number of seconds")
    if number > _SECONDS_MAX:
        raise UsageError(f"{what} is more than {_SECONDS_MAX:.0f} s, thirty years")
    return number


def flag(given: Given) -> bool:
    """0 or 1. Raises UsageError."""
    if given.text not in ("0", "1"):
        raise UsageError(f"{given} is neither 0 nor 1")
    return given.text == "1"


def one_of(*words: str) -> Callable[[Given], str]:
    """A reader of options that take one of these words."""

    def read(given: Given) -> str:
        if given.text not in words:
            raise UsageError(f"{given} is neither {' nor '.join(words)}")
        return given.text

    return read


def address(given: Given, text: str) -> tuple[str, int | None]:
    """HOST[:PORT], an IPv6 address in brackets if a port follows. Raises UsageError."""
    text = text.strip()
    name, colon, number = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        name, number = text, ""
    return host(given, name), port(given, number) if number else None


def port(given: Given, text: str) -> int:
    """A port, 0 for any free one. Raises UsageError."""
    number = whole_number(text)
    if number is None or not 0 <= number < 65536:
        raise UsageError(f"{given}: a port is a number from 0 (any free one) to 65535")
    return number


def ports(given: Given) -> tuple[int, int] | None:
    """FIRST:LAST, both included; None if not given. Raises UsageError."""
    if given.is_default:
        return None
    bounds = [whole_number(part) for part in given.text.split(":")]
    first, last = bounds[0], bounds[-1]
    if len(bounds) != 2 or first is None or last is None or not 0 < first <= last < 65536:
        raise UsageError(f"{given} is not FIRST:LAST with ports from 1 to 65535")
    return first, last


def host(given: Given, text: str) -> str:
    """A name or an address, without the brackets that IPv6 wears beside a port. Raises UsageError for neither."""
    name = text.strip()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not is_host(name):
        raise UsageError(f"{given}: {name!r} is no address and no name of a host")
    return name


def is_host(name: str) -> bool:
    """Whether this may be the name or the address of a host."""
    address = name.partition("%")[0]  # fe80::1%eth0 names its interface
    if not address or len(name) > SHORT_MAX:
        return False
    if ":" in name:
        return set(address) <= set("0123456789abcdefABCDEF:.")
    return all(letter.isalnum() or letter in "_.-" for letter in address)


def name(given: Given) -> str:
    """A text that becomes a part of keys or of a directory's name. Raises UsageError for one that cannot."""
    if "/" in printable(given):
        raise UsageError(f"{given}: a name that becomes part of a path cannot hold a /")
    return given.text


def node_name(given: Given) -> str:
    """A text that is both. Raises UsageError."""
    short(given)
    return name(given)


def short(given: Given) -> str:
    """A text that this node tells the others. Raises UsageError for what cannot be shown, or is too long for that."""
    if len(printable(given)) > SHORT_MAX:
        raise UsageError(f"{given.origin} has {len(given.text)} characters, {SHORT_MAX} is the most")
    return given.text


def printable(given: Given) -> str:
    """The text, which becomes part of messages and file names. Raises UsageError for what cannot be shown."""
    if not given.text.isprintable():
        raise UsageError(f"{given.origin} {given.text!r}: only printable characters will do")
    return given.text


def whole_number(text: str) -> int | None:
    """The number that `text` is, None if it is none."""
    try:
        return int(text)
    except ValueError:
        return None
