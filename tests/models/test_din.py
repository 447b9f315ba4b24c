"""DIN against a loop over examples, and that an example's logit is its own.

Above it: pytest. Below it: hps/models/din.py, hps/models/sequences.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hps
from hps.models import DIN, ClickModel, DeepFM, SequenceRows
from hps.models.sequences import check_targets, require_sequences

# Features of the log: a sequence, its target, a bag that is summed, a sequence of another target.
NUM_FEATURES, TARGETS = 4, {3: 2, 0: 1}
LENGTHS = [[3, 0, 1, 40], [1, 1, 1, 1], [0, 2, 1, 3], [0, 5, 2, 0]]  # of each feature and example
DIM, NUM_DENSE = 4, 2

Bags = list[list[list[int]]]


def bags(seed: int = 0, lengths: list[list[int]] = LENGTHS) -> Bags:
    """Keys of each example by feature; few keys, so that many occur often."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [
            torch.randint(0, 12, (of_feature[example],), generator=generator).tolist()
            for of_feature in lengths
        ]
        for example in range(len(lengths[0]))
    ]


def batch_of(examples: Bags, weight: float | None = None) -> hps.Batch:
    """The examples as a batch; with weights of keys that begin at `weight`."""
    keys = [key for place in range(NUM_FEATURES) for bags in examples for key in bags[place]]
    counts = [len(bags[place]) for place in range(NUM_FEATURES) for bags in examples]
    offsets = torch.tensor([0, *counts]).cumsum(0)
    weights = None if weight is None else weight + torch.arange(len(keys)).float() % 5 / 10
    ids = hps.Ids(torch.tensor(keys, dtype=torch.int64), offsets, weights)
    dense = torch.tensor([[len(bags[0]) / 10, 0.5] for bags in examples]).reshape(-1, NUM_DENSE)
    return hps.Batch({"ads": ids}, dense, torch.tensor([float(len(b[3]) > 1) for b in examples]))


def make(server: Any, sequences: dict[int, int] | None = None, **changes: Any) -> DIN:
    torch.manual_seed(0)
    values = {"hidden": (8, 4), "sequences": TARGETS if sequences is None else sequences}
    model = DIN(server, {"ads": NUM_FEATURES}, NUM_DENSE, **{**values, **changes})
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases and slopes, all of them other numbers
            torch.nn.init.normal_(parameter)
    return model


def served(folder: Path) -> hps.ParameterServer:
    init = hps.Normal(std=0.5)
    table = hps.TableConfig(name="ads", dim=DIM, optimizer=hps.SGD(lr=0.1), initializer=init)
    return hps.ParameterServer(hps.Config(path=folder / "store", tables=[table]))


def prelu(values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    return torch.where(values > 0, values, slopes * values)


def layers(model: torch.nn.Sequential, values: torch.Tensor) -> torch.Tensor:
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            values = layer.weight @ values + layer.bias
        else:
            assert isinstance(layer, torch.nn.PReLU)
            values = prelu(values, layer.weight)
    return values


def logit_of(
    model: DIN,
    rows: list[list[torch.Tensor]],
    dense: torch.Tensor,
    dims: tuple[int, ...] = (DIM,) * NUM_FEATURES,
) -> torch.Tensor:
    """Of one example, key by key: equation 3 for its sequences, sums for the others."""
    pooled = []
    for place, of_feature in enumerate(rows):
        total = torch.zeros(dims[place])
        for row in of_feature:
            share: torch.Tensor | float = 1.0
            if place in model.sequences:
                target = sum(rows[model.sequences[place]], start=torch.zeros(DIM))
                pair = torch.cat([row, target, row - target, row * target])
                share = layers(model.unit, pair)
            total = total + share * row
        pooled.append(total)
    return layers(model.deep, torch.cat([*pooled, dense]))[0]


@pytest.mark.parametrize("weight", [None, 0.5])
@pytest.mark.parametrize("sequences", [TARGETS, {0: 1}, {3: 1, 0: 1, 2: 1}])
def test_logits_and_gradients_are_those_of_a_loop(
    tmp_path: Path, weight: float | None, sequences: dict[int, int]
) -> None:
    with served(tmp_path) as server:
        model, batch = make(server, sequences), batch_of(bags(), weight)
        ids = batch.features["ads"]
        distinct = ids.keys_L.unique()
        known = torch.as_tensor(server.pull("ads", distinct)).clone().requires_grad_()
        rows = known[torch.searchsorted(distinct, ids.keys_L)]
        if ids.weights_L is not None:
            rows = rows * ids.weights_L.unsqueeze(1)
        size = len(batch)
        expected = []
        for example in range(size):
            own = [
                list(
                    rows[
                        ids.offsets[place * size + example] : ids.offsets[
                            place * size + example + 1
                        ]
                    ]
                )
                for place in range(NUM_FEATURES)
            ]
            expected.append(logit_of(model, own, batch.dense[example]))
        wanted = torch.autograd.grad(
            binary_cross_entropy_with_logits(torch.stack(expected), batch.labels),
            [known, *model.parameters()],
        )
        found = model(batch)
        torch.testing.assert_close(found, torch.stack(expected))
        binary_cross_entropy_with_logits(found, batch.labels).backward()
        for gradient, parameter in zip(wanted[1:], model.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        assert wanted[0].abs().max() > 1e-3
        hps.RowOptimizer(server).step()
        moved = torch.as_tensor(server.pull("ads", distinct))
        torch.testing.assert_close(moved, known.detach() - 0.1 * wanted[0])


# Table -> dim and the features of the log in it: target and sequence, a bag that is summed, another
# sequence.
OF_TABLES = {"ads": (DIM, [1, 2]), "users": (3, [0]), "seen": (DIM, [3])}


def ids_of(examples: Bags, places: list[int]) -> hps.Ids:
    keys = [key for place in places for bags in examples for key in bags[place]]
    counts = [len(bags[place]) for place in places for bags in examples]
    return hps.Ids(torch.tensor(keys, dtype=torch.int64), torch.tensor([0, *counts]).cumsum(0))


def test_logits_and_gradients_over_tables_are_those_of_a_loop(tmp_path: Path) -> None:
    init, optimizer = hps.Normal(std=0.5), hps.SGD(lr=0.1)
    tables = [
        hps.TableConfig(name=name, dim=dim, optimizer=optimizer, initializer=init)
        for name, (dim, _) in OF_TABLES.items()
    ]
    examples = bags()
    batch = batch_of(examples)
    batch.features = {name: ids_of(examples, of) for name, (_, of) in OF_TABLES.items()}
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server:
        torch.manual_seed(0)
        counts = {name: len(of) for name, (_, of) in OF_TABLES.items()}
        model = DIN(server, counts, NUM_DENSE, hidden=(8,), sequences={1: 0, 3: 0})
        distinct = {name: ids.keys_L.unique() for name, ids in batch.features.items()}
        known = {
            name: torch.as_tensor(server.pull(name, keys)).clone().requires_grad_()
            for name, keys in distinct.items()
        }
        places = [(name, place) for name, (_, of) in OF_TABLES.items() for place in of]
        expected = []
        for example, dense in zip(examples, batch.dense, strict=True):
            rows = [
                [known[name][torch.searchsorted(distinct[name], key)] for key in example[place]]
                for name, place in places
            ]
            expected.append(logit_of(model, rows, dense, (DIM, DIM, 3, DIM)))
        wanted = torch.autograd.grad(
            binary_cross_entropy_with_logits(torch.stack(expected), batch.labels),
            [*known.values(), *model.parameters()],
        )
        found = model(batch)
        torch.testing.assert_close(found, torch.stack(expected))
        binary_cross_entropy_with_logits(found, batch.labels).backward()
        for gradient, parameter in zip(wanted[3:], model.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        hps.RowOptimizer(server).step()
        for (name, rows_before), gradient in zip(known.items(), wanted, strict=False):
            assert gradient.abs().max() > 1e-3, name
            moved = torch.as_tensor(server.pull(name, distinct[name]))
            torch.testing.assert_close(moved, rows_before.detach() - 0.1 * gradient)
        model.use_means(server, {"users": [True], "ads": [False, True]})
        means = model.embed_apart(batch)[2]
        sums = hps.SparseEmbedding(server, "users")(batch)
        lengths = torch.tensor(LENGTHS[0]).clamp(min=1).unsqueeze(1)
        assert isinstance(means, torch.Tensor)
        assert torch.equal(means, sums / lengths) and not torch.equal(means, sums)


def test_several_keys_of_a_target_are_found_in_its_own_table() -> None:
    examples = bags()
    features = {"users": ["words", "other"], "ads": ["item", "seen"]}
    batch = batch_of(examples)
    batch.features = {"users": ids_of(examples, [0, 3]), "ads": ids_of(examples, [1, 2])}
    check_targets(batch, {3: 2}, features)
    batch.features["ads"] = ids_of(examples, [2, 1])
    with pytest.raises(hps.ConfigError, match=r"column 'item' has 2 keys in row 2; .* one key"):
        check_targets(batch, {3: 2}, features)


def test_a_logit_depends_on_no_other_example(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        model, examples = make(server).eval(), bags() + bags(1, [[1], [1], [0], [500]])
        whole = model(batch_of(examples)).detach()
        assert whole.std() > 0.1
        for place, example in enumerate(examples):
            torch.testing.assert_close(model(batch_of([example])), whole[place : place + 1])
        back = model(batch_of(examples[::-1])).detach()
        torch.testing.assert_close(back.flip(0), whole)


def test_a_sequence_without_keys_is_zeros(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        model = make(server, hidden=())
        nothing = [[[], [1], [], []], [[], [2], [], []]]
        first, second = model(batch_of(nothing)).detach()
        one, two = torch.as_tensor(server.pull("ads", torch.tensor([1, 2])))
        of_target = model.deep[0].weight[0, DIM : 2 * DIM]
        torch.testing.assert_close(first - second, of_target @ (one - two))
        assert model(batch_of([])).shape == (0,)
        model(batch_of(nothing)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_mean_beside_sequences_is_that_of_its_keys(tmp_path: Path) -> None:
    batch = batch_of(bags())
    with served(tmp_path) as server:
        model = make(server)
        sums = model.embed_apart(batch)
        model.use_means(server, {"ads": [False, False, True, True]})
        found = model.embed_apart(batch)
    for place in (0, 3):  # the keys of a sequence come one by one, whatever is said of its sum
        assert torch.equal(found[place].rows, sums[place].rows)  # type: ignore[union-attr]
    assert torch.equal(found[1], sums[1])  # type: ignore[arg-type]
    lengths = torch.tensor(LENGTHS[2]).clamp(min=1).unsqueeze(1)
    assert torch.equal(found[2], sums[2] / lengths)  # type: ignore[operator, arg-type]
    assert not torch.equal(found[2], sums[2])  # type: ignore[arg-type]


def test_the_order_in_which_sequences_are_named_says_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        batch = batch_of(bags())
        logits = [make(server, order)(batch) for order in ({0: 1, 3: 2}, {3: 2, 0: 1})]
        assert torch.equal(*logits)


def test_the_table_is_read_once_a_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as server:
        model, batch = make(server), batch_of(bags())
        asked = []
        joint: Any = server.joint
        look_up = joint.look_up

        def counted(ids: Any, *others: Any) -> Any:
            asked.append(sum(len(own.keys_L) for own in ids.features))
            return look_up(ids, *others)

        for verb in ("pull", "pull_tables", "pull_pooled"):
            monkeypatch.setattr(hps.ParameterServer, verb, None)
        monkeypatch.setattr(joint, "look_up", counted)
        model(batch).sum().backward()
        assert asked == [len(batch.features["ads"].keys_L)]
        pending = server.pending_gradients
        assert pending is not None and len(pending.updates()) == 1  # type: ignore[attr-defined]


def test_rows_that_a_pipeline_has_pinned_are_read_with_the_same_bits(tmp_path: Path) -> None:
    digests = set()
    for depth in (0, 2):
        with served(tmp_path / str(depth)) as server:
            model, optimizer = make(server), hps.RowOptimizer(server)
            batches = [batch_of(bags(seed)) for seed in range(6)]
            with hps.Pipeline(batches, server, depth=depth) as pipeline:
                for batch in pipeline:
                    assert batch.rows
                    binary_cross_entropy_with_logits(model(batch), batch.labels).backward()
                    optimizer.step()
            assert server.num_rows("ads") == 12
            digests.add(server.digest("ads"))
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequences": {}}, r"model DIN: no column is a sequence .* \[columns.last_items\]"),
        ({"sequences": {4: 1}}, "both must be places of 4 features"),
        ({"sequences": {0: -1}}, "both must be places of 4 features"),
        ({"sequences": {0: 0}}, "the target no sequence"),
        ({"sequences": {0: 3, 3: 1}}, "0 -> 3: .* the target no sequence"),
    ],
)
def test_sequences_that_cannot_be_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with served(tmp_path) as server, pytest.raises(hps.ConfigError, match=words):
        make(server, **changes)


def test_tables_and_classes_that_do_not_go_with_sequences_are_refused(tmp_path: Path) -> None:
    tables = [hps.TableConfig(name=name, dim=dim) for name, dim in (("ads", 5), ("users", 4))]
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        with pytest.raises(hps.ConfigError, match=r"DIN: the dims \{0: 5, 3: 4\} of sequences"):
            DIN(server, {"ads": 2, "users": 2}, 0, sequences={0: 3})
        with pytest.raises(hps.ConfigError, match=r"the dims \{0: 5, 1: 5, 3: 4, 2: 4\}"):
            DIN(server, {"ads": 2, "users": 2}, 0, sequences={0: 1, 3: 2})
        with pytest.raises(hps.ConfigError, match="does not say takes_sequences = True"):
            DeepFM(server, {"ads": 2}, 0, sequences={0: 1})
        model = DIN(server, {"ads": 3}, NUM_DENSE, sequences={0: 1})
        with pytest.raises(hps.ConfigError, match="3 features of 4 examples have 12"):
            model(batch_of(bags()))
        batch = batch_of(bags())
        batch.features = {"users": batch.features["ads"]}
        with pytest.raises(hps.ConfigError, match="the batch lacks table 'ads'"):
            model(batch)
    require_sequences("mine", {1: 0})
    assert not ClickModel.takes_sequences and DIN.row_columns(8) == 8


def test_sums_and_spreads_are_each_other_s_gradients() -> None:
    lengths = torch.tensor([2, 0, 3])
    example = torch.repeat_interleave(lengths)
    rows = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    found = SequenceRows(rows, lengths, example)
    assert torch.autograd.gradcheck(found.spread, [values])
    assert torch.autograd.gradcheck(found.sums, [rows])
    assert torch.equal(found.spread(values), values[example])
    assert torch.equal(found.sums(rows)[1], torch.zeros(2, dtype=torch.float64))
