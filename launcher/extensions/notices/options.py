"""The option of the notices. What holds where it is not set is its default.

It adds no part, so it is not in PARTS of launcher/extensions/__init__.py: an agent has that part (NOTICES there) from
its start, unless the option is "off".
"""

from __future__ import annotations

from launcher.config.options.readers import Option, parse_choice

# fmt: off
ROWS = (
    Option("ours", "notices", "shutdown", "leave|report|off", parse_choice, "leave",
           "Action on a cloud's preemption notice: leave the job, or only report the notice; off: do not check."),
)
# fmt: on
