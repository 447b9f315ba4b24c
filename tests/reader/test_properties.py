"""Random rows, written as text and read back, for every text format."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_twin import assert_same, examples_of, open_log, parse_twin

KEYS = st.integers(0, 2**64 - 1)
WEIGHTS = st.floats(-1e6, 1e6, width=32).map(repr)
FIELDS = st.integers(0, 12).map(str)
SLOTS = FIELDS | st.text(alphabet="abcXYZ_", min_size=1, max_size=8)
CATEGORY = st.text(st.characters(blacklist_characters="\t\n\r", codec="utf-8"), max_size=40)
NUMBER = st.just("") | st.integers(-(2**63), 2**63 - 1).map(str) | st.integers(0, 9999).map(str)
LABEL = st.sampled_from("01")


@st.composite
def criteo_line(draw):
    numbers = draw(st.lists(NUMBER, min_size=13, max_size=13))
    categories = draw(st.lists(CATEGORY, min_size=26, max_size=26))
    return "\t".join([draw(LABEL), *numbers, *categories])


def token_line(head, token):
    return st.tuples(head, st.lists(token, max_size=12)).map(
        lambda line: " ".join([line[0], *line[1]])
    )


LINE = {
    "criteo": criteo_line(),
    "libsvm": token_line(
        st.sampled_from(["0", "1", "-1", "+1"]),
        st.tuples(KEYS, WEIGHTS).map("{0[0]}:{0[1]}".format),
    ),
    "libffm": token_line(
        LABEL, st.tuples(FIELDS, KEYS, WEIGHTS).map("{0[0]}:{0[1]}:{0[2]}".format)
    ),
    "slots": token_line(
        st.sampled_from(["0:1", "1:1"]), st.tuples(KEYS, SLOTS).map("{0[0]}:{0[1]}".format)
    ),
}
NAMED_LINE = token_line(
    st.sampled_from(["click:0", "click:1"]), st.tuples(SLOTS, KEYS).map("{0[0]}:{0[1]}".format)
)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(data=st.data(), size=st.integers(1, 9), end=st.sampled_from(["\n", "\r\n"]))
def test_random_rows_come_back(tmp_path, data, size, end):
    kind = data.draw(st.sampled_from(sorted(LINE)))
    line = LINE[kind]
    if kind == "slots" and data.draw(st.booleans()):
        line = NAMED_LINE
    lines = data.draw(st.lists(line, max_size=12))
    log = tmp_path / "log"
    log.write_bytes("".join(text + end for text in lines).encode())
    reader = open_log(log, kind, batch_size=size, threads=2)
    assert_same(examples_of(reader, reader.features), [parse_twin(kind, text) for text in lines])
    hashed = open_log(log, kind, batch_size=size, hash_keys=True)
    expected = [parse_twin(kind, text, hash_keys=True) for text in lines]
    assert_same(examples_of(hashed, hashed.features), expected)
