"""Products of the dense part in training, against torch's own."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import nn

from hps.models import MODELS
from hps.models.training_ops import (
    MIN_EXAMPLES,
    MIN_OUTPUTS,
    TrainedLinear,
    has_onednn,
    pair_dots,
    places_of,
)
from hps.train import TrainOptions, train
from tests.logs import write_criteo
from tests.models.test_models import make_batch, make_model, open_for

SEEN = "_ProductBackward"
needs_onednn = pytest.mark.skipif(
    not has_onednn(), reason="torch here is without oneDNN, or the processor without AVX-512"
)


def layers(width: int, outputs: int, bias: bool = True) -> tuple[TrainedLinear, nn.Linear]:
    """A layer and torch's own with the same weights."""
    torch.manual_seed(0)
    layer, plain = TrainedLinear(width, outputs, bias), nn.Linear(width, outputs, bias)
    plain.load_state_dict(layer.state_dict())
    return layer, plain


def backward_of(layer: nn.Module, values: torch.Tensor) -> list[torch.Tensor]:
    """Output, gradient of the input and of the weights."""
    values = values.clone().requires_grad_()
    output = layer(values)
    output.square().sum().backward()
    assert values.grad is not None
    grads = [weight.grad for weight in layer.parameters()]
    return [output.detach(), values.grad, *(grad for grad in grads if grad is not None)]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("width", "outputs"), [(1, MIN_OUTPUTS), (367, 256), (33, 17)])
def test_layer_has_products_and_gradients_of_torchs(width: int, outputs: int, bias: bool) -> None:
    layer, plain = layers(width, outputs, bias)
    values = torch.randn(MIN_EXAMPLES + 3, width)
    assert type(layer(values).grad_fn).__name__ == SEEN
    found, wanted = backward_of(layer, values), backward_of(plain, values)
    assert len(found) == len(wanted) == 3 + bias
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-3)


@needs_onednn
def test_layer_takes_values_that_lie_apart() -> None:
    layer, plain = layers(20, 32)
    wide = torch.randn(20, 2 * MIN_EXAMPLES).t()[::2, :]
    assert not wide.is_contiguous()
    torch.testing.assert_close(layer(wide), plain(wide))
    # Of a sum the gradient is one number, which is everywhere.
    layer(wide).sum().backward()
    plain(wide).sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-3)


@needs_onednn
def test_layer_gives_the_same_bits_again() -> None:
    layer, _ = layers(367, 256)
    values = torch.randn(4096, 367)
    first = backward_of(layer, values)
    for _ in range(5):
        layer.zero_grad()
        assert all(map(torch.equal, first, backward_of(layer, values)))


@needs_onednn
def test_a_frozen_layer_gets_no_gradient() -> None:
    layer, plain = layers(20, 32)
    for one in (layer, plain):
        one.requires_grad_(False)
    values = torch.randn(MIN_EXAMPLES, 20, requires_grad=True)
    own = torch.autograd.grad(layer(values).sum(), values)[0]
    torch.testing.assert_close(own, torch.autograd.grad(plain(values).sum(), values)[0])
    assert layer.weight.grad is None


@pytest.mark.parametrize(
    "call",
    [
        lambda layer, values: layer.eval()(values),
        lambda layer, values: layer(values[: MIN_EXAMPLES - 1]),
        lambda layer, values: layer(values[:, None]),
        lambda layer, values: layer.double()(values.double()),
        lambda layer, values: layer(values[:0]),
    ],
)
def test_what_is_not_a_batch_of_training_has_the_bits_of_torch(
    call: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    layer, plain = layers(33, 32)
    values = torch.randn(MIN_EXAMPLES, 33)
    found = call(layer, values)
    assert type(found.grad_fn).__name__ != SEEN
    assert torch.equal(found, call(plain, values))


def test_without_gradients_and_under_autocast_a_layer_is_torchs() -> None:
    layer, plain = layers(367, 256)
    values = torch.randn(MIN_EXAMPLES, 367)
    with torch.no_grad():
        assert torch.equal(layer(values), plain(values))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(values)
        assert found.dtype == torch.bfloat16 and torch.equal(found, plain(values))


@pytest.mark.parametrize("num_vectors", [2, 5, 27])
@pytest.mark.parametrize("is_half", [False, True])
def test_pair_dots_and_their_gradients_are_those_of_each_pair(
    num_vectors: int, is_half: bool
) -> None:
    torch.manual_seed(0)
    every = list(combinations(range(num_vectors), 2))[:: 2 if is_half else 1]
    pairs = torch.tensor([first * num_vectors + second for first, second in every])
    places = places_of(pairs, num_vectors)
    vectors = torch.randn(7, num_vectors, 3, dtype=torch.float64, requires_grad=True)
    found = pair_dots(vectors, pairs, places)
    assert type(found.grad_fn).__name__ == "_PairDotsBackward"
    wanted = torch.stack([(vectors[:, i] * vectors[:, j]).sum(1) for i, j in every], dim=1)
    torch.testing.assert_close(found, wanted)
    weights = torch.randn(7, len(every), dtype=torch.float64)
    own = torch.autograd.grad((found * weights).sum(), vectors)[0]
    torch.testing.assert_close(own, torch.autograd.grad((wanted * weights).sum(), vectors)[0])
    with torch.no_grad():
        assert torch.equal(pair_dots(vectors, pairs, places), found)


def test_pair_dots_under_autocast_are_torchs() -> None:
    pairs = torch.tensor([1])
    vectors = torch.randn(4, 2, 3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dots = pair_dots(vectors, pairs, places_of(pairs, 2))
    dots.float().sum().backward()
    torch.testing.assert_close(vectors.grad, vectors.detach().flip(1), rtol=1e-2, atol=1e-2)


def operations_of(output: torch.Tensor) -> Counter[str]:
    """How often each operation's gradient is taken, by name."""
    found: Counter[str] = Counter()
    left, seen = [output.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found[type(node).__name__] += 1
        left += [before for before, _ in node.next_functions]
    return found


@needs_onednn
@pytest.mark.parametrize(
    ("kind", "num_products", "num_pair_dots"),
    [
        ("deepfm", 2, 0),
        ("wide_deep", 2, 0),
        ("dlrm", 3, 1),  # a hidden layer of the bottom; its output is too narrow
        ("dcn_v2", 5, 0),  # three crosses
    ],
)
def test_models_are_trained_by_these_products(
    tmp_path: Path, kind: str, num_products: int, num_pair_dots: int
) -> None:
    hidden = (32, MIN_OUTPUTS)
    with open_for(tmp_path, kind, dim=6) as server:
        model = MODELS[kind](server, {"ads": 3}, 2, hidden)
        batch = make_batch(num_examples=MIN_EXAMPLES)
        found = operations_of(model(batch))
        assert (found[SEEN], found["_PairDotsBackward"]) == (num_products, num_pair_dots), found
        assert operations_of(model.eval()(batch))[SEEN] == 0


@pytest.mark.parametrize("kind", ["deepfm", "wide_deep", "dlrm", "dcn_v2"])
def test_models_have_layers_of_training_on_any_machine(tmp_path: Path, kind: str) -> None:
    with open_for(tmp_path, kind) as server:
        layers = [one for one in make_model(server, kind).modules() if isinstance(one, nn.Linear)]
    others = [one for one in layers if not isinstance(one, TrainedLinear)]
    assert len(layers) >= 3 and len(others) == (kind == "dcn_v2")  # its output of one number


@pytest.mark.parametrize("model", ["dlrm", "dcn_v2"])
def test_a_run_repeats_its_bits(tmp_path: Path, model: str) -> None:
    """With batches that go to oneDNN, by several threads."""
    log, found = write_criteo(tmp_path / "log.tsv", 5 * MIN_EXAMPLES, seed=1), []
    threads = torch.get_num_threads()
    try:
        for run in range(2):
            figures = train(
                TrainOptions(
                    data=[log],
                    store=tmp_path / f"store-{run}",
                    model=model,
                    dim=4,
                    hidden=(64, 32),
                    batch_size=MIN_EXAMPLES,
                    dram="8MiB",
                    torch_threads=2,
                )
            )
            # Of the losses of all batches, so of the dense part's weights but for the last step.
            found.append((figures["loss_digest"], figures["digests"]))
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]
