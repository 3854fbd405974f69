"""Who leads (election.py, takeover.py), and what the one who leads does: look, decide, write.

view_builder.py makes a View of the store, `policy` decides on it, leader.py carries that out, commit.py commits rounds.
"""
