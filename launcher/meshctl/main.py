"""`meshctl`: shows what meshrun detects and would do, and the state of running jobs, without starting one.

Everything else is imported after `cli.protect_imports` has made that safe. Errors have meshrun's form: a sentence, a
hint, and the exit code 2 for errors of the user.
"""

from __future__ import annotations

import sys

from launcher import cli

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "meshctl"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, the command's own, 2 for a usage error, 70 for a bug of ours."""
    cli.protect_imports()
    from contextlib import suppress

    import click

    from launcher.model.console import write_stderr
    from launcher.model.errors import UsageError

    words = list(sys.argv[1:] if argv is None else argv)
    try:
        from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
        from launcher.meshctl.group import meshctl

        code = meshctl.main(args=words or ["--help"], prog_name=PROGRAM, standalone_mode=False)
    except click.Abort:
        return 130
    except click.ClickException as error:
        if isinstance(
            error, getattr(click.exceptions, "NoArgsIsHelpError", ())
        ):  # since click 8.2; its text is the help
            write_stderr(error.format_message())
            return 2
        context = getattr(error, "ctx", None)
        asked = context.command_path if context else PROGRAM
        hint = f"{asked} --help lists {'the commands' if asked == PROGRAM else 'its options'}"
        if asked.endswith(" doctor") and isinstance(error, click.NoSuchOption):
            from launcher.config.options.command_line import find_option

            with suppress(UsageError):  # then it is none of meshrun's either
                option = find_option(error.option_name)
                hint = f"options of meshrun follow --: meshctl doctor -- {option.flag} {option.metavar}".rstrip()
        write_stderr(f"{PROGRAM}: error: {error.format_message()}\nhint: {hint}")
        return 2
    except Exception as error:
        return cli.report(error, PROGRAM)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
