"""`python -m launcher`, the same as `meshrun`.

Python has put the current directory first; `cli` imports nothing that a file there could replace, and
`cli.main` removes it first.
"""

from __future__ import annotations

from launcher.cli import run

if __name__ == "__main__":
    run()
