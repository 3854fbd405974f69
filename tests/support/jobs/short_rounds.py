"""The command without pauses after short rounds: `python -m tests.support.jobs.short_rounds [options] SCRIPT ...`.

Ten short rounds in a row would end a job, and before that each pause is twice the last, so hundreds of restarts
can only be watched with both out of the way. AGENT in the workers' environment is the agent's pid.
"""

from __future__ import annotations

import os
import sys

from msgspec.structs import replace

from launcher import cli
from launcher.agent import build
from launcher.agent.membership import make_settings

if __name__ == "__main__":
    os.environ["AGENT"] = str(os.getpid())
    build.make_settings = lambda *asked, **more: replace(make_settings(*asked, **more), min_round_time_s=0.0)
    sys.exit(cli.main())
