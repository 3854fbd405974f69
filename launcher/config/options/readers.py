"""Parses an option's text: numbers, times, addresses, ports and names; an invalid one is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable

from launcher.config.options.command_line import Value
from launcher.model.errors import UsageError

# Characters of a node's description (launcher/placement/adapter/description.py); a host's name has fewer.
SHORT_TEXT_MAX = 255
_SECONDS_MAX = 1e9  # the kernel's timers count further, a typing error is more likely


def parse_count(value: Value) -> int:
    """A whole number of at least 0. Raises UsageError."""
    number = parse_integer(value.text)
    if number is None or number < 0:
        raise UsageError(f"{value} is not a whole number of at least 0")
    return number


def parse_seconds(value: Value) -> float:
    """A time of at least 0 and less than thirty years. Raises UsageError."""
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


def parse_flag(value: Value) -> bool:
    """0 or 1. Raises UsageError."""
    if value.text not in ("0", "1"):
        raise UsageError(f"{value} is neither 0 nor 1")
    return value.text == "1"


def make_choice_parser(*words: str) -> Callable[[Value], str]:
    """Return a parser of options that accept one of these words."""

    def parse(value: Value) -> str:
        if value.text not in words:
            raise UsageError(f"{value} is neither {' nor '.join(words)}")
        return value.text

    return parse


def parse_address(value: Value, text: str) -> tuple[str, int | None]:
    """HOST[:PORT], an IPv6 address in brackets if a port follows. Raises UsageError."""
    text = text.strip()
    name, colon, number = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        name, number = text, ""
    return parse_host(value, name), parse_port(value, number) if number else None


def parse_port(value: Value, text: str) -> int:
    """A port, 0 for any free one. Raises UsageError."""
    number = parse_integer(text)
    if number is None or not 0 <= number < 65536:
        raise UsageError(f"{value}: a port is a number from 0 (any free one) to 65535")
    return number


def parse_port_range(value: Value) -> tuple[int, int] | None:
    """FIRST:LAST, both included; None if not given. Raises UsageError."""
    if value.is_default:
        return None
    bounds = [parse_integer(part) for part in value.text.split(":")]
    first, last = bounds[0], bounds[-1]
    if len(bounds) != 2 or first is None or last is None or not 0 < first <= last < 65536:
        raise UsageError(f"{value} is not FIRST:LAST with ports from 1 to 65535")
    return first, last


def parse_host(value: Value, text: str) -> str:
    """Parse a name or an address, without the brackets of IPv6. Raises UsageError for neither."""
    name = text.strip()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not is_host(name):
        raise UsageError(f"{value}: {name!r} is no address and no name of a host")
    return name


def is_host(name: str) -> bool:
    """Whether this may be the name or the address of a host."""
    address = name.partition("%")[0]  # fe80::1%eth0 names its interface
    if not address or len(name) > SHORT_TEXT_MAX:
        return False
    if ":" in name:
        return set(address) <= set("0123456789abcdefABCDEF:.")
    return all(letter.isalnum() or letter in "_.-" for letter in address)


def parse_name(value: Value) -> str:
    """Parse a text that becomes a part of keys or of a directory's name. Raises UsageError for one that cannot."""
    if "/" in parse_printable(value):
        raise UsageError(f"{value}: a name that becomes part of a path cannot hold a /")
    return value.text


def parse_node_name(value: Value) -> str:
    """Parse a text that is both a name and a short text. Raises UsageError."""
    parse_short_text(value)
    return parse_name(value)


def parse_short_text(value: Value) -> str:
    """Parse a text that goes to the other nodes. Raises UsageError if it is not printable, or too long for that."""
    if len(parse_printable(value)) > SHORT_TEXT_MAX:
        raise UsageError(f"{value.origin} has {len(value.text)} characters, {SHORT_TEXT_MAX} is the most")
    return value.text


def parse_printable(value: Value) -> str:
    """Parse a text that becomes part of messages and file names. Raises UsageError if it is not printable."""
    if not value.text.isprintable():
        raise UsageError(f"{value.origin} {value.text!r}: only printable characters will do")
    return value.text


def parse_integer(text: str) -> int | None:
    """Return the number in `text`, None if it is none."""
    try:
        return int(text)
    except ValueError:
        return None
