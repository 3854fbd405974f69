"""What the agents of a run say now: runs, ranks, logs, events, and a full screen of them."""
