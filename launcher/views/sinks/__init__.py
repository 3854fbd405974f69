"""Where events go: each module takes them to a file, a command, an address or a server, and never holds the job."""
