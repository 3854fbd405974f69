"""Who leads, what the leader sees and decides, and how it is written.

election.py and takeover.py: who leads. view_builder.py makes a View of the store, decide.py is the decision, with
charge.py, budget.py, quarantine.py, candidates.py and requests.py below it; leader.py carries it out, commit.py
seals rounds.
"""
