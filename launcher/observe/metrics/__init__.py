"""What Prometheus reads of a node: the metrics, a server for them and for probes, and the file for node_exporter."""
