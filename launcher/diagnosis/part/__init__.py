"""The agents' part in finding which rank a job waits for: each looks at its own workers, the leader concludes."""
