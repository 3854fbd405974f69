"""The planner's adapter to the agreement: descriptions of members in, assignments out."""
