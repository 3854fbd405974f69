"""`meshrun-ray`: the entrypoint of a Ray job, with all options of meshrun and a few for Ray.

    ray job submit --working-dir . -- meshrun-ray --nnodes 4:8 --nproc-per-node 8 train.py --lr 0.1

Everything else is imported after `cli.protect_imports` has made that safe.
"""

from __future__ import annotations

import os
import sys

from launcher import cli

PROGRAM = "meshrun-ray"
_USAGE = "[options] SCRIPT [arguments of the script]"
_INTRO = (
    "Runs SCRIPT in workers on the nodes of a Ray cluster, one agent of meshrun on each. It is the entrypoint of a Ray "
    "job, or runs on a node of the cluster. --nnodes MIN:MAX sets the number of nodes; default: all that have the "
    "devices. It takes all options of meshrun (see meshrun -h), and these:"
)
_EXAMPLE = """\
  ray job submit --submission-id exp-41 --working-dir . -- \\
    meshrun-ray --nnodes 4:8 --nproc-per-node 8 --max-restarts 9 train.py"""
# For leaving the cluster. Ray's part takes 10 ms; then it delivers its own metrics, for up to 10 s where nothing takes
# them (Ray 2.60, stats.h). Ray itself kills the driver 3 s after a stop, and this process is about to end.
CLOSE_LIMIT_S = 0.5


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: the job's, or 2 for a usage error, 70 for a bug of ours."""
    cli.protect_imports()
    import threading

    from launcher.config.options import command_line
    from launcher.extensions.ray import options
    from launcher.model import console

    try:
        words = sys.argv[1:] if argv is None else argv
        args = command_line.parse(words, options.OPTIONS)
        if args.action:
            return _print_info(args.action, args.topic)
        own, rest = options.split(args, os.environ)
        from launcher.extensions.ray.job_driver import report_end, run_job

        exit_code = report_end(run_job(own, rest, os.environ, close_limit_s=CLOSE_LIMIT_S))
    except KeyboardInterrupt:  # before the job takes the signals over nothing has been started
        exit_code = 130
    except Exception as error:
        exit_code = cli.report(error, PROGRAM)
    finally:
        console.finish()
    if any(thread.name == options.GCS_THREAD for thread in threading.enumerate()):
        os._exit(exit_code)  # Ray has not returned from a call, and would crash where Python ends beside it
    return exit_code


def _print_info(action: str, topic: str) -> int:
    if action == "--completion" or action == "--version" or topic not in ("", "ray"):
        word = [topic] if topic else []
        return cli.main([action, *word])
    from launcher.model.console import write_stdout

    write_stdout(_render_usage())
    return 0


def _render_usage() -> str:
    from click import HelpFormatter

    from launcher.extensions.ray.options import OPTIONS

    formatter = HelpFormatter(width=80)
    formatter.write_usage(PROGRAM, _USAGE)
    formatter.write_paragraph()
    formatter.write_text(_INTRO)
    formatter.write_paragraph()
    with formatter.indentation():
        rows = []
        for option in OPTIONS:
            default = f" [default: {option.default}]" if option.default else ""
            rows.append((f"{option.flag} {option.metavar}", f"{option.help}{default}"))
        formatter.write_dl(rows, col_max=34)
    formatter.write_paragraph()
    formatter.write(f"{_EXAMPLE}\n")
    return formatter.getvalue().strip("\n")
