"""The client of etcd, over gRPC: calls, one stream for all watches, and the meaning of errors.

`client` makes one request to one of several servers, `store` is the contract over it, `watch` shares a stream, `errors`
says of each failure whether anything was written and whether another server may answer.

It retries only what cannot have been written, and reports the end of every watch.
"""
