"""`meshctl`: looking at what meshrun sees and would do, without starting a job.

This command has no start-up budget, so it is plain click, imported after `cli.protect_imports` has made that
safe. Errors look as meshrun's do: a sentence, a hint, and the exit code 2 for what the user can mend.
"""

from __future__ import annotations

import os
import sys

from launcher import cli

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from click import Group

PROGRAM = "meshctl"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 for a usage error, 70 for a bug of ours."""
    cli.protect_imports()
    import click

    from launcher.console import say

    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _commands().main(args=words or ["--help"], prog_name=PROGRAM, standalone_mode=False)
    except click.Abort:
        return 130
    except click.ClickException as error:
        say(f"{PROGRAM}: error: {error.format_message()}\nhint: {PROGRAM} --help lists the commands")
        return 2
    except Exception as error:
        return cli.report(error, PROGRAM)
    return 0


def _commands() -> Group:
    import click

    from launcher import __version__

    @click.group(context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, message="%(prog)s %(version)s")
    def meshctl() -> None:
        """Look at what meshrun sees and would do, without starting a job."""

    @meshctl.command()
    @click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF MESHRUN]")
    def doctor(as_json: bool, words: tuple[str, ...]) -> None:
        """Show what meshrun would work with here.

        Every option's value and where it comes from, the Python of the workers, torch, and the devices found.
        Options after -- count as if meshrun had got them.
        """
        import json

        from launcher import doctor as examination

        findings = examination.examine(words, os.environ)
        cli.show(json.dumps(findings, indent=2) if as_json else examination.describe(findings))

    return meshctl


if __name__ == "__main__":
    sys.exit(main())
