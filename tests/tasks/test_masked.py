"""Masked models: what is asked, from what, and how blanks are filled."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.errors import ConfigError, DataError
from regard.generation.config import GenerationConfig
from regard.generation.inference import ready
from regard.models.convolutional import ConvolutionalConfig
from regard.models.families import AnyConfig
from regard.models.heads import MaskedModel
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig
from regard.nn.losses import IGNORED
from regard.tasks import find_task
from regard.tasks.blanks import Filler, with_mask
from regard.tasks.masked import Masked, MaskedBatch, make_batch, stream_as_batches, window_of
from regard.tasks.masking import Masking, vocabulary_of
from regard.tasks.objective import Objective
from regard.text.tokenizer import Tokenizer, TokenizerKind, train_tokenizer

TASK = Masked()
CPU = torch.device("cpu")
LINES = [("eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn",)] * 60
ROWS = [(f"dokument {number} hat {word} wörter und endet",) for number in range(40) for word in ("vier", "fünf")]
SHAPE = {"num_layers": 2, "decoder_layers": 0, "model_dim": 22, "dropout": 0.0}
BODIES: dict[str, AnyConfig] = {
    "transformer": TransformerConfig.read({**SHAPE, "num_heads": 1, "feedforward_dim": 37, "positions": "rotary"}),
    "recurrent": RecurrentConfig.read(SHAPE),
    "convolutional": ConvolutionalConfig.read(SHAPE),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(rows=LINES, **options) -> tuple[Prepared, DataConfig]:
    config = DataConfig(**{"tokenizer": "words", "window": 17, "isolate": False, **options})
    return TASK.prepare(config, rows), config


def model_for(tokenizer: Tokenizer, body: str = "transformer", **changes: object) -> MaskedModel:
    """A model whose weights are all random, biases too."""
    model = TASK.build_model(BODIES[body].changed(**changes), tokenizer)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.5)
    return model


def plain_loss(model: MaskedModel, batch: MaskedBatch, **options) -> torch.Tensor:
    """Scores at all positions, of which the hidden ones are looked at."""
    scores = model(batch.tokens, batch.lengths)
    found = scores.gather(1, batch.places[..., None].expand(-1, -1, scores.size(-1)))
    return F.cross_entropy(
        found.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum", **options
    )


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
def test_a_mask_stands_behind_all_tokens_and_in_no_text(kind: TokenizerKind):
    texts = ["eins zwei <mask> drei", "vier </s> <mask>"]
    plain = train_tokenizer(["eins zwei drei vier <>/masku"] * 3, kind, 300 if kind in ("bpe", "bytes") else 40)
    tokenizer = with_mask(plain)
    assert tokenizer.mask == plain.vocab_size
    assert tokenizer.vocab_size == plain.vocab_size + 1
    assert tokenizer.encode(texts) == plain.encode(texts)
    assert all(tokenizer.mask not in ids for ids in tokenizer.encode(texts))
    again = Tokenizer.from_json(tokenizer.to_json())
    assert (again.mask, again.pad, again.start, again.end) == (tokenizer.mask, plain.pad, plain.start, plain.end)
    assert with_mask(again) is again


def test_windows_start_and_end_and_hide_what_stood_there():
    data, config = prepared()
    tokenizer, batches = data.tokenizer, TASK.batches(data, config, batch_tokens=120, seed=3)
    ids = set(map(tuple, np.lib.stride_tricks.sliding_window_view(data.train.ids, 15).tolist()))
    for number in range(batches.per_epoch):
        batch = batches.batch(number)
        assert batch.tokens.shape == (120 // 17, 17)
        assert (batch.tokens[:, 0] == tokenizer.start).all()
        assert (batch.tokens[:, -1] == tokenizer.end).all()
        assert batch.num_targets == int((batch.targets != IGNORED).sum()) == batch.targets.numel()
        assert batch.num_tokens == batch.tokens.numel()
        whole = batch.tokens.scatter(1, batch.places, batch.targets)
        assert all(tuple(row) in ids for row in whole[:, 1:-1].tolist())
        assert all(len(set(row)) == len(row) for row in batch.places.tolist())


def test_the_number_of_a_batch_and_the_seed_say_what_it_hides():
    data, config = prepared()
    one, again, other = (TASK.batches(data, config, batch_tokens=120, seed=seed) for seed in (3, 3, 4))
    for number in (0, 5, 10 * one.per_epoch):
        for first, second in zip(one.batch(number).tensors(), again.batch(number).tensors(), strict=True):
            assert (first is None and second is None) or torch.equal(first, second)
    assert not torch.equal(one.batch(0).places, other.batch(0).places)


def test_no_two_batches_hide_alike():
    data, config = prepared([(f"{LINES[0][0]} " * 20,)] * 12)
    batches = TASK.batches(data, config, batch_tokens=17, seed=3)
    hidden = [tuple(batches.batch(number).places[0].tolist()) for number in range(40)]
    again = [tuple(batches.batch(batches.per_epoch + number).places[0].tolist()) for number in range(40)]
    assert len(set(hidden)) > 20  # of 105 pairs of places
    assert sum(one == other for one, other in zip(hidden, again, strict=True)) < 10


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("body", BODIES)
def test_the_loss_is_the_cross_entropy_of_what_is_hidden(body: str, smoothing: float):
    data, config = prepared()
    model = model_for(data.tokenizer, body)
    batch = TASK.batches(data, config, batch_tokens=120, seed=3).batch(0)
    found = TASK.loss(model, batch, Objective(label_smoothing=smoothing))
    expected = plain_loss(model, batch, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    names = [name for name, _ in model.named_parameters()]
    ours, theirs = (torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected))
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, msg=name)
        assert one.any(), name


def test_gradients_come_from_hidden_places_alone():
    data, config = prepared()
    model = model_for(data.tokenizer)
    batch = TASK.batches(data, config, batch_tokens=120, seed=3).batch(0)
    kept = []
    assert model.body.encoder is not None
    handle = model.body.encoder.register_forward_hook(lambda *given: kept.append(given[-1]))
    loss = TASK.loss(model, batch)
    handle.remove()
    (gradient,) = torch.autograd.grad(loss, kept)
    is_hidden = torch.zeros(batch.tokens.shape, dtype=torch.bool).scatter(1, batch.places, batch.targets != IGNORED)
    assert torch.equal(gradient.abs().sum(dim=-1) > 0, is_hidden)


def test_two_readings_that_agree_cost_what_one_does():
    data, config = prepared()
    model = model_for(data.tokenizer)
    batch = TASK.batches(data, config, batch_tokens=120, seed=3).batch(0)
    torch.testing.assert_close(TASK.loss(model, batch, Objective(consistency=3.0)), TASK.loss(model, batch))


@pytest.mark.parametrize("body", BODIES)
def test_padding_changes_nothing(body: str):
    data, config = prepared(ROWS, isolate=True)
    model = model_for(data.tokenizer, body).eval()
    ids = [token for text in ("vier", "dokument 1 hat fünf wörter") for token in data.tokenizer.encode([text])[0] + [2]]
    (batch,) = stream_as_batches(np.array([2, *ids]), data.tokenizer, config)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [3, 7]
    together = TASK.negative_log_likelihoods(model, iter([batch]), CPU)
    for row, length in enumerate(batch.lengths.tolist()):
        tensors = [None if each is None else each[row : row + 1] for each in batch.tensors()]
        alone = replace(batch.with_tensors(tensors), lengths=None, tokens=batch.tokens[row : row + 1, :length])
        found = TASK.negative_log_likelihoods(model, iter([alone]), CPU)
        assert found.losses == pytest.approx(together.losses[row : row + 1])
        assert found.right == together.right[row : row + 1]


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "relative", "alibi", "shaw"])
def test_documents_of_a_window_are_read_as_if_each_stood_alone(positions: str):
    data, config = prepared(ROWS, isolate=True, window=41)
    tokenizer = data.tokenizer
    model = model_for(tokenizer, positions=positions)
    batch = TASK.batches(data, config, batch_tokens=41, seed=1).batch(0)
    assert batch.documents is not None
    assert batch.documents.max() > 2
    alone = torch.zeros(())
    for number in range(int(batch.documents.max()) + 1):
        inside = (batch.documents[0] == number).nonzero()[:, 0]
        tokens = batch.tokens[:, inside]
        assert tokens[0, 0] == tokenizer.start
        assert tokens[0, -1] == tokenizer.end
        assert not np.isin(tokens[0, 1:-1].numpy(), [tokenizer.start, tokenizer.end]).any()
        is_own = torch.isin(batch.places[0], inside) & (batch.targets[0] != IGNORED)
        part = replace(
            batch,
            tokens=tokens,
            documents=None,
            places=batch.places[:, is_own] - inside[0],
            targets=batch.targets[:, is_own],
        )
        alone = alone + (TASK.loss(model, part) if is_own.any() else 0.0)
    torch.testing.assert_close(TASK.loss(model, batch), alone)
    running = replace(batch, documents=None)
    assert not torch.isclose(TASK.loss(model, running), alone)


def test_segments_are_the_first_where_documents_are_apart():
    data, config = prepared(ROWS, isolate=True, window=41)
    model = model_for(data.tokenizer, num_segments=2)
    batch = TASK.batches(data, config, batch_tokens=41, seed=1).batch(0)
    assert batch.documents is not None
    one = torch.zeros_like(batch.documents)
    torch.testing.assert_close(
        TASK.loss(model, replace(batch, documents=one)), TASK.loss(model, replace(batch, documents=None))
    )


@pytest.mark.parametrize("isolate", [False, True])
def test_rows_as_text_and_the_stream_are_the_same(isolate: bool):
    data, config = prepared(ROWS, isolate=isolate, splits=[0.6, 0.2, 0.2])
    model = model_for(data.tokenizer).eval()
    stored = TASK.negative_log_likelihoods(model, TASK.held_out(data, config), CPU)
    batches = TASK.rows_as_batches(data.held_out["valid"], data.tokenizer, config)
    given = TASK.negative_log_likelihoods(model, batches, CPU)
    assert given == stored
    assert sum(given.counts) > 0
    assert TASK.negative_log_likelihoods(model, TASK.held_out(data, config), CPU) == stored


def test_validation_reads_all_and_hides_by_the_mask_alone():
    data, config = prepared(splits=[0.5, 0.4, 0.1])
    read: list[int] = []
    for batch in TASK.held_out(data, config):
        counts = batch.targets != IGNORED
        assert (batch.tokens.gather(1, batch.places)[counts] == data.tokenizer.mask).all()
        whole = batch.tokens.clone()
        rows = torch.arange(len(whole))[:, None].expand_as(counts)
        whole[rows[counts], batch.places[counts]] = batch.targets[counts]
        lengths = batch.lengths.tolist() if batch.lengths is not None else [17] * len(whole)
        for row, length in zip(whole.tolist(), lengths, strict=True):
            assert (row[0], row[length - 1]) == (data.tokenizer.start, data.tokenizer.end)
            read += row[1 : length - 1]
    assert len(read) > 100
    assert [data.tokenizer.end, *read, data.tokenizer.end] == data.valid.ids.tolist()


def test_scores_count_what_is_right():
    data, config = prepared()
    model = model_for(data.tokenizer).eval()
    batches = list(TASK.held_out(data, config))
    found = TASK.negative_log_likelihoods(model, iter(batches), CPU)
    loss = sum(float(plain_loss(model, batch).detach()) for batch in batches)
    right = sum(
        int((model(batch.tokens, batch.lengths).argmax(-1).gather(1, batch.places) == batch.targets).sum())
        for batch in batches
    )
    assert sum(found.losses) == pytest.approx(loss)
    accuracy, perplexity = TASK.scores([], [], found, config)
    assert accuracy.name == TASK.headline([])
    assert accuracy.value == pytest.approx(right / sum(found.counts))
    assert perplexity.value == pytest.approx(math.exp(loss / sum(found.counts)))
    for score in (accuracy, perplexity):
        assert "hidden:0.15|" in score.signature
        assert "units:words|window:17" in score.signature
        assert score.interval is not None
        assert score.interval[0] <= score.value <= score.interval[1]


def test_an_encoder_alone_is_needed():
    tokenizer = with_mask(train_tokenizer(["a b"], "words", 40))
    for layers in ({"encoder_layers": 0, "decoder_layers": 1}, {"encoder_layers": 1, "decoder_layers": 1}):
        with pytest.raises(ConfigError, match="a masked model is an encoder alone"):
            TASK.build_model(BODIES["transformer"].changed(**layers), tokenizer)
    assert find_task("masked").name == "masked"


def test_windows_need_room_and_lie_side_by_side():
    assert window_of(DataConfig(window=9)) == window_of(DataConfig(max_length=9)) == 9
    with pytest.raises(ConfigError, match=r"data\.window must exceed 2"):
        window_of(DataConfig(window=2))
    with pytest.raises(ConfigError, match=r"data\.stride must be unset, got 3"):
        window_of(DataConfig(window=9, stride=3))
    tokenizer = with_mask(train_tokenizer(["a b"], "words", 40))
    with pytest.raises(DataError, match="the text has no tokens"):
        list(stream_as_batches(np.array([tokenizer.end]), tokenizer, DataConfig(window=9)))


SENTENCES = ["the cat sat on the mat.", "the dog sat on the log.", "a cat and a dog sat (on it)."]
WORDS = ["the", "cat", "sat", "on", "mat", "dog", "log", "and", "a", "bird", "tree", "green", "water", "stone", "when"]


def reader(kind: TokenizerKind) -> Tokenizer:
    rng = np.random.default_rng(0)
    texts = [*SENTENCES * 5, *(" ".join(rng.choice(WORDS, size=7)) + "." for _ in range(200))]
    return with_mask(train_tokenizer(texts, kind, {"bpe": 400, "unigram": 60}.get(kind, 300)))


@pytest.mark.parametrize("blank", ["[MASK]", "<mask>", "___", "_______"])
@pytest.mark.parametrize("kind", get_args(TokenizerKind))
def test_a_blank_stands_for_the_token_that_is_missing(kind: TokenizerKind, blank: str):
    tokenizer = reader(kind)
    fill = Filler(model_for(tokenizer), tokenizer)
    text = SENTENCES[0]
    for missing in {"characters": "c", "bytes": "c", "words": ["on"]}.get(kind, ["on", "mat"]):
        wanted = tokenizer.encode([text])[0]
        place = next(place for place, piece in enumerate(tokenizer.pieces(wanted)) if piece.strip() == missing)
        assert tokenizer.mask is not None
        wanted[place] = tokenizer.mask
        assert fill._encoded(text.replace(missing, blank, 1)) == [tokenizer.start, *wanted, tokenizer.end]


def test_blanks_are_filled_with_the_likeliest_tokens():
    tokenizer = reader("bpe")
    model = model_for(tokenizer).eval()
    inputs = ["The cat ____ on the [MASK].", "(___) a dog", "x" * 30 + " <mask>"]
    found = TASK.writer(model, tokenizer, GenerationConfig())(inputs)
    assert [each.input for each in found] == inputs
    alone = [TASK.writer(model, tokenizer, GenerationConfig())([text])[0] for text in inputs]
    for together, each in zip(found, alone, strict=True):
        assert together.output == each.output
        assert together.probabilities == pytest.approx(each.probabilities)
        assert each.probabilities is not None
        assert list(each.probabilities.values()) == sorted(each.probabilities.values(), reverse=True)
        assert len(each.probabilities) == 5
        assert sum(each.probabilities.values()) < 1
    ids = Filler(model, tokenizer)._encoded(inputs[0])
    chances = model(torch.tensor([ids]))[0].detach().softmax(dim=-1)
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask]
    ordinary = vocabulary_of(tokenizer).ordinary
    best = [int(ordinary[chances[place, ordinary].argmax()]) for place in places]
    words = [piece.strip() or piece for piece in tokenizer.pieces(best)]
    assert found[0].output == "The cat {} on the {}.".format(*words)
    assert found[0].probabilities is not None
    assert next(iter(found[0].probabilities.values())) >= float(chances[places[0], best[0]]) - 1e-9


def test_a_model_made_ready_fills_the_same():
    torch.set_default_dtype(torch.float32)
    tokenizer = reader("bpe")
    model = model_for(tokenizer).eval()
    plain, made = (Filler(each, tokenizer)(["the cat ____ on"])[0] for each in (model, ready(model, "float32")))
    assert plain.output == made.output
    assert plain.probabilities == pytest.approx(made.probabilities, rel=1e-4)


def test_what_cannot_be_filled_is_told():
    tokenizer = reader("words")
    fill = Filler(model_for(tokenizer), tokenizer)
    with pytest.raises(DataError, match=r"a blank is needed to be filled, written \[MASK\] or ____, got 'the cat __'"):
        fill(["the cat __"])
    short = Filler(model_for(tokenizer, positions="learned", context_length=5), tokenizer)
    with pytest.raises(DataError, match="the text has 4 tokens, the model reads 3 at most"):
        short(["the cat ____ on"])
    assert short(["the cat ____"])[0].output.startswith("the cat ")


def test_samples_leave_out_a_word_of_held_out_text():
    tokenizer = reader("words")
    model = model_for(tokenizer).eval()
    found = TASK.samples(model, tokenizer, [(text,) for text in SENTENCES * 7], DataConfig())
    assert len(found) > 3
    for each in found:
        before, _, after = each["source"].partition("____")
        assert each["target"].startswith(before)
        assert each["target"].endswith(after)
        assert each["right"] == (each["prediction"] == each["target"])
    assert TASK.samples(model, tokenizer, [], DataConfig()) == []


@pytest.mark.slow
@pytest.mark.parametrize("body", ["transformer", "recurrent"])
def test_a_small_model_learns_the_blanks_of_a_text_that_goes_round(body: str):
    torch.set_default_dtype(torch.float32)
    data, config = prepared(splits=[0.6, 0.3, 0.1])
    own = {"num_heads": 4, "block": "pre-norm", "positions": "relative"} if body == "transformer" else {}
    shape = BODIES[body].changed(num_layers=1, model_dim=32, **own)
    model = TASK.build_model(shape, data.tokenizer)
    batches = TASK.batches(data, config, batch_tokens=200, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = TASK.negative_log_likelihoods(model.eval(), TASK.held_out(data, config), CPU)
    model.train()
    for number in range(100):
        batch = batches.batch(number)
        (TASK.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = TASK.negative_log_likelihoods(model.eval(), TASK.held_out(data, config), CPU)
    assert sum(before.right) < 0.5 * sum(before.counts)
    assert sum(after.right) > 0.9 * sum(after.counts)
    assert (
        Filler(model, data.tokenizer)(["eins zwei ____ vier fünf sechs"])[0].output == "eins zwei drei vier fünf sechs"
    )


def test_a_batch_of_rectangles_has_room_for_rows_that_hide_less():
    tokens = np.array([[1, 7, 8, 9, 2], [1, 5, 6, 5, 2]])
    is_hidden = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]], bool)
    batch = make_batch(tokens, np.where(is_hidden, 99, tokens), is_hidden, width=3)
    assert batch.places.tolist() == [[1, 3, 0], [2, 0, 0]]
    assert batch.targets.tolist() == [[7, 9, IGNORED], [6, IGNORED, IGNORED]]
    assert batch.num_targets == 3
    assert Masking(0.15, has_spans=False, has_words=True).budget(np.array([20])).tolist() == [3]
