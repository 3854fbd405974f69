"""`python -m launcher`, the same as `meshrun`.

Python has put the current directory first; `cli` imports nothing that a file there could stand in for, and
`cli.main` begins by taking it off.
"""

from __future__ import annotations

import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
