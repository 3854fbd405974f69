"""`python -m launcher`, the same as `meshrun`.

Python has put the current directory first; `cli` imports nothing that a file there could replace, and
`cli.main` removes it first.
"""

from __future__ import annotations

import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
