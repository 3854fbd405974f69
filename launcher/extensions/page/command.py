"""The command line of `meshctl serve`. `serve` runs it."""

from __future__ import annotations

from collections.abc import Mapping

import click

from launcher.config.options.readers import Value, parse_listen_address
from launcher.extensions.page.options import ROWS
from launcher.meshctl.group import job_command, log_dir_option


@job_command("Serve a web page that shows a run.", needs_run=False)
@click.option(
    "--listen", default="0", metavar="[HOST:]PORT",
    help="Address of the page; if not loopback, readers need the token in the URL. [default: a loopback port]",
)  # fmt: skip
@click.option("--save", "path", metavar="FILE", help="Write the page with its data to a file instead.")
@click.option("--no-stacks", is_flag=True, help="With --save: omit the stacks of the ranks.")
@log_dir_option
def serve(
    store: Mapping[str, str], run_id: str | None, listen: str, path: str | None, no_stacks: bool, log_dir: str | None
) -> int:
    """Serve a web page that shows a run: its picture, rounds, ranks, output and stacks.

    The page is read-only, and is served until Ctrl-C, even after the run has ended. The command prints the ssh -L
    command that makes the page available on another machine.

    \b
    Examples:
      meshctl serve
      meshctl serve exp-41 --save exp-41.html
    """
    from launcher.extensions.page.serve import save_page, serve_page
    from launcher.meshctl.live.source import open_source

    host, port = parse_listen_address(Value(ROWS[0], listen, "--listen"))
    with open_source(store, run_id, log_dir) as source:
        if path is not None:
            save_page(source, path, has_stacks=not no_stacks)
            return 0
        return serve_page(source, host, port)
