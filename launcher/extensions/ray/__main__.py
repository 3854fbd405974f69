"""`python -m launcher.extensions.ray`, the same as `meshrun-ray`."""

from __future__ import annotations

import sys

from launcher.extensions.ray.main import main

if __name__ == "__main__":
    sys.exit(main())
