"""The planner as the agreement sees it: descriptions of members in, assignments out."""
