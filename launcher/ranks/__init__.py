"""From an assignment to processes: commands, environments, ports and streams of the workers."""
