"""Real processes for tests: agents and supervisors reduced to what a test commands, and a view of their families."""
