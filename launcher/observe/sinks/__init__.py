"""Where events go: each module takes the journal's events to a file, a command, an address or a server, and holds no job."""
