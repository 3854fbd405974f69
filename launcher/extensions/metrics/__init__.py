"""What Prometheus reads of a node: the metrics, the probes, and the file for node_exporter.

    table          every metric, and how it is read from the node's report
    exposition     the report in Prometheus' words
    paths          what --metrics-port answers, by launcher/views/http
    textfile       --metrics-file
    options        both, and what they need

It reads what the agent says of its node, as any view does, and nothing else of it. prometheus_client is imported with
the first request. No reader, full disk or lack of threads may reach the job.
"""
