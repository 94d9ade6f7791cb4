"""Masked language modeling: which tokens of which windows are predicted, and from what."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.tiny import BODIES, CPU, Tiny, tiny

from regard.errors import ConfigError, DataError
from regard.models.heads import HeadConfig
from regard.nn.losses import IGNORED
from regard.tasks.masked_language_modeling.masking import Masking
from regard.tasks.masked_language_modeling.task import (
    FillingPredictor,
    MaskedBatch,
    MaskedLanguageModel,
    make_masked_batch,
)
from regard.tasks.task import EvaluationData, Objective

LINES = [("eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn",)] * 60
ROWS = [(f"dokument {number} hat {word} wörter und endet",) for number in range(40) for word in ("vier", "fünf")]
ENCODERS = [name for name in BODIES if name != "decoder"]


def prepared(rows: Any = LINES, **sections: Any) -> Tiny:
    return tiny("masked-language-modeling", rows, **{"tokenizer": "words", "window": 17, "isolate": False, **sections})


def model_for(made: Tiny, body: str = "transformer", **changes: Any) -> MaskedLanguageModel:
    """A model whose weights are all random, biases too."""
    model = made.build(BODIES[body].changed(**changes))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.5)
    return model


def plain_loss(model: MaskedLanguageModel, batch: MaskedBatch, **options) -> torch.Tensor:
    """From the logits at all positions."""
    logits = model(batch.tokens, batch.lengths)
    found = logits.gather(1, batch.positions[..., None].expand(-1, -1, logits.size(-1)))
    return F.cross_entropy(
        found.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum", **options
    )


def test_windows_have_a_start_and_an_end_and_targets_are_the_masked_tokens():
    made = prepared()
    tokenizer, batches = made.task.tokenizer, made.batches(batch_tokens=120)
    ids = set(map(tuple, np.lib.stride_tricks.sliding_window_view(made.data.train.ids, 15).tolist()))
    for number in range(batches.per_epoch):
        batch = batches.batch(number)
        assert batch.tokens.shape == (120 // 17, 17)
        assert (batch.tokens[:, 0] == tokenizer.start).all()
        assert (batch.tokens[:, -1] == tokenizer.end).all()
        assert batch.num_targets == int((batch.targets != IGNORED).sum()) == batch.targets.numel()
        assert batch.num_tokens == batch.tokens.numel()
        whole = batch.tokens.scatter(1, batch.positions, batch.targets)
        assert all(tuple(row) in ids for row in whole[:, 1:-1].tolist())
        assert all(len(set(row)) == len(row) for row in batch.positions.tolist())


def test_every_batch_masks_other_tokens():
    made = prepared([(f"{LINES[0][0]} " * 20,)] * 12)
    batches = made.batches(batch_tokens=17)
    masked = [tuple(batches.batch(number).positions[0].tolist()) for number in range(40)]
    again = [tuple(batches.batch(batches.per_epoch + number).positions[0].tolist()) for number in range(40)]
    assert len(set(masked)) > 20  # of 105 pairs of positions
    assert sum(one == other for one, other in zip(masked, again, strict=True)) < 10


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("body", ENCODERS)
def test_the_loss_is_the_cross_entropy_of_the_masked_tokens(body: str, smoothing: float):
    made = prepared()
    model = model_for(made, body)
    batch = made.batches(batch_tokens=120).batch(0)
    found = made.task.loss(model, batch, Objective(label_smoothing=smoothing))
    expected = plain_loss(model, batch, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    names = [name for name, _ in model.named_parameters()]
    ours, theirs = (torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected))
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, msg=name)
        assert one.any(), name


def test_gradients_are_of_masked_positions_alone():
    made = prepared()
    model, batch, kept = model_for(made), made.batches(batch_tokens=120).batch(0), []
    handle = model.body.encoder.register_forward_hook(lambda *given: kept.append(given[-1]))
    loss = made.task.loss(model, batch)
    handle.remove()
    (gradient,) = torch.autograd.grad(loss, kept)
    is_masked = torch.zeros(batch.tokens.shape, dtype=torch.bool).scatter(1, batch.positions, batch.targets != IGNORED)
    assert torch.equal(gradient.abs().sum(dim=-1) > 0, is_masked)


def test_rdrop_is_zero_where_both_passes_agree():
    made = prepared()
    model, batch = model_for(made), made.batches(batch_tokens=120).batch(0)
    torch.testing.assert_close(made.task.loss(model, batch, Objective(rdrop=3.0)), made.task.loss(model, batch))


@pytest.mark.parametrize("body", ENCODERS)
def test_padding_does_not_change_likelihoods(body: str):
    made = prepared(ROWS, isolate=True)
    model, end = model_for(made, body), made.task.tokenizer.end
    texts = made.task.tokenizer.encode(["vier", "dokument 1 hat fünf wörter"])
    (batch,) = made.task.stream_batches(np.array([end, *(t for ids in texts for t in (*ids, end))]), isolate=True)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [3, 7]
    together = made.task.likelihoods(model, iter([batch]), CPU)
    for row, length in enumerate(batch.lengths.tolist()):
        tensors = [None if each is None else each[row : row + 1] for each in batch.tensors()]
        alone = replace(batch.with_tensors(tensors), lengths=None, tokens=batch.tokens[row : row + 1, :length])
        found = made.task.likelihoods(model, iter([alone]), CPU)
        assert found.losses == pytest.approx(together.losses[row : row + 1])
        assert found.num_correct == together.num_correct[row : row + 1]


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "relative", "alibi", "shaw"])
def test_isolated_documents_of_a_window_are_read_as_if_each_were_alone(positions: str):
    made = prepared(ROWS, isolate=True, window=41)
    tokenizer = made.task.tokenizer
    model = model_for(made, positions=positions)
    batch = made.batches(batch_tokens=41, seed=1).batch(0)
    assert batch.documents is not None
    assert batch.documents.max() > 2
    alone = torch.zeros(())
    for number in range(int(batch.documents.max()) + 1):
        inside = (batch.documents[0] == number).nonzero()[:, 0]
        tokens = batch.tokens[:, inside]
        assert tokens[0, 0] == tokenizer.start
        assert tokens[0, -1] == tokenizer.end
        assert not np.isin(tokens[0, 1:-1].numpy(), [tokenizer.start, tokenizer.end]).any()
        is_own = torch.isin(batch.positions[0], inside) & (batch.targets[0] != IGNORED)
        part = replace(
            batch,
            tokens=tokens,
            documents=None,
            positions=batch.positions[:, is_own] - inside[0],
            targets=batch.targets[:, is_own],
        )
        alone = alone + (made.task.loss(model, part) if is_own.any() else 0.0)
    torch.testing.assert_close(made.task.loss(model, batch), alone)
    assert not torch.isclose(made.task.loss(model, replace(batch, documents=None)), alone)


def test_isolated_documents_have_the_first_segment():
    made = prepared(ROWS, isolate=True, window=41)
    model, batch = model_for(made, num_segments=2), made.batches(batch_tokens=41, seed=1).batch(0)
    assert batch.documents is not None
    one = torch.zeros_like(batch.documents)
    torch.testing.assert_close(
        made.task.loss(model, replace(batch, documents=one)), made.task.loss(model, replace(batch, documents=None))
    )


def test_validation_reads_all_of_the_text_and_always_masks_the_same_tokens():
    made = prepared(data={"splits": [0.5, 0.4, 0.1]})
    tokenizer, read = made.task.tokenizer, []
    for batch in made.task.validation_batches(made.data):
        counts = batch.targets != IGNORED
        assert (batch.tokens.gather(1, batch.positions)[counts] == tokenizer.mask).all()
        whole = batch.tokens.clone()
        rows = torch.arange(len(whole))[:, None].expand_as(counts)
        whole[rows[counts], batch.positions[counts]] = batch.targets[counts]
        lengths = batch.lengths.tolist() if batch.lengths is not None else [17] * len(whole)
        for row, length in zip(whole.tolist(), lengths, strict=True):
            assert (row[0], row[length - 1]) == (tokenizer.start, tokenizer.end)
            read += row[1 : length - 1]
    assert len(read) > 100
    assert [tokenizer.end, *read, tokenizer.end] == made.data.valid.ids.tolist()
    model = model_for(made)
    assert made.validation(model) == made.validation(model)


def test_scores_count_the_correct_tokens():
    made = prepared()
    model = model_for(made)
    batches = list(made.task.validation_batches(made.data))
    found = made.task.likelihoods(model, iter(batches), CPU)
    loss = sum(float(plain_loss(model, batch).detach()) for batch in batches)
    correct = sum(
        int((model(batch.tokens, batch.lengths).argmax(-1).gather(1, batch.positions) == batch.targets).sum())
        for batch in batches
    )
    assert sum(found.losses) == pytest.approx(loss)
    accuracy, perplexity = made.task.scores(EvaluationData([], [], found))
    assert accuracy.name == made.task.headline([])
    assert accuracy.value == pytest.approx(correct / sum(found.counts))
    assert perplexity.value == pytest.approx(math.exp(loss / sum(found.counts)))
    for score in (accuracy, perplexity):
        assert "hidden:0.15|" in score.signature
        assert "units:words|window:17" in score.signature
        assert score.interval is not None
        assert score.interval[0] <= score.value <= score.interval[1]


def test_the_model_must_be_encoder_only():
    made = prepared()
    for layers in ({"encoder_layers": 0, "decoder_layers": 1}, {"encoder_layers": 1, "decoder_layers": 1}):
        with pytest.raises(ConfigError, match=r"encoder-only.*decoder_layers=1"):
            made.task.build(BODIES["transformer"].changed(**layers), HeadConfig(pooling="mean"))


def test_windows_exceed_their_start_and_end_and_do_not_overlap():
    with pytest.raises(ConfigError, match=r"task\.window .*2"):
        prepared(window=2)
    with pytest.raises(ConfigError, match=r"task\.stride .*3"):
        prepared(stride=3)
    made = prepared()
    with pytest.raises(DataError, match="no tokens"):
        list(made.task.stream_batches(np.array([made.task.tokenizer.end]), isolate=False))


def test_rows_with_fewer_masked_positions_are_padded():
    tokens = np.array([[1, 7, 8, 9, 2], [1, 5, 6, 5, 2]])
    is_hidden = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]], bool)
    batch = make_masked_batch(tokens, np.where(is_hidden, 99, tokens), is_hidden, width=3)
    assert batch.positions.tolist() == [[1, 3, 0], [2, 0, 0]]
    assert batch.targets.tolist() == [[7, 9, IGNORED], [6, IGNORED, IGNORED]]
    assert batch.num_targets == 3
    assert Masking(0.15, has_spans=False, has_words=True).budget(np.array([20])).tolist() == [3]


@pytest.mark.slow
@pytest.mark.parametrize("body", ["transformer", "recurrent"])
def test_a_small_model_learns_a_periodic_text(body: str):
    torch.set_default_dtype(torch.float32)
    made = prepared(data={"splits": [0.6, 0.3, 0.1]})
    own = {"num_heads": 4, "block": "pre-norm", "positions": "relative"} if body == "transformer" else {}
    model = made.build(BODIES[body].changed(num_layers=1, model_dim=32, **own))
    batches = made.batches(batch_tokens=200, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = made.validation(model)
    model.train()
    for number in range(100):
        batch = batches.batch(number)
        (made.task.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = made.validation(model.eval())
    assert sum(before.num_correct) < 0.5 * sum(before.counts)
    assert sum(after.num_correct) > 0.9 * sum(after.counts)
    fill = FillingPredictor(model, made.task.tokenizer)
    assert fill(["eins zwei ____ vier fünf sechs"])[0].output == "eins zwei drei vier fünf sechs"
