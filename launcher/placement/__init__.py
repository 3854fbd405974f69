"""Which ranks run on which nodes: limits, capacity, planner and explanation."""
