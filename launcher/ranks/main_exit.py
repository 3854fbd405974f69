"""How a worker's Python script has ended, for its agent: by which exception, and where; `sys.exit` is one, too.

`as_main` loads this file by path, in the workers' Python, when a script does not end by its last line.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

FRAMES_MAX = 20
TEXT_MAX = 16_000


def leave_end(place: int, error: BaseException, trace: TracebackType | None) -> None:
    """Write a traceback without source lines, which would take milliseconds; nothing for a `sys.exit` that is well."""
    said = error.code if isinstance(error, SystemExit) else error
    if said is None or (isinstance(said, int) and said == 0):
        return
    frames: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}\n')
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}"[:TEXT_MAX]
    os.write(
        place, f"Traceback (most recent call last):\n{''.join(frames[-FRAMES_MAX:])}{text}\n".encode(errors="replace")
    )
