"""`meshctl`: shows what meshrun detects and would do, and the state of running jobs, without starting one.

Everything else is imported after `cli.protect_imports` has made that safe. Errors have meshrun's form: a sentence, a
hint, and the exit code 2 for errors of the user.
"""

from __future__ import annotations

import sys

from launcher import cli

PROGRAM = "meshctl"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, the command's own, 2 for a usage error, 70 for a bug of ours."""
    cli.protect_imports()

    import click

    words = sys.argv[1:] if argv is None else argv
    try:
        from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
        from launcher.meshctl.group import meshctl

        code = meshctl.main(args=words or ["--help"], prog_name=PROGRAM, standalone_mode=False)
    except click.Abort:
        return 130
    except Exception as error:
        from launcher.meshctl.usage_errors import explain

        return cli.report(explain(error, words), PROGRAM)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
