"""The seven rules by which any depth gives the bits of depth 0, and the check that names them.

Above it: every file of hps/pipeline. Below it: nothing. Each rule is enforced by a wait or an order
somewhere; `require` is where the rule is relied upon and tells if that enforcement is gone.

    rule  enforced in                                   relied upon, and checked, in
    I1    flow.py: one queue, taken from in order;      work.py: when a batch has been pinned
          flow.py: hold
    I2    pipeline.py: release after step or settling   pipeline.py: when a batch is handed out,
                                                        when its step is done, at the end
    I3    tiers/cached_tier.py: append before fetch     (the tier below would answer an old row)
    I4    stages.py: a batch is passed on once pinned   pipeline.py: when a batch is handed out
    I5    nn/gradients.py, ParameterServer.apply        pipeline.py: nothing pending after a step
    I6    pins.py, flow.py: wait_for_release            pins.py: after a refusal
    I7    pipeline.py: settle                           pipeline.py: when a batch is handed out
"""

RULES = {
    "I1": "batches are pinned one at a time, in their order; what is given back, again",
    "I2": "a batch's rows stay pinned until its step is done or it is dropped, and no longer",
    "I3": "a victim is below before its key is fetched again",
    "I4": "a batch is computed only once all its rows are in place",
    "I5": "a step applies everything pending at once",
    "I6": "a batch that cannot be pinned takes nothing and waits for a release",
    "I7": "no batch is handed out while more gradients are pending than one step may gather",
}


def require(rule: str, holds: bool, seen: str) -> None:
    """Stops the run if a rule does not hold: its results would not be those of depth 0.

    Raises:
        AssertionError: names the rule and what was seen. A fault of hps, never of its user.

    >>> require("I2", True, "")
    """
    if not holds:
        raise AssertionError(f"pipeline rule {rule} ({RULES[rule]}) is broken: {seen}")
