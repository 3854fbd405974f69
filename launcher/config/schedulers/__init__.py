"""This node's part of a job, from the environment of a scheduler; a file per scheduler."""
