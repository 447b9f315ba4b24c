"""`hps train --config FILE`: every flag from a file, by the flag's own rules; the words win.

Above it: pytest. Below it: hps/cli/config_file.py.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hps.cli import config_file
from hps.cli.main import _Parser, main, make_parser
from hps.cli.option_flags import Switch
from hps.cli.train_flags import add_train_flags
from tests.logs import write_criteo

NAME = "run.toml"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(text: str | bytes, *words: str) -> argparse.Namespace:
    """What `hps train --config` takes from a file of this text."""
    Path(NAME).write_bytes(text.encode() if isinstance(text, str) else text)
    return make_parser("train").parse_args(["train", *words, "--config", NAME])


def refused(capsys: pytest.CaptureFixture[str], text: str | bytes, *words: str) -> str:
    """The one line that it is refused with."""
    with pytest.raises(SystemExit) as ended:
        parsed(text, *words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1, said
    start = re.match(rf"hps: error: argument --config: {re.escape(NAME)}(, line \d+)?: ", said)
    assert start is not None, said
    return said[start.end() :]


def plain_parser() -> argparse.ArgumentParser:
    """The flags of `hps train` in a parser that knows nothing of files."""
    parser = argparse.ArgumentParser()
    add_train_flags(parser)
    parser.set_defaults(command="train", run=None)
    return parser


def as_plain(namespace: argparse.Namespace) -> dict[str, Any]:
    return {**vars(namespace), "run": None, "config": None}


# For flags of each sort: a value in a file, and the words that say the same.
SAMPLES: dict[str, tuple[str, list[str]]] = {
    "data": ('["a b.tsv", "é.tsv"]', ["a b.tsv", "é.tsv"]),
    "model": ('"fm"', ["fm"]),
    "hidden": ("[32, 16]", ["32,16"]),
    "server": ('["127.0.0.1:1", "127.0.0.1:2"]', ["127.0.0.1:1,127.0.0.1:2"]),
    "depth": ("3", ["3"]),
    "device": ('"cuda:1"', ["cuda:1"]),
    "dram": ("268435456", ["268435456"]),
    "gpu": ('"1.5GiB"', ["1.5GiB"]),
    "gpu_batches": ('"256MiB"', ["256MiB"]),
}


def sample_of(parser: argparse.ArgumentParser, key: str, action: Any) -> tuple[str, list[str]]:
    """A value for a flag, as TOML and as words, by what the flag itself accepts."""
    option = f"--{key}"
    if action.nargs == 0:
        return "true", [option]
    if key in SAMPLES:
        text, words = SAMPLES[key]
        return text, [option, *words] if action.option_strings else words
    if action.choices is not None:
        return json.dumps(action.choices[-1]), [option, action.choices[-1]]
    if action.nargs == "+":
        return '["x", "y"]', [option, "x", "y"]
    if isinstance(action, argparse._AppendAction):
        return '["x", "y"]', [option, "x", option, "y"]
    for word in ("7", "0.5"):
        try:
            value = parser._get_value(action, word)
        except argparse.ArgumentError:
            continue
        return (word if isinstance(value, int | float) else f'"{word}"'), [option, word]
    raise AssertionError(f"{key}: give a sample of it")


def test_every_flag_can_be_in_the_file_and_is_what_the_words_say() -> None:
    parser, plain = make_parser("train"), plain_parser()
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    train = action.choices["train"]
    keys = config_file.keys(train)
    missing = {one.dest for one in train._actions} - {one.dest for one in keys.values()}
    assert missing == {"help", "config"}
    assert len(keys) > 60 and {"data", "no-digest", "raw-keys", "cluster-timeout"} <= set(keys)
    assert not [one.dest for one in train._actions if one.required], "a file cannot give it"
    seen = 0
    for key, flag in keys.items():
        value, words = sample_of(train, key, flag)
        data = [] if key == "data" else ["log"]
        expected = as_plain(plain.parse_args([*data, *words]))
        assert expected != as_plain(plain.parse_args(["log"])), key
        for spelled in (key, key.replace("-", "_")):
            found = as_plain(parsed(f"{spelled} = {value}\n", *data))
            assert found == expected, (key, value)
            assert {name: type(one) for name, one in found.items()} == {
                name: type(one) for name, one in expected.items()
            }
        seen += 1
    assert seen == len(keys)


def test_without_a_file_every_default_is_that_of_the_flags() -> None:
    plain = plain_parser()
    for words in (["log"], ["a", "--test", "b", "c", "--raw-keys", "--ignore", "d", "--ignore=e"]):
        found = make_parser("train").parse_args(["train", *words])
        assert as_plain(found) == as_plain(plain.parse_args(words))
    assert parsed("", "log").hash_keys is None and parsed("# nothing\n \n", "log").digest is True


def test_the_command_line_wins_over_the_file() -> None:
    text = (
        'data = ["a", "b"]\nbatch-size = 512\nno-digest = true\nignore = ["x"]\ntest = "t"\n'
        'hash-keys = true\ndram = "2MiB"\nmodel = "dlrm"\n'
    )
    found = parsed(text, "c", "--batch-size", "4096", "--ignore", "y", "--raw-keys", "--dram=1GiB")
    assert found.data == ["c"] and found.batch_size == 4096, "also where it is the default"
    assert found.ignore == ["y"] and found.hash_keys is False and found.dram == "1GiB"
    assert found.digest is False and found.test == ["t"] and found.model == "dlrm"
    assert parsed(text, "--hash-keys").hash_keys is True
    assert parsed('raw_keys = true\ndata = "a"\n', "--hash-keys").hash_keys is True


def test_each_switch_of_the_file_can_be_taken_back_by_the_words() -> None:
    parser = make_parser("train")
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    switches = [one for one in commands.choices["train"]._actions if isinstance(one, Switch)]
    paired = {one.option_strings[0]: one for one in switches if one.opposites}
    assert {"--progressive", "--no-digest", "--dense-log", "--resume"} <= set(paired)
    assert set(paired) | {"--hash-keys"} == {one.option_strings[0] for one in switches}
    for flag, action in paired.items():
        (opposite,) = action.opposites
        text = f"{flag[2:]} = true"
        bare = flag[2:].removeprefix("no-")
        assert {flag, opposite} == {f"--{bare}", f"--no-{bare}"}
        assert getattr(parsed(text, "a"), action.dest) == action.const != action.default
        assert getattr(parsed(text, "a", opposite), action.dest) == action.default
        # Without a file, too; the last one wins, over the default as well.
        parse = make_parser("train").parse_args
        for words, value in (
            ([flag, opposite], action.default),
            ([opposite, flag], action.const),
            ([opposite], action.default),
        ):
            assert getattr(parse(["train", "a", *words]), action.dest) == value
    # hash-keys has one of its own.
    assert parsed("hash-keys = true", "a", "--raw-keys").hash_keys is False


def test_the_opposite_of_a_switch_is_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    """`digest = false` would read as if it left the digests out."""
    for text in ("digest = false", "digest = true", "no_progressive = true"):
        assert ": unknown key; the nearest is " in refused(capsys, text, "log")


def test_a_flag_of_the_words_drops_what_it_excludes_from_the_file() -> None:
    """Also where the two have values of their own."""
    parser = _Parser()
    config_file.add_config_flag(parser)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--fast", action="store_true")
    either.add_argument("--slow", type=int, default="1")  # text, as its type wants it
    Path(NAME).write_text("slow = 3")
    found = parser.parse_args(["--config", NAME])
    assert (found.fast, found.slow) == (False, 3)
    found = parser.parse_args(["--fast", "--config", NAME])
    assert (found.fast, found.slow) == (True, 1)


def test_a_switch_that_is_false_is_left_off() -> None:
    found = parsed("no-digest = false\nraw-keys = false\nresume = false\nhash_keys=false", "a")
    assert found.digest is True and found.hash_keys is None and found.resume is False
    assert parsed("hash-keys = false\nraw-keys = true", "a").hash_keys is False


def test_data_may_come_from_the_file_alone_and_is_required(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parsed('data = ["a"]').data == ["a"] and parsed("data = 'a'").data == ["a"]
    for words in (["--config", NAME], []):
        Path(NAME).write_text("batch-size = 3")
        with pytest.raises(SystemExit) as ended:
            main(["train", "--store", "s", *words])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and "are required: DATA" in said and "--config" in said
    assert main(["train", "a", "--config", NAME]) == 1
    assert "give --store DIR or --server" in capsys.readouterr().err


WRONG = [
    ("batch-size = 0", "batch-size = 0: '0' must be a whole number from 1 to 16777216"),
    ("batch-size = 5.0", "batch-size = 5.0: '5.0' must be a whole number from 1"),
    ("batch-size = true", "batch-size = true: true and false are for switches"),
    ("batch_size = '512'", 'batch_size = "512": a number is needed, without quotes'),
    ("batch-size = [1]", "batch-size = [1]: it takes one value, not a list"),
    ("batch-size = 1979-05-27", 'batch-size = "1979-05-27": a number, a text in quotes'),
    ("[batch-size]\na = 1", 'batch-size = {"a": 1}: a number, a text in quotes'),
    (f"seed = {2**64}", f"seed = {2**64}: '{2**64}' must be a whole number from 0"),
    (f"seed = 0x{'f' * 5000}", "seed: the number has too many digits"),
    ("lr = nan", "lr = NaN: 'nan' must be a number, greater than 0"),
    ("lr = -inf", "lr = -Infinity: '-inf' must be a number, greater than 0"),
    ("lr = '0.1'", 'lr = "0.1": a number is needed, without quotes'),
    ("model = 'deep'", "model = \"deep\": 'deep' must be one of deepfm, "),
    ("model = 3", "model = 3: '3' must be one of deepfm, "),
    ("store = 3", "store = 3: a text is needed, in quotes"),
    ("store = ''", 'store = "": the value is empty'),
    ("label = 7", "label = 7: a text is needed, in quotes"),
    ("label = '  '\nlabl = ' '", "labl = \" \": unknown key; the nearest is 'label'"),
    ("resume-from = 3", "resume-from = 3: a text is needed, in quotes"),
    ("dram = '1XB'", "dram = \"1XB\": '1XB' must be a size above 0 in bytes"),
    ("test = []", "test = []: it takes at least one value"),
    ("data = ['a', '']", 'data = "": the value is empty'),
    ("data = ['a', 3]", "data = 3: a text is needed, in quotes"),
    ("data = ['a', ['b']]", 'data = ["b"]: a number, a text in quotes'),
    ('data = ["a\\u0000b"]', 'data = "a\\u0000b": a text may hold no NUL'),
    ("hidden = [16, 0]", "hidden = \"16,0\": '0' must be a whole number from 1"),
    ("hidden = [16, true]", "hidden = true: true and false are for switches"),
    ("resume = 1", "resume = 1: a switch is true or false"),
    ("resume = 'true'", 'resume = "true": a switch is true or false'),
    ("digest = false", "digest = false: unknown key; the nearest is 'no-digest'"),
    ("Batch-Size = 1", "Batch-Size = 1: unknown key; the nearest is 'batch-size'"),
    ("--dim = 1", "--dim = 1: unknown key; the nearest is 'dim'"),
    ("zzz = 1", "zzz = 1: unknown key; it is the name of no flag"),
    ("help = true", "help = true: unknown key; it is the name of no flag"),
    ('config = "b.toml"', 'config = "b.toml": a file names no other file'),
    ("[train]\ndim = 3", 'train = {"dim": 3}: unknown key; the nearest is'),
    ("optimizer.lr = 3", 'optimizer = {"lr": 3}: a number, a text in quotes'),
    ('"é\\n" = 1', '"\\u00e9\\n" = 1: unknown key'),
    ("dim = 1\ndim = 2", 'line 2, "dim = 2": the key is there twice'),
    ("batch-size = 1\nbatch_size = 2", "batch_size = 2: batch-size is there, too, and is the same"),
    ("raw-keys = true\nhash_keys = true", "hash_keys and raw-keys exclude each other; keep one"),
    ("dim 3", "it is not TOML: line 1, \"dim 3\": Expected '='"),
    ("store = 'a\u2028'\n\ndim 3", "it is not TOML: line 3, \"dim 3\": Expected '='"),
    ("dim = ", 'it is not TOML: line 1, "dim =": Invalid value'),
    ("[", "it is not TOML: "),
    ("data = " + "[" * 5000, "it is not TOML: "),
    (b"\xff\xfe\x00", "it is not TOML: 'utf-8' codec can't decode"),
    (b"#" + b"x" * 2**20, "it has more than 1048576 bytes"),
]


@pytest.mark.parametrize(("text", "start"), WRONG, ids=[str(text)[:30] for text, _ in WRONG])
def test_what_is_wrong_is_named_with_key_value_and_what_is_allowed(
    text: str | bytes, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, text, "log")
    assert said.startswith(start) or (said.startswith("it is not TOML") and start in said), said
    assert said.endswith("; 'hps train --help' lists what hps train takes\n")
    assert len(said) < 500


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("dim = 4\n\n# é\nlabl = 'x'\n", 4),
        ("\ufeffdim = 4\r\nbatch_size = 'x'\r\n", 2),
        ("data = [\n  'a',\n  'b',\n]\nresume = 1", 5),
        ("data = [\n  'a',\n  3,\n]", 1),
        ("dim = 4\n[train]\ndim = 3", 2),
        ("dim = 4\n'dim ' = 3", 2),
        ("dim = 4\noptimizer.lr = 3", 2),
        ("batch-size = 1\nbatch_size = 2", 2),
        ("raw-keys = true\n\nhash-keys = true", 3),
        (f"lr = 1\nseed = 0x{'f' * 5000}", 2),
        ("store = 'a\u2028b\x85c'\nlabl = 3", 2),
        ("store = '''\nlabl = 3\n'''\nlabl = 3", 4),
        ('store = """a\\"""\nlabl = 3\n" """\n# [\nlabl = 3', 5),
        ('store = """a""""\nlabl = 3', 2),
        ("data = [ # ]\n  'labl = 3', # [\n]\nlabl = 3", 4),
    ],
)
def test_an_error_names_the_line_of_its_key(
    text: str, line: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(text, "log")
    assert f"{NAME}, line {line}: " in capsys.readouterr().err


def test_what_the_command_line_overrides_is_checked_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "batch-size = 0" in refused(capsys, "batch-size = 0", "log", "--batch-size", "5")


def test_other_spellings_of_toml_are_read() -> None:
    text = "\ufeff# of windows\r\nseed = 0x1_0\r\nlr = 1e-3\r\nlimit = +7\r\nhidden = []\r\n"
    found = parsed(text, "log")
    assert (found.seed, found.lr, found.limit, found.hidden) == (16, 0.001, 7, ())
    assert parsed("hidden = ''", "log").hidden == () and parsed("hidden = 8", "l").hidden == (8,)
    assert parsed("limit = 2e6", "log").limit == 2_000_000
    assert parsed("depth = 'auto'", "log").depth == "auto" and parsed("dim=5", "l").dim == 5


@pytest.mark.parametrize("what", ["missing", "folder", "empty name"])
def test_a_file_that_cannot_be_read_is_named(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = {"missing": "no.toml", "folder": ".", "empty name": ""}[what]
    with pytest.raises(SystemExit) as ended:
        main(["train", "log", "--store", "s", f"--config={name}"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert said.startswith(f"hps: error: argument --config: {name or 'the value is empty'}")


def test_the_memory_is_looked_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed('dram = "900TiB"', "log").dram == "900TiB"
    assert capsys.readouterr().err.count("hps: warning: --dram 900TiB") == 1
    assert parsed("", "log", "--dram", "900TiB").dram == "900TiB"
    assert capsys.readouterr().err.count("hps: warning: --dram 900TiB") == 1


def test_help_names_the_flag_and_keeps_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    Path(NAME).write_text("batch-size = 512")
    for words in (["--help"], ["--config", NAME, "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(["train", *words])
        text = " ".join(capsys.readouterr().out.split())
        assert ended.value.code == 0 and "--config FILE" in text and "working directory" in text
        assert "passes over the log (default: 1)" in text and "UNSET" not in text
        assert "object at" not in text


def test_a_file_trains_and_paths_are_those_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    write_criteo(here / "log.tsv", 200)
    (elsewhere / NAME).write_text(
        'data = ["log.tsv"]\nstore = "ctr"\ndim = 2\nhidden = [4]\nbatch_size = 64\n'
        'dram = "8MiB"\njson = "out.json"\nprogress-seconds = 0\ntorch-threads = 1\n'
        "no-digest = true\n"
    )
    monkeypatch.chdir(here)
    assert main(["train", "--config", os.path.join("..", "elsewhere", NAME), "--epochs", "2"]) == 0
    figures = json.loads((here / "out.json").read_text())
    assert figures["examples"] == 400 and "digests" not in figures
    assert (here / "ctr").is_dir() and len(list(elsewhere.iterdir())) == 1


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]])
def test_help_imports_neither_torch_nor_numpy_nor_what_reads_files(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from hps.cli.main import main\n"
        f"try:\n    main({words})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'tomllib', 'difflib', 'hps._C'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], {"hps.cli.config_file", "hps.cli.flags", "hps.options.data", "json"}),
        (
            ["train", "--help"],
            {"hps.features.features", "hps.report.page", "hps.reader.urls", "uuid", "decimal"},
        ),
    ],
)
def test_help_waits_for_little(words: list[str], unneeded: set[str]) -> None:
    code = (
        "import sys\n"
        "from hps.cli.main import main\n"
        f"try:\n    main({words})\nexcept SystemExit:\n    pass\n"
        f"found = {unneeded} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_names_that_are_loaded_at_first_use_are_those_of_their_modules() -> None:
    import hps
    import hps.reader
    from hps.reader.open import open_reader
    from hps.reader.reader import Counts, Reader
    from hps.types import Batch, Ids

    assert (hps.Batch, hps.Ids) == (Batch, Ids)
    own = (hps.reader.open_reader, hps.reader.Counts, hps.reader.Reader)
    assert own == (open_reader, Counts, Reader)
    for module in (hps, hps.reader):
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError, match="has no attribute 'no'"):
            module.no  # noqa: B018


def test_the_file_of_the_documents_is_read() -> None:
    page = Path(__file__).parents[2] / "docs" / "training.md"
    text = page.read_text().split("```toml\n")[1].split("```")[0]
    found = parsed(text)
    assert found.data == ["day-0.tsv", "day-1.tsv"] and found.hidden == (256, 128)
    assert found.digest is False and found.store == Path("ctr") and found.model == "dlrm"
