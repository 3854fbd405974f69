"""What a node of a job on several machines does before it forks its supervisor."""
