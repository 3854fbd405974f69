"""What people and programs can see of a run: its events, its rounds, its nodes and ranks now, their output."""
