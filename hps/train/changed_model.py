"""Takes a model's dense part from the features it was trained with to others.

Above it: `Trainer.load_state`. Below it: `ClickModel.input_axes`, changed_columns.py. Weights of
inputs that stay are kept, wherever the inputs now come; those of new ones are 0, so that the layers
make of the others what they made before; Adam's means go along.
"""

from collections.abc import Hashable, Mapping, Sequence

import torch

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.models import ClickModel
from hps.models.fields import Axes
from hps.models.own import blamed_on_file
from hps.train.changed_columns import changed_lines, fields_of
from hps.train.recipe import ModelRecipe

_Dims = Mapping[int, Sequence[Hashable]]


class ChangedModel:
    """A stored model's dense part as one of other features has it.

    Args:
        before: the stored recipe.
        now: that of the model which takes it up.
        model: of `now`, new.

    Raises:
        ConfigError: the class does not say which weights go with which feature.
    """

    def __init__(self, before: ModelRecipe, now: ModelRecipe, model: ClickModel) -> None:
        self._recipe = now
        self._model = model
        self.lines = changed_lines(before, now)
        old, new = (fields_of(recipe, model.dims_of_tables) for recipe in (before, now))
        self.is_same = old == new
        self._before: Axes = {}
        self._now: Axes = {}
        if not self.is_same:
            with blamed_on_file(now.kind, "input_axes"):
                self._before, self._now = model.input_axes(old), model.input_axes(new)

    def weights(self, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The stored weights by name, for the new inputs. A parameter that the stored model does
        not have begins as in a new model.

        Args:
            stored: `state_dict()` of the stored model.

        Raises:
            ConfigError: they do not have the sizes that the class says.
        """
        own = self._model.state_dict()
        weights = {
            name: self._moved(name, stored[name]) if name in stored else fresh.clone()
            for name, fresh in own.items()
        }
        for name, value in weights.items():
            if value.shape != own[name].shape:
                raise ConfigError(
                    f"model {self._recipe.kind}: stored weights {name} {list(stored[name].shape)} "
                    f"become {list(value.shape)} by input_axes of its class, which now makes "
                    f"{list(own[name].shape)}; correct input_axes, or leave --change-features out"
                )
        return weights

    def optimizer(self, stored: JsonView, weights: Mapping[str, torch.Tensor]) -> Json:
        """The state of the dense part's optimizer likewise; counts of steps stay.

        Args:
            stored: its `state_dict()`.
            weights: as `weights` takes them.

        Raises:
            ConfigError: it is of other parameters than the weights.
        """
        (group,) = stored["param_groups"]
        buffers = dict(self._model.named_buffers())
        names = [name for name in weights if name not in buffers]
        if len(names) != len(group["params"]):
            raise ConfigError(
                f"model {self._recipe.kind}: the stored optimizer is of {len(group['params'])} "
                f"parameters, the stored weights have {len(names)}; its features cannot be changed"
            )
        states = {
            name: stored["state"][number]
            for name, number in zip(names, group["params"], strict=True)
            if number in stored["state"]
        }
        own = [name for name, _ in self._model.named_parameters()]
        moved = {
            place: {
                key: self._moved(name, value) if _is_like(value, weights[name]) else value
                for key, value in states[name].items()
            }
            for place, name in enumerate(own)
            if name in states
        }
        return {"state": moved, "param_groups": [{**group, "params": list(range(len(own)))}]}

    def _moved(self, name: str, stored: torch.Tensor) -> torch.Tensor:
        """Values of a parameter, or of what is kept for each of its elements, for new inputs."""
        before, now = self._before.get(name, {}), self._now.get(name, {})
        for dim in now:
            labels = before.get(dim, ())
            if dim >= stored.dim() or len(labels) != stored.shape[dim]:
                raise ConfigError(
                    f"model {self._recipe.kind}: input_axes of its class says {len(labels)} inputs "
                    f"for dimension {dim} of {name} {list(stored.shape)}; correct it, or leave "
                    "--change-features out"
                )
            stored = _taken(stored, dim, labels, now[dim])
        return stored


def _is_like(value: object, weight: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == weight.shape


def _taken(
    stored: torch.Tensor, dim: int, before: Sequence[Hashable], now: Sequence[Hashable]
) -> torch.Tensor:
    """What lies at each label, along one dimension, in the order of now; 0 at new ones.

    >>> _taken(torch.tensor([1.0, 2.0]), 0, ["a", "b"], ["b", "c"])
    tensor([2., 0.])
    """
    places = {label: place for place, label in enumerate(before)}
    found = [(place, places[label]) for place, label in enumerate(now) if label in places]
    taken = stored.new_zeros([*stored.shape[:dim], len(now), *stored.shape[dim + 1 :]])
    to, source = (
        torch.tensor([pair[side] for pair in found], dtype=torch.int64, device=stored.device)
        for side in (0, 1)
    )
    return taken.index_copy_(dim, to, stored.index_select(dim, source))
