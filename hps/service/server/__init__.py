"""The gRPC front of the service: calls, rights, limits, health and figures over one shard."""
