"""Put first on the path of a fork server while Python starts: see `launcher/forkserver/fork_server.py`."""
