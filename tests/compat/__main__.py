"""Show what the launchers do with cases of the table: `python -m tests.compat [--torchrun|--meshrun] [-v] [WORDS]`.

Cases are those whose names hold all the words. For writing one: put "" where torchrun's answer goes, run this, read
it, and find out why. What is not as the table and the list of differences say is marked with "!!"; -v shows what the
agents said.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.compat.differences import differences, expected, plain
from tests.compat.runs import LAUNCHERS, Case, Seen, run
from tests.compat.table import CASES


def answers(case: Case, launcher: str, *, is_verbose: bool) -> dict[str, str]:
    """What is seen: sentence -> text, or the beginning of the reason why nothing is."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        started_s = time.monotonic()
        try:
            seen = run(case, launcher, Path(directory))
        except AssertionError as error:
            return dict.fromkeys(case.looks, f"({error})"[:2000])
        finally:
            print(f"# {case.name}: {launcher}, {time.monotonic() - started_s:.1f} s", flush=True)
        if is_verbose:
            print(seen.said)
        for sentence, (see, _) in case.looks.items():
            found[sentence] = attempt(see, seen)
    return found


def attempt(see: Callable[[Seen], str], seen: Seen) -> str:
    try:
        return see(seen)
    except (AssertionError, LookupError, ValueError) as error:
        return f"({type(error).__name__}: {str(error)[:200]!r})"


def main() -> None:
    flags = {word for word in sys.argv[1:] if word.startswith("-")}
    words = [word for word in sys.argv[1:] if word not in flags]
    launchers = [name for name in LAUNCHERS if f"--{name}" in flags] or LAUNCHERS
    listed = differences()
    for case in CASES:
        if not all(word in case.name for word in words):
            continue
        for launcher in launchers:
            for sentence, shown in answers(case, launcher, is_verbose="-v" in flags).items():
                wanted = expected(launcher, sentence, case.looks[sentence][1], listed)
                is_right = plain(shown) == wanted
                print(f"{'    ' if is_right else ' !! '}{sentence}: {shown}")
                if not is_right:
                    print(f"        expected: {wanted}")


if __name__ == "__main__":
    main()
