"""What carries out the machine's actions: threads for requests and watches, and log messages about the store."""
