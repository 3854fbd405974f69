"""What the environment of a job scheduler says about this node, a file per scheduler."""
