"""What the installed commands begin with, and `python -m meshrun`: the packages are those beside this file.

Projects have a package or a file named `launcher` of their own, and Python finds what is on PYTHONPATH, or under
`python -m` in the current directory, before what is installed. The name of this module is found, and it looks for the
rest where it is itself. Like `launcher.cli` it imports only `os` and `sys`, which no file of the user's can replace.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from launcher.extensions.torchrun.handler import Handler


def run() -> NoReturn:
    """Be the command meshrun."""
    _require_own_packages()
    from launcher.cli import run

    run()


def meshctl() -> int:
    """Run the command meshctl; return its exit code."""
    _require_own_packages()
    from launcher.meshctl.main import main

    return main()


def ray() -> int:
    """Run the command meshrun-ray; return its exit code."""
    _require_own_packages()
    from launcher.extensions.ray.main import main

    return main()


def handlers() -> Callable[[RendezvousParameters], Handler]:
    """Return the function that torchrun registers for --rdzv-backend=meshrun; torch calls this once."""
    return create_handler


def create_handler(parameters: RendezvousParameters) -> Handler:
    """Return torchrun's handler for one job. Raises ValueError for what cannot work, and torch's
    RendezvousConnectionError when the store does not come in time.
    """
    import_own_packages()
    from launcher.extensions.torchrun.handler import open_handler

    return open_handler(parameters)


# docs/internals/decisions/0065-commands-begin-with-a-module-of-another-name.md
def import_own_packages() -> None:
    """Import both from beside this file. Raises ImportError if another one of the name has been imported already."""
    home = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, home)
    try:
        import launcher
        import rendezvous
    finally:
        sys.path.remove(home)
    for package in (launcher, rendezvous):
        found = package.__file__ or str(package)
        place = os.path.dirname(os.path.dirname(found))
        if place != home and os.path.realpath(place) != os.path.realpath(home):
            raise ImportError(f"{found} has been imported, and hides meshrun's own package {package.__name__}")


def _require_own_packages() -> None:
    try:
        import_own_packages()
    except ImportError as error:  # by a sitecustomize or a .pth file
        print(f"meshrun: error: {error}\nhint: rename it, or do not import it as Python starts", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    run()
