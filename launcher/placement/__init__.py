"""The placement of ranks on nodes: limits, capacity, planner and explanation."""
