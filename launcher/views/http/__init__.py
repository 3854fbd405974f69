"""What an agent serves by HTTP: the live page, the metrics and the probes, which are paths that extensions register.

    path_group    what is served, and the listener for it
    http_server   one listener, its connections and their limits; finds the path of a request
    admission     who may read a path that is not open to all
    http_part     has a listener for each address that options name, while there is a path to serve

Paths that two options put on one address share a listener, its limits and its token. An extension is imported with the
first request for its paths. No reader may reach the job.
"""
