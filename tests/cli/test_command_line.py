"""The flags of every command: each is explained, and a value outside its limits is refused by name.

Above it: pytest. Below it: hps/cli.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hps.cli.main import COMMANDS, main, make_parser
from hps.cli.output import pages_root, write_json
from hps.common.model_names import KINDS
from hps.config import MAX_DEPTH, MAX_LOOKAHEAD
from hps.models import MODELS
from hps.reader.config import MAX_BATCH_SIZE, MAX_DENSE
from hps.train import TrainOptions

TRAIN = ["train", "no-log.tsv", "--store", "no-store"]
SERVE = ["serve", "--store", "no-store"]
CLIENT = ["client", "pull", "ads", "1", "--server", "127.0.0.1:1", "--deadline", "0.1"]


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its verbs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers_of(child)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_flag_is_explained(command: str) -> None:
    parsers = [one for one in parsers_of(make_parser(command)) if one.prog != "hps"]
    assert parsers
    for parser in parsers:
        assert parser.format_help()
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), action


def test_options_know_the_models_without_importing_them() -> None:
    assert tuple(MODELS) == KINDS


def test_every_limit_of_a_flag_is_taken_by_what_it_is_for() -> None:
    for flag, least, most in (
        ("depth", 0, MAX_DEPTH),
        ("lookahead", 0, MAX_LOOKAHEAD),
        ("batch-size", 1, MAX_BATCH_SIZE),
        ("dense", 0, MAX_DENSE),
        ("threads", 0, 64),
    ):
        for value in (least, most):
            options = make_parser("train").parse_args([*TRAIN, f"--{flag}", str(value)])
            field = flag.replace("-", "_")
            asked = TrainOptions(
                data=options.data, store=options.store, **{field: getattr(options, field)}
            )
            asked.reader_config()
        for value in (least - 1, most + 1):
            with pytest.raises(SystemExit):
                make_parser("train").parse_args([*TRAIN, f"--{flag}={value}"])


@pytest.mark.parametrize(
    "words",
    [
        "lookup --store model a=b",
        "stats --store=model",
        "publish --store model out",
        "models --store model",
        "clone out --store model",
        "verify --store model",
    ],
)
def test_a_store_given_by_flag_to_what_takes_a_word_is_refused_with_what_to_do(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "argument --store: this command takes the folder without a flag, as its DIR" in said
    assert "DIR: model" in said and said.count("\n") == 1


@pytest.mark.parametrize("word", ["2000000", "2_000_000", "2e6", "2E+06", "0.02e8"])
def test_a_count_may_be_written_with_an_exponent_or_in_groups(word: str) -> None:
    for words, flag, field in (
        (TRAIN, "--batch-size", "batch_size"),
        (TRAIN, "--epochs", "epochs"),
        (TRAIN, "--eval-every", "eval_every"),
        (TRAIN, "--limit", "limit"),
        (["generate", "no/log"], "--keys", "keys"),
        (["generate", "no/log"], "--examples", "examples"),
        (["plan", "--keys=1", "--dim=1"], "--keys", "keys"),
        (["plan", "--keys=1", "--dim=1"], "--batch-size", "batch_size"),
        (["features", "log", "--out", "f"], "--examples", "examples"),
    ):
        given = vars(make_parser(words[0]).parse_args([*words, flag, word]))[field]
        assert given == 2_000_000 and type(given) is int, flag


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["lookup", "ctr", "C1=a"], "'hps client pull TABLE KEY --server h:1'"),
    ],
)
def test_what_reads_a_folder_says_what_to_do_of_servers(
    command: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--server", "h:1"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("hps: error: argument --server: "), said
    assert named in said and said.count("\n") == 1


WRONG = [
    (TRAIN, "--dim", "0 -1 5000 x 1.5"),
    (TRAIN, "--batch-size", "0 -3 x 99999999999 1.0 1.5e0 1e10 1e999999999 e3 2__0"),
    (TRAIN, "--dram", "0 -1 1XB x 10% 0x10 1e9"),
    (TRAIN, "--gpu", "0 x"),
    (TRAIN, "--gpu-batches", "0 x"),
    (TRAIN, "--device", "cuda:x gpu"),
    (TRAIN, "--depth", "-1 9 x"),
    (TRAIN, "--epochs", "0 x"),
    (TRAIN, "--hidden", "x 0 -1"),
    (TRAIN, "--dropout", "1 -0.1 x nan inf"),
    (TRAIN, "--lr", "0 -1 x nan inf"),
    (TRAIN, "--init-std", "-1 nan x"),
    (TRAIN, "--seed", f"-1 x {2**64}"),
    (TRAIN, "--on-error", "x ignore"),
    (TRAIN, "--format", "x tsv"),
    (TRAIN, "--model", "x"),
    (TRAIN, "--optimizer", "x"),
    (TRAIN, "--progress-seconds", "-1 nan x"),
    (TRAIN, "--cluster-timeout", "0 -1 nan"),
    (TRAIN, "--row-wire", "x"),
    (TRAIN, "--deadline", "0 -1 nan x"),
    (["generate", "no/log"], "--examples", "0 -1 x"),
    (["generate", "no/log"], "--alpha", "-1 nan x"),
    (["generate", "no/log"], "--bag", "0.9 1025 nan x"),
    (["generate", "no/log"], "--bag-lengths", "x"),
    (["evaluate", "log"], "--batch-size", "0 x"),
    (SERVE, "--threads", "-1 65"),
    (SERVE, "--max-keys", f"0 x {2**28}"),
    (SERVE, "--max-message", "0 x 1XB"),
    (SERVE, "--drain-seconds", "-1 nan x"),
    (CLIENT, "--wire", "x"),
    (["import", "a", "b"], "--dram", "0 x"),
]


@pytest.mark.parametrize(
    ("words", "flag", "values"), WRONG, ids=[f"{w[0]} {f}" for w, f, _ in WRONG]
)
def test_a_value_outside_of_a_flags_limits_is_refused_by_its_name(
    words: list[str], flag: str, values: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("", *values.split()):
        if (flag, value) == ("--hidden", ""):
            continue  # no deep layers
        with pytest.raises(SystemExit) as ended:
            main([*words, f"{flag}={value}"])
        said = capsys.readouterr().err
        assert ended.value.code == 2, value
        assert said.startswith(f"hps: error: argument {flag}: ") and said.count("\n") == 1
        assert repr(value) in said or value == "", said


@pytest.mark.parametrize(
    "words",
    [["stats", ""], ["verify", ""], ["export", "", "x"], ["export", "x", ""], ["clone", "x", ""],
     ["stats", "x", "--checkpoint="], ["checkpoints", "x", "--delete="], ["generate", ""],
     ["train", "", "--store", "x"], ["train", "x", "--store="], ["evaluate", "", "--store", "x"],
     ["stats", "na\udcffme"], ["train", "na\udcffme", "--store", "x"]],
)  # fmt: skip
def test_an_empty_or_unreadable_word_is_refused_before_any_work(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("hps: error: argument ")


LOCAL = [
    (["predict", "log", "--store", "s"], "--out"),
    (["predict", "log", "--out", "o.npy"], "--store"),
    (["features", "log"], "--out"),
    (TRAIN, "--features"),
    (TRAIN, "--store"),
    (TRAIN, "--json"),
]


@pytest.mark.parametrize(("words", "flag"), LOCAL, ids=[f"{w[0]} {f}" for w, f in LOCAL])
@pytest.mark.parametrize("url", ["s3://bkt/é day/x.npy", "https://u:secret@h/x.npy", "file:///x"])
def test_a_url_where_a_path_is_needed_is_refused_as_what_it_is(
    words: list[str],
    flag: str,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*words, flag, url])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert f"argument {flag}: " in said and "is a URL, and a path of this machine is needed" in said
    assert "://" in said and "secret" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to_full", ["stdout", "json"])
def test_a_disk_that_is_full_is_one_line_and_status_1(tmp_path: Path, to_full: str) -> None:
    words = [sys.executable, "-m", "hps", "plan", "--keys", "1e6", "--dim", "4"]
    words += ["--json", "/dev/full"] if to_full == "json" else []
    with open("/dev/full" if to_full == "stdout" else tmp_path / "out", "w") as out:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("hps: error: ") and done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr and "Errno" not in done.stderr


def test_figures_that_are_not_finite_are_null_wherever_they_stand(tmp_path: Path) -> None:
    """JSON has no word for them, and others do not read Python's."""
    out = tmp_path / "out.json"
    nan, inf = float("nan"), float("inf")
    write_json(out, {"auc": nan, "rows": [[1.0, inf]], "ranks": [{"auc": -inf, "n": 2}]})
    text = out.read_text(encoding="utf-8")
    figures = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert figures == {"auc": None, "rows": [[1.0, None]], "ranks": [{"auc": None, "n": 2}]}


@pytest.mark.parametrize(("command", "extra"), [("train", "train"), ("serve-model", "serve")])
def test_a_package_that_is_missing_is_named_with_how_to_install_it_pinned(
    command: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("hps.cli.main._run", fail)
    assert main([command]) == 1
    said = capsys.readouterr().err
    assert "needs torch" in said and f"'hps-ctr[{extra}]'" in said
    assert "-c constraints.txt" in said


def test_options_that_go_together_are_named_as_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--dim", "4096"], "(--dim): a row has 4096 columns at most"),
        (["--scheduler", "cosine"], "(--scheduler-steps)"),
        (["--device", "cpu"], "(--device)"),
        (["--new-data"], "(--new-data)"),
    ):
        assert main([*TRAIN, *words]) == 1
        assert said in capsys.readouterr().err


BAD_WORDS = ("", "1000x", "-1.5", "nan", "1e999", "\0", "9" * 400, "1Gb", "x" * 2000)
# Functions and types of Python; 'invalid int value' is argparse's way to give one away.
INTERNAL = re.compile(r"\b_[a-z]\w*|<[a-z]|\bparse\b|\blambda\b|invalid \w+ value|Traceback")


@pytest.mark.parametrize("command", list(COMMANDS))
def test_what_is_said_of_a_bad_value_names_flag_value_and_limits(command: str) -> None:
    seen = 0
    for parser in parsers_of(make_parser(command)):
        for action in parser._actions:
            if action.nargs == 0 or isinstance(action, argparse._SubParsersAction):
                continue
            refusals = 0
            for word in BAD_WORDS:
                try:
                    value = parser._get_value(action, word)
                    parser._check_value(action, value)
                except argparse.ArgumentError as error:
                    said = str(error)
                else:
                    continue
                refusals += 1
                assert INTERNAL.search(said.replace(repr(word), "")) is None, said
                # The flag, then the value, then what is allowed; an empty value is called empty.
                name = "/".join(action.option_strings) or str(action.metavar)
                assert said.startswith(f"argument {name}: "), said
                assert repr(word) in said or word[:40] in said, said
                assert len(said.replace(repr(word), "")) > len(f"argument {name}: ") + 15, said
            is_free = action.nargs in (argparse.REMAINDER, argparse.PARSER)
            assert refusals or is_free, f"{parser.prog} {action.option_strings or action.dest}"
            seen += 1
    assert seen


def test_dir_names_what_is_loaded_at_first_use() -> None:
    code = (
        "import sys, hps\n"
        "assert {*hps.__all__, 'open', '__version__'} <= {*dir(hps)}, dir(hps)\n"
        "assert 'torch' not in sys.modules and 'hps._C' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_overview_waits_for_nothing_that_declares_fields() -> None:
    """Which takes longer than all else that it does."""
    code = (
        "import sys\n"
        "from hps.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "late = {'dataclasses', 'inspect', 'json', 'hps.config', 'hps.cli.config_file', 'numpy'}\n"
        "assert not late & {*sys.modules}, late & {*sys.modules}\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'hps._C', 'numpy', 'torch'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_built_package_has_every_page_that_help_and_messages_name(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    build = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(
        [sys.executable, "setup.py", "-q", *build], check=True, cwd=root, capture_output=True
    )
    package = tmp_path / "hps"
    texts = [one.format_help() for name in COMMANDS for one in parsers_of(make_parser(name))]
    texts += [path.read_text() for path in (root / "hps").rglob("*.py")]
    named = {page for text in texts for page in re.findall(r"\b(?:docs|proto)/[\w/-]+\.\w+", text)}
    assert {"docs/formats.md", "proto/hps/v1/parameter_server.proto"} <= named
    for place in (pages_root(package), pages_root()):
        assert [page for page in sorted(named) if not (place / page).is_file()] == []
    assert pages_root(package) == package and pages_root() == root
    assert any(f"docs/ lies in {root}\n" in text for text in texts)
