"""Put first on the path of a fork server while Python starts: see `launcher/supervisor/fork_server/fork_server.py`."""
