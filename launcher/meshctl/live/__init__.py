"""What the agents of a run say now: runs, ranks, output, events, and a full screen of them.

`source` finds an agent to ask, `poller` asks it over and over; `log_lines`, `ranks` and `top_state` are pure and make
what is shown; `top_screen` puts it on a terminal.

A node that does not answer is named and holds nobody up. However many look, the nodes are asked once.
"""
