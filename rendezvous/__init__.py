"""Agreement between the agents of one job: who is here, who is in this round, and how the job ended.

This package knows no devices, ranks, processes or frameworks. What a member says of itself and what it
is given to run are opaque text to it; the planner that fills them in is an argument. Read `protocol`
first: all state of the agreement is there.
"""
