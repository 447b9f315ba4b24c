"""Training on several ranks: every key has one owner rank; keys, rows and gradients travel.

world.py says what ranks do together; local_world.py and torch_world.py do it, in threads of one
process and under torchrun.
"""
