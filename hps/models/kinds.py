"""The classes of models by their names: those of hps, and a user's own as `file.py:Class`.

Above it: `hps.train`. Below it: the models, own.py.
"""

import os

from hps.common.model_names import OWN, own_model
from hps.errors import ConfigError
from hps.models.autoint import AutoInt
from hps.models.base import ClickModel
from hps.models.dcn_v2 import DCNv2
from hps.models.deepfm import DeepFM
from hps.models.din import DIN
from hps.models.dlrm import DLRM
from hps.models.fm import FactorizationMachine
from hps.models.lr import LogisticRegression
from hps.models.own import load_own, loaded_own
from hps.models.wide_deep import WideAndDeep

MODELS: dict[str, type[ClickModel]] = {
    model.kind: model
    for model in (
        *(DeepFM, DLRM, WideAndDeep, DCNv2),
        *(LogisticRegression, FactorizationMachine, AutoInt, DIN),
    )
}


def require_kind(kind: object) -> None:
    """A name of MODELS, or one that may be a user's own; no file is looked at.

    Raises:
        ConfigError: anything else.
    """
    is_known = isinstance(kind, str) and kind in MODELS
    if not is_known and own_model(kind) is None:
        raise ConfigError(
            f"model={kind!r} must be one of {tuple(MODELS)}, or a model of your own as {OWN}"
        )


def load_class(
    kind: str, *, store: str | os.PathLike[str] | None = None, is_stored: bool = False
) -> type[ClickModel]:
    """The class of a kind. The file of a user's own is read, and run if it is not the one that
    this process has run before.

    Args:
        kind: a name of MODELS, or `file.py:Class`.
        store: none of whose files are run.
        is_stored: the name comes from a checkpoint; an error then says what to do about that.

    Raises:
        ConfigError: no such kind; or what is wrong with the file, or with its class.

    >>> load_class("dlrm").__name__
    'DLRM'
    """
    require_kind(kind)
    return MODELS[kind] if kind in MODELS else load_own(kind, store, is_stored)


def class_of(kind: str) -> type[ClickModel]:
    """The class of a kind; of a user's own the one that is loaded, whatever its file has become.

    Raises:
        ConfigError: as `load_class`, where it is not loaded yet.
    """
    require_kind(kind)
    return MODELS[kind] if kind in MODELS else loaded_own(kind) or load_class(kind)


def are_same(one: str, other: str) -> bool:
    """True of equal names, and of two paths to one file with the same class.

    >>> are_same("mine.py:Mine", "./mine.py:Mine")
    True
    """
    names = own_model(one), own_model(other)
    if one == other or names[0] is None or names[1] is None:
        return one == other
    paths = [os.path.realpath(name[0]) for name in names if name is not None]
    return paths[0] == paths[1] and names[0][1] == names[1][1]
