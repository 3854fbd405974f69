"""What a leader decides, as pure functions of a View; the entry is decide.py.

charge.py, budget.py and quarantine.py are the cost of a round that failed, candidates.py the members of the next one.
Each decision carries a sentence with its reason and the name of its rule.
"""
