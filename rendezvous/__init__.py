"""Agreement between the agents of one job: who is a member, who is in the current round, and how the job ended.

This package knows no devices, ranks, processes or frameworks. A member's description and its assignment are opaque text
to it; the planner that makes assignments is an argument. Read machine.py first: state/ holds all state.
"""

__version__ = "0.1.0"
"""Of meshrun, the same as in pyproject.toml: agents of two versions do not meet in one job, see records.py."""
