"""The site's pages: each is in the navigation, each link leads somewhere, made pages lack nothing.

Above it: pytest. Below it: tools/site/, but for mkdocs: what it makes of the pages is looked at by
test_built_site.py.
"""

import argparse
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import hps
from hps.cli.whole_command import parsers_of, whole_parser
from tools.site import api, commands, drawings, links, messages
from tools.site.docstrings_text import fenced
from tools.site.pages import ROOT, Page, navigation, pages, places

KNOWN = pages()
PICTURES = {f"{links.PICTURES}/{path.name}" for path in ROOT.glob("benchmarks/results/*.png")}
PICTURES |= {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.png")}
DRAWINGS = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.svg")}
ALL_LINKS = links.Links(
    {page.source: page.place for page in KNOWN.values() if page.source},
    {page.place: page.text for page in KNOWN.values()},
)
FINAL = {place: ALL_LINKS.rewritten(place, page.source, page.text) for place, page in KNOWN.items()}


def test_each_page_is_in_the_navigation_once_and_readme_is_the_first() -> None:
    named = list(places(navigation(KNOWN)))
    assert named[0] == "index.md" and KNOWN["index.md"].source == "README.md"
    assert sorted(named) == sorted(KNOWN)


def test_a_new_tutorial_is_taken_into_the_navigation_and_a_strange_page_is_not() -> None:
    more = {"tutorials/days.md": "# Days", "tutorials/gpu.md": "# GPU", "else.md": "# Else"}
    known = KNOWN | {place: Page(place, place, text) for place, text in more.items()}
    entries = navigation(known)
    (tutorials,) = (what["Tutorials"] for what in entries if "Tutorials" in what)
    assert isinstance(tutorials, list)
    assert tutorials[-2:] == [{"GPU": "tutorials/gpu.md"}, {"Days": "tutorials/days.md"}]
    assert set(known) - set(places(entries)) == {"else.md"}


def test_a_page_that_is_gone_is_missed() -> None:
    with pytest.raises(ValueError, match=r"names training\.md"):
        navigation({place: page for place, page in KNOWN.items() if place != "training.md"})


def broken(place: str, text: str) -> Iterator[str]:
    """The links of a page's final text that lead nowhere."""
    for target in links.links(text):
        if "://" in target:
            continue
        goal = links.resolved(place, target) if target.partition("#")[0] else place
        anchor = target.partition("#")[2]
        if goal in FINAL:
            is_there = not anchor or anchor in links.anchors(FINAL[goal])
        else:
            is_there = goal in PICTURES | DRAWINGS
        if not is_there:
            yield target


@pytest.mark.parametrize("place", FINAL)
def test_every_link_leads_somewhere(place: str) -> None:
    assert list(broken(place, FINAL[place])) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](b.md) [b](start.md#no-such) [c](start.md#3-train) ![d](pictures/no.png)\n"
    assert list(broken("x.md", f"{text}\n```sh\n[e](f.md)\n```\n")) == [
        "b.md",
        "start.md#no-such",
        "pictures/no.png",
    ]


def test_a_page_that_is_named_becomes_a_link_with_its_title() -> None:
    text = 'See `docs/start.md`, "3. Train", and `docs/none.md`; `tools/site/pages.py`.\n'
    made = ALL_LINKS.rewritten("explanation/tiers.md", "docs/explanation/tiers.md", text)
    assert made == (
        'See [Start in five minutes](../start.md), "[3. Train](../start.md#3-train)", and '
        "`docs/none.md`; `tools/site/pages.py`.\n"
    )


def test_every_heading_that_is_quoted_behind_a_page_is_there() -> None:
    missing = []
    for place, page in KNOWN.items():
        for part, is_code in links.outside_blocks(page.text):
            for name, heading in [] if is_code else links.NAMED.findall(part):
                goal = ALL_LINKS.place_of(place, page.source, name)
                if heading and goal and links.slug(heading) not in links.anchors(FINAL[goal]):
                    missing.append((place, name, heading))
    assert missing == []


def test_every_public_name_is_in_the_reference_and_nothing_else_is() -> None:
    named = [name for _, _, names in api.GROUPS.values() for name in names]
    assert len(named) == len(set(named))
    own = {name.removeprefix("hps.") for name in named if name.count(".") == 1}
    assert own == {*hps.__all__, "open"}
    for name in named:
        module, _, last = api.home_of(name).rpartition(".")
        assert getattr(import_module(module), last).__doc__, name


def test_the_page_of_commands_has_every_flag_and_no_folder_of_this_machine() -> None:
    sections = re.split(r"^##+ (hps[\w -]*) \{", commands.page(), flags=re.MULTILINE)
    by_name = dict(zip(sections[1::2], sections[2::2], strict=True))
    parsers = list(parsers_of(whole_parser()))[1:]
    assert sorted(by_name) == sorted(one.prog for one in parsers)
    for parser in parsers:
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
                continue
            for flag in action.option_strings:
                assert f"`{flag}" in by_name[parser.prog], (parser.prog, flag)
    assert str(ROOT) not in commands.page()


FLAGS = {
    flag
    for parser in parsers_of(whole_parser())
    for action in parser._actions
    for flag in action.option_strings
}
# Of torchrun, docker and Slurm; and a name for several flags.
OTHER_FLAGS = {"--local-addr", "--max-restarts", "--rdzv-backend", "--build-arg", "--expire"}
OTHER_FLAGS |= {"--cpus-per-task", "--nodelist", "--requeue", "--signal"}
# Decisions tell of flags that are gone, the page of measuring of those of one benchmark.
ABOUT_OTHERS = {page for page in KNOWN if page.startswith("decisions/")} | {"measuring.md"}


def unknown_flags(text: str) -> list[str]:
    """Flags in the code of a page's sentences and tables that no command has."""
    plain = "".join(part for part, is_code in links.outside_blocks(text) if not is_code)
    codes = " ".join(re.findall(r"`([^`]+)`", plain))
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", codes)
    return [flag for flag in named if flag not in FLAGS | OTHER_FLAGS]


@pytest.mark.parametrize("place", sorted(set(KNOWN) - ABOUT_OTHERS))
def test_every_flag_that_a_page_names_is_one(place: str) -> None:
    assert unknown_flags(KNOWN[place].text) == []


def test_a_flag_that_is_none_is_found() -> None:
    assert unknown_flags("`--dram 1GiB`, `hps train --drma 2`, --other\n") == ["--drma"]


def described(file: Any) -> Iterator[tuple[str, list[str]]]:
    """Names of a file's services, messages and enums, by its descriptor, with what is in each."""
    for service in file.services_by_name.values():
        yield service.name, [method.name for method in service.methods]
    for enum in file.enum_types_by_name.values():
        yield enum.name, [value.name for value in enum.values]
    waiting = [("", message) for message in file.message_types_by_name.values()]
    while waiting:
        outer, message = waiting.pop()
        if not message.GetOptions().map_entry:
            yield outer + message.name, [field.name for field in message.fields]
            inside = f"{outer}{message.name}."
            waiting += [(inside, inner) for inner in message.nested_types]
            for enum in message.enum_types:
                yield inside + enum.name, [value.name for value in enum.values]


MODULES = {
    "open_inference": "hps.inference.open_inference_pb2",
    "model_server": "hps.v1.model_server_pb2",
    "parameter_server": "hps.v1.parameter_server_pb2",
    "publishing": "hps.v1.publishing_pb2",
}


@pytest.mark.parametrize("name", MODULES)
def test_the_pages_of_messages_have_every_call_and_field(name: str) -> None:
    found = messages.pages(ROOT)
    assert sorted(found) == sorted(MODULES)
    sections = re.split(r"^## \w+ ([\w.]+) \{", found[name], flags=re.MULTILINE)
    by_name = dict(zip(sections[1::2], sections[2::2], strict=True))
    wanted = dict(described(import_module(MODULES[name]).DESCRIPTOR))
    assert set(by_name) == set(wanted)
    for block, rows in wanted.items():
        assert re.findall(r"^\| `(\w+)` \|", by_name[block], re.MULTILINE) == rows, block


def test_comments_of_messages_are_told_where_they_belong() -> None:
    text = """// A file.

syntax = "proto3";

// What is asked.
message Ask {
  // First of two.
  string name = 1;
  repeated int64 shape = 2;  // -1: any,
                             // really
  oneof to {
    bool all = 3;  // everything
  }
}
"""
    head, (block,) = messages.parse(text, "a.proto")
    assert head == ["A file."] and block.about == ["What is asked."]
    assert block.rows == [
        ("name", "string", "1", "First of two."),
        ("shape", "repeated int64", "2", "-1: any, really"),
        ("all", "bool", "3", "Of `to`, one is given.\neverything"),
    ]
    with pytest.raises(ValueError, match=r"a\.proto, line 2: 'extend B"):
        messages.parse("message A {\n  extend B {\n  }\n}\n", "a.proto")


def test_each_decision_is_listed_once_with_a_line_of_its_own() -> None:
    rows = re.findall(
        r"^\| (\d{4}) \| \[(.+)\]\((\d{4}-.+\.md)\) \| (.+) \|$",
        KNOWN["decisions/index.md"].text,
        re.MULTILINE,
    )
    pages_of_decisions = [place for place in KNOWN if re.match(r"decisions/\d", place)]
    assert [f"decisions/{name}" for _, _, name, _ in rows] == sorted(pages_of_decisions)
    assert len({line for *_, line in rows}) == len(rows) > 35
    for number, title, name, line in rows:
        assert name.startswith(number) and 30 < len(line) < 160, line
        assert title.lower() in KNOWN[f"decisions/{name}"].title.lower()


def test_drawings_are_those_of_their_sources_and_say_what_they_show() -> None:
    sources = drawings.sources()
    assert {source.with_suffix(".svg").name for source in sources} == {
        path.rpartition("/")[2] for path in DRAWINGS
    }
    for source in sources:
        assert not drawings.is_stale(source), f"make docs draws {source} anew"
        name = source.with_suffix(".svg").name
        told = re.findall(
            rf"^!\[([^\]]+)\]\((?:[\w/.-]+/)?{name}\)$", "\n".join(FINAL.values()), re.M
        )
        assert told and min(map(len, told)) > 60, name


def test_a_drawing_lies_in_its_page_in_the_pages_colours(tmp_path: Any) -> None:
    inner = '<g id="a">\n<title>t</title>\n<path stroke="black"/></g>'
    drawn = f'<svg viewBox="0 0 30 20">\n{inner}\n</svg>'
    (tmp_path / "a.svg").write_text(drawings.cleaned(drawn, "digest"))
    text = drawings.inlined('![A "line"](a.svg)\n', tmp_path)
    assert 'role="img" aria-label="A &quot;line&quot;"' in text
    assert 'stroke="currentColor"' in text and "<title>" not in text


def test_examples_of_docstrings_are_blocks() -> None:
    text = "One.\n\n>>> a = [1]\n>>> a\n[1]\n\nTwo.\n\n    >>> b\n    2\n"
    assert fenced(text) == (
        "One.\n\n```pycon\n>>> a = [1]\n>>> a\n[1]\n```\n\nTwo.\n\n"
        "    ```pycon\n    >>> b\n    2\n    ```\n"
    )
