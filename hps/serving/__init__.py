"""The server of a model: the Open Inference Protocol over gRPC and REST, over `hps.Model`.

Above it: `hps serve-model`. Below it: `hps.train.model`, which scores; hps/service/server, whose
front it shares with `hps serve`.
"""
