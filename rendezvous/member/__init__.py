"""The parts of every member: join, lease, its round, store outage, stale watch, leave."""
