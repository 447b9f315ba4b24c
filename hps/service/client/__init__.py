"""The client of the service: the verbs of a parameter server over gRPC, exactly once."""
