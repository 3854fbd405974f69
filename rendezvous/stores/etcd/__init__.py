"""The client of etcd, over gRPC: calls, one stream for all watches, and the meaning of errors."""
