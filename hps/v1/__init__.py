"""The generated messages of proto/hps/v1; `make proto` makes them again.

Above it: hps.service. Below it: protobuf.
"""
