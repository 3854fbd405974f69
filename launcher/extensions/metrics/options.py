"""The options of the metrics; the exporter reads them."""

from __future__ import annotations

from launcher.config.options.readers import Option, make_optional, parse_listen_address, parse_text

# fmt: off
ROWS = (
    Option("ours", "metrics-port", "metrics", "[HOST:]PORT", make_optional(parse_listen_address), "",
           "Serve /metrics, /healthz and /readyz. HOST defaults to loopback; port 0 chooses a free port."),
    Option("ours", "metrics-file", "metrics", "FILE", make_optional(parse_text), "",
           "Write the metrics to FILE every 15 s, for node_exporter's textfile collector."),
)
# fmt: on
