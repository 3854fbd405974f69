"""The supervisor: a small process beside the agent that starts the workers and kills them if necessary."""
