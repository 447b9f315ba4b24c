"""Training on several ranks: every key has one owner rank; keys, rows and gradients travel.

world/ is what ranks do together, in threads of one process or under torchrun; exchange/ brings
keys, rows and gradients to their owners and back; folder/ is what they keep on disk.
"""
