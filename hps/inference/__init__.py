"""The generated messages of proto/hps/inference; `make proto` makes them again.

Above it: hps.serving. Below it: protobuf.
"""
