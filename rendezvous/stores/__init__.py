"""The stores of a job's agreement: what it needs of one (`contract`, etcd v3's terms), and a package for each kind.

`etcd` is a client over gRPC, `memory` a store in this process, `server` that store served to other nodes. `wire` and
`protobuf` are etcd's messages, `listeners` and `addresses` what sockets need.

A kind is imported by a run that uses it. A store knows keys and leases, and nothing of jobs; what it cannot say for
certain (was it written?) it reports as unknown.
"""
