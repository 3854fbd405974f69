"""Election of a leader (election.py, takeover.py), and what the leader does: observe, decide, write.

observe.py makes a View of the store, `policy` decides on it, leader.py carries that out, commit.py commits rounds.
"""
