"""Step hooks of torch.optim.Optimizer, without what they cost where there are none.

Above it: `hps.RowOptimizer`. Below it: torch. torch wraps the `step` of every class of optimizers:
it opens a range of the profiler around it and calls the hooks. The range takes microseconds of
each step, also where no profiler runs.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.autograd import profiler
from torch.optim import optimizer as torch_optimizer

Step = TypeVar("Step", bound=Callable[..., Any])


def with_hooks(step: Step) -> Step:
    """The `step` of a class of optimizers, as torch would wrap it; plain while no profiler runs and
    no hook is registered, of the optimizer or of all."""
    watched = torch.optim.Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def hooked(self: torch.optim.Optimizer, *args: Any, **named: Any) -> Any:
        return (watched if _is_watched(self) else step)(self, *args, **named)

    cast("Any", hooked).hooked = True  # so torch does not wrap it again
    return cast("Step", hooked)


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        getattr(profiler, "_is_profiler_enabled", True)
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    )
