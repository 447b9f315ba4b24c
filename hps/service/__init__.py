"""The service: one process over one store, whose clients' mutations are applied exactly once each.

Above it: `hps serve`, RemoteParameterServer. Below it: hps/parameter_server, update_log/.
"""
