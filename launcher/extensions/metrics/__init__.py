"""What Prometheus reads of a node: the metrics, a server for them and for probes, and the file for node_exporter.

    table          every metric, and how it is read from the node's report
    exposition     the report in Prometheus' words
    server         --metrics-port, with its probes
    textfile       --metrics-file
    exporter       begins and ends them

It reads what the agent says of its node, as any view does, and nothing else of it. prometheus_client is imported a
second after the first workers have started. No reader, full disk or lack of threads may reach the job.
"""
