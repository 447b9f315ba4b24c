"""A user's own model: the class that `file.py:Class` names, from a file that is run as a module.

Above it: kinds.py, the recipe of a model. Below it: base.py. The file is run once for each text of
it: a run of hours keeps the class it began with, and the next one has the file as it is then.
"""

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from torch import nn

from hps.common.model_names import own_model
from hps.errors import ConfigError, HpsError
from hps.models.base import ClickModel

_FLAGS = ("has_first_order", "has_vectors", "has_deep_part", "takes_sequences")


def load_own(kind: str, store: str | os.PathLike[str] | None, is_stored: bool) -> type[ClickModel]:
    """As `load_class` of kinds.py, of a name that is no other's."""
    file, name = _parts(kind)
    path, source = _read(kind, file, is_stored)
    if store is not None and path.is_relative_to(Path(store).resolve()):
        raise ConfigError(
            f"model {kind!r}: {path} lies in the store {os.fspath(store)!r}, from which no code is "
            "run; keep the file elsewhere"
        )
    module, digest = _module(file), hashlib.sha256(source).hexdigest()
    if module is None or (module.__file__, _digest(module)) != (str(path), digest):
        module = _run(kind, path, source, digest)
    return _class_in(module, kind, name)


def loaded_own(kind: str) -> type[ClickModel] | None:
    """The class as it was loaded last; None if it was not."""
    file, name = _parts(kind)
    module = _module(file)
    return None if module is None else _class_in(module, kind, name)


def code_digest(kind: str) -> str | None:
    """SHA-256 of the file as it was loaded last; None of a model of hps, and of what is not loaded.

    >>> code_digest("deepfm") is None
    True
    """
    own = own_model(kind)
    module = None if own is None else _module(own[0])
    return None if module is None else _digest(module)


@contextmanager
def blamed_on_file(kind: str, what: str) -> Iterator[None]:
    """Turns what a user's code raises into a ConfigError that names its line.

    Args:
        kind: of the model; of one of hps nothing is turned.
        what: is being done, in words.
    """
    try:
        yield
    except HpsError:
        raise
    except (Exception, SystemExit) as error:
        if own_model(kind) is None:
            raise
        raise _blamed(kind, what, error) from error


def _parts(kind: str) -> tuple[str, str]:
    parts = own_model(kind)
    assert parts is not None
    return parts


def _read(kind: str, file: str, is_stored: bool) -> tuple[Path, bytes]:
    try:
        path = Path(file).resolve()
        return path, path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
    here = "" if os.path.isabs(file) else f" from {os.getcwd()}"
    way_out = "correct --model, which takes the path of the file as seen from here"
    if is_stored:
        way_out = (
            "the checkpoint names its model's file by that path: run the command in the folder "
            "from which the path is right, or put the file there"
        )
    raise ConfigError(f"model {kind!r}: cannot read {file!r}{here}: {reason}; {way_out}")


def _run(kind: str, path: Path, source: bytes, digest: str) -> ModuleType:
    """The file as a module, which is put where Python keeps those that are imported."""
    name = _module_name(_parts(kind)[0])
    spec = spec_from_file_location(name, path)
    assert spec is not None
    spec.loader_state = digest
    module = module_from_spec(spec)
    before = sys.modules.get(name)
    folder = str(path.parent)
    is_new = folder not in sys.path  # what lies beside the file can be imported, after all else
    if is_new:
        sys.path.append(folder)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, Exception | SystemExit):
            raise _blamed(kind, "importing it", error) from error
        raise
    finally:
        if is_new:
            sys.path.remove(folder)
    return module


def _class_in(module: ModuleType, kind: str, name: str) -> type[ClickModel]:
    found = getattr(module, name, None)
    if found is None:
        classes = [
            one.__name__
            for one in vars(module).values()
            if isinstance(one, type) and one.__module__ == module.__name__
            if issubclass(one, ClickModel)
        ]
        raise ConfigError(
            f"model {kind!r}: {module.__file__} has no {name!r}; its subclasses of "
            f"hps.models.ClickModel are {classes}"
        )
    if not isinstance(found, type) or not issubclass(found, ClickModel):
        raise ConfigError(
            f"model {kind!r}: {name!r} of {module.__file__} is no subclass of hps.models.ClickModel"
        )
    wrong = _what_is_wrong(found)
    if wrong is not None:
        raise ConfigError(f"model {kind!r}: {name!r} of {module.__file__} {wrong}")
    return found


def _what_is_wrong(model: type[ClickModel]) -> str | None:
    if model.forward is nn.Module.forward:
        return "has no method forward(batch), which returns logits [B]"
    for flag in _FLAGS:
        if not isinstance(getattr(model, flag), bool):
            return f"has {flag}={getattr(model, flag)!r}; it must be True or False"
    if not model.has_vectors and not model.has_first_order:
        return "has neither vectors nor a first-order weight: its rows would have no column"
    try:
        more: dict[str, object] = {"sequences": {}} if model.takes_sequences else {}
        inspect.signature(model).bind(None, {}, 0, (), 0.0, **more)
    except TypeError as error:
        return (
            "cannot be made as ClickModel(server, features, num_dense, hidden, dropout"
            f"{', sequences=...' if model.takes_sequences else ''}) is: {error}"
        )
    return None


def _blamed(kind: str, what: str, error: BaseException) -> ConfigError:
    """Names the line of the file, and what was raised there."""
    path = str(Path(_parts(kind)[0]).resolve())
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, error = [error.lineno], SyntaxError(error.msg)
    at = f" at line {lines[-1]} of {path}" if lines else f" ({path})"
    told = f": {error}" if str(error) else ""
    return ConfigError(f"model {kind!r}: {what} failed{at}: {type(error).__name__}{told}")


def _module_name(file: str) -> str:
    return f"hps_own_model_{hashlib.sha256(file.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _module(file: str) -> ModuleType | None:
    return sys.modules.get(_module_name(file))


def _digest(module: ModuleType) -> str | None:
    return None if module.__spec__ is None else module.__spec__.loader_state
