"""What a leader decides, as pure functions of a View: decide.py is the entry.

requests of people (commands.py), who is charged for a round that broke (charge.py, budget.py, quarantine.py), and who
runs the next (candidates.py). Each decision carries the sentence that says why, and the name of its rule.
"""
