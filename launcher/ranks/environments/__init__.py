"""The environment variables of a worker, a file per framework."""
