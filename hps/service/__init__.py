"""The gRPC service of one shard: messages, the server's rules, and the clients of it.

Above it: `hps serve`, `hps.RemoteParameterServer`. Below it: `hps.service.shard`, which applies.
Importing this package imports neither grpc nor protobuf.
"""
