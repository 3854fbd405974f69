"""A terminal for the programs of a test, which types at its other end and reads what appears."""

from __future__ import annotations

import codecs
import os
import pty
import secrets
import select
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.support.processes.tree import TOKEN_VARIABLE, kill_family
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10

LIMIT_S = 60.0


class Terminal:
    """A context manager; at its end the programs and all that they started are killed.

    `theirs`: the end of the programs, as a descriptor.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._token = secrets.token_hex(8)
        self._programs: list[subprocess.Popen[bytes]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self._token)
        for program in self._programs:
            program.wait()
        os.close(self.theirs)
        os.close(self._ours)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program whose streams are this terminal, but for those in `options`. `setsid --ctty`: its own."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        options["env"] = {**options.get("env", os.environ), TOKEN_VARIABLE: self._token}
        self._programs.append(subprocess.Popen(command, **{**streams, **options}))
        return self._programs[-1]

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> str:
        """What has appeared until `text` did, from where the last wait ended."""
        while text not in self._shown:
            is_there = select.select([self._ours], [], [], LIMIT_S)[0] and self._read()
            assert is_there, f"no {text!r} in {self._shown!r}"
        found, _, self._shown = self._shown.partition(text)
        return found

    def rest(self) -> str:
        """Wait until all programs have ended; what has appeared since the last wait."""
        wait_until(self._have_ended, LIMIT_S, "the end of the programs at the terminal")
        return self._shown

    def _have_ended(self) -> bool:
        have_ended = all(program.poll() is not None for program in self._programs)
        while select.select([self._ours], [], [], 0)[0] and self._read():  # who writes may wait for a reader
            pass
        return have_ended

    def _read(self) -> bool:
        """Read what is there; whether the terminal goes on: a program that leads a session hangs up at its end."""
        try:
            text = self._decoder.decode(os.read(self._ours, 65536))
        except OSError:
            return False
        self._shown = (self._shown + text).replace("\r\n", "\n")  # of which a read may end in the middle
        return True
