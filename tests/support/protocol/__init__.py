"""Members of a job that a test steps by hand, and views for the leader's decisions."""
