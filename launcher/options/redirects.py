"""Which streams of which workers an option means: torchrun's codes, lists of local ranks, and texts to look for."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.options import Value
from launcher.options.reading import parse_integer
from rendezvous.values import NamedTuple


class Streams(NamedTuple):
    """Which streams of which workers, in torchrun's code: 0 none, 1 stdout, 2 stderr, 3 both.

    `by_rank` goes by local rank, and a rank it does not name has none; without it `every` holds for all.
    """

    all_ranks: int = 0
    by_rank: Mapping[int, int] | None = None

    def select(self, local_rank: int) -> tuple[bool, bool]:
        """Whether (stdout, stderr) of this worker are meant."""
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
            raise UsageError(
                f"{value} is neither a code nor RANK:CODE,...",
                "codes: 0 nothing, 1 stdout, 2 stderr, 3 both; 0:3,1:2 is both of local rank 0 and stderr of 1",
            )
        by_rank[int(rank)] = int(code)
    return Streams(by_rank=by_rank)


def parse_local_ranks(value: Value) -> frozenset[int] | None:
    """0,1,2; None, which is all, if not given. Raises UsageError."""
    if value.is_default:
        return None
    ranks = frozenset(parse_integer(part) for part in value.text.split(","))
    valid = frozenset(rank for rank in ranks if rank is not None and rank >= 0)
    if valid != ranks:
        raise UsageError(f"{value} is not a list of local ranks", "write it like 0,1,2")
    return valid


def parse_texts(value: Value) -> tuple[str, ...]:
    """The texts between the commas; two commas are one inside a text. An empty text would mean every line: left out."""
    parts = [part.replace("\0", ",") for part in value.text.replace(",,", "\0").split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))
