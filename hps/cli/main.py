"""The command `hps`: parses arguments, finds the command's module, turns errors into one line.

Above it: the shell. Below it: the modules of hps.cli, each with add_parsers(subparsers), imported
only when its command is asked for (or for --help), so that torch costs nothing where it is not
needed.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from hps.cli.output import HelpFormatter
from hps.common.full_disk import advise, is_full_disk
from hps.errors import HpsError

# command -> (module, one line of help)
COMMANDS = {
    "generate": ("generate", "write a synthetic click log from a planted model"),
    "train": ("train", "train a model from click logs"),
    "evaluate": ("evaluate", "AUC, logloss and calibration of a stored model"),
    "predict": ("predict", "write a stored model's probabilities for a log"),
    "features": ("features", "describe a log's columns in a file to edit"),
    "report": ("report", "a page of plots of training runs"),
    "dashboard": ("dashboard", "a live page over trainers, servers, ranks and served models"),
    "models": ("models", "the models of a store, and how far each was trained"),
    "lookup": ("lookup", "the row of a raw value of a log, or of a key"),
    "publish": ("publish", "publish a store's model for serving, as a base or what changed"),
    "versions": ("versions", "versions that are published; which one a server scores with"),
    "plan": ("plan", "size a cluster: GPU, DRAM, SSD and network of each rank"),
    "serve": ("serve", "serve a store over gRPC"),
    "serve-model": ("serve_model", "serve a model's scores over gRPC and HTTP"),
    "stats": ("store_commands", "rows, sizes and checkpoints of a store"),
    "verify": ("store_commands", "check every checksum of a store"),
    "checkpoints": ("store_commands", "list or delete checkpoints"),
    "clone": ("clone", "copy one checkpoint into a store of its own"),
    "reshard": ("reshard", "one checkpoint for another number of ranks"),
    "expire": ("expire", "which rows would die in the next period, by given rules"),
    "erase": ("erase", "erase the rows of given keys; which checkpoints still hold them"),
    "compact": ("store_commands", "give back the space of overwritten rows"),
    "export": ("move_commands", "write a table's rows to parquet"),
    "import": ("move_commands", "read a table's rows from parquet"),
    "client": ("client", "ask servers: rows, counters, checkpoints"),
    "bench": ("bench", "run a benchmark"),
    "doctor": ("doctor", "what this machine has, and what hps will use"),
    "completion": ("completion", "what completes this command in bash or zsh"),
}


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the flags, instead of listing all that there are."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(**options)
        self._is_parting = False  # positional words from flags

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse has it; of a command with --config with what its file says."""
        if self._is_parting:
            return super().parse_known_args(args, namespace)
        if "--config" not in self._option_string_actions:
            return self._parsed(args, namespace)
        from hps.cli import config_file  # which the overview does not wait for

        given, unknown = self._parsed(args, config_file.unset(self))
        return config_file.filled(self, given), unknown

    def _parsed(
        self, args: Sequence[str] | None, namespace: argparse.Namespace | None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse has it. Where a positional word that may be left out comes before another,
        flags may stand between the two: argparse by itself takes the first one for the other."""
        counts = [action.nargs for action in self._get_positional_actions()]
        if "?" not in counts[:-1]:
            return super().parse_known_args(args, namespace)
        self._is_parting = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parting = False

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"hps: error: {message}; '{self.prog} --help' lists what {self.prog} takes\n")


def new_parser() -> argparse.ArgumentParser:
    """The parser of `hps` before a command is added to it."""
    from hps.common.version import __version__

    listing = "\n".join(f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items())
    parser = _Parser(
        prog="hps",
        description="Hierarchical parameter server for CTR models.",
        epilog=f"commands:\n{listing}\n\n'hps COMMAND --help' says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hps {__version__}")
    return parser


def make_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of one command, or, without one, of the overview."""
    parser = new_parser()
    if command is None:
        parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
        return parser
    subparsers = parser.add_subparsers(dest="command", required=True)
    import_module(f"hps.cli.{COMMANDS[command][0]}").add_parsers(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; each sets `run` to a function of the parsed arguments.

    Returns:
        The exit status: 0, 1 after an HpsError, 130 after an interrupt, 143 after a SIGTERM that
        `hps train` has seen. Usage errors exit with 2.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words and words[0] in COMMANDS else None
    if command is not None:
        from hps.config import keep_grpc_silent

        keep_grpc_silent()  # errors say what failed, without a line of gRPC's for every attempt
    try:
        status = _run(words, command)
        sys.stdout.flush()  # while a full disk can still be told
        return status
    except HpsError as error:
        text = _one_line(error)
        if is_full_disk(error):
            text = advise(text, "free space and repeat the command")
        print(f"hps: error: {text}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "hps":
            raise
        print(
            f"hps: error: 'hps {command}' needs {error.name}; install it with: "
            f"pip install 'hps-ctr[{'serve' if command == 'serve-model' else 'train'}]', with "
            "-c constraints.txt of hps's sources: else pip takes the newest torch, which brings "
            "CUDA",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; Python would complain at exit
        return 1
    except OSError as error:  # a path of the user's: it cannot be read or written
        print(f"hps: error: {_one_line(error)}", file=sys.stderr)
        _let_go_of_stdout()
        return 1
    except KeyboardInterrupt as error:
        kept = "; --resume goes on from the newest checkpoint" if command == "train" else ""
        number = getattr(error, "signal_number", signal.SIGINT)
        by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
        print(f"hps: interrupted{by}{kept}", file=sys.stderr)
        return 128 + int(number)


def _run(words: list[str], command: str | None) -> int:
    parser = make_parser(command)
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            parser.error(f"argument {word!r}: names and values must be UTF-8")
    options, unknown = parser.parse_known_args(words)
    if unknown:
        verb = getattr(options, "verb", None)
        parser.prog = " ".join(word for word in ("hps", command, verb) if word)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if getattr(options, "quiet", False):
        from hps.cli.output import quiet

        with quiet():
            return int(options.run(options) or 0)
    return int(options.run(options) or 0)


def _one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # without its number
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join("; ".join((text, *getattr(error, "__notes__", ()))).split())


def _let_go_of_stdout() -> None:
    """Drops what standard output could not take; Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
