"""The parts of every member: joining, its lease, its round, an outage of the store, a watch gone stale, leaving."""
