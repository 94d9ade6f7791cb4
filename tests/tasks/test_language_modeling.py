"""Language modeling: which tokens are scored from which context, and that packing documents changes nothing."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import tiny
from torch import nn

from regard.baselines import KneserNey
from regard.data.codecs import TextCodec
from regard.errors import ConfigError, DataError
from regard.generation.config import GenerationConfig
from regard.models.family import build_model, find_family, read_model_config
from regard.models.heads import HeadConfig
from regard.models.presets import find_preset
from regard.nn.losses import IGNORED
from regard.nn.ngrams import estimate_kneser_ney
from regard.tasks.language_modeling import (
    LanguageModeling,
    LanguageModelingSettings,
    WindowBatch,
    hidden_state_penalty,
    make_window_batch,
    stream_batches,
)
from regard.tasks.task import EvaluationData, Objective
from regard.text.tokenizer import Tokenizer, train_tokenizer

CPU = torch.device("cpu")
TEXTS = ["eins zwei drei", "vier", "fünf sechs sieben acht"]
ROWS = [(text,) for text in TEXTS]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, "characters", 100)


def task_with(tokenizer: Tokenizer, **settings: Any) -> LanguageModeling:
    values = {"tokenizer": "characters", "window": 7, "isolate": False, **settings}
    return LanguageModeling(LanguageModelingSettings.read(values), {"text": TextCodec(tokenizer)})


def make(tokenizer: Tokenizer, name: str = "gpt-tiny", **changes: Any) -> Any:
    preset = find_preset(name)[1]
    shape = {**find_family(preset["family"]).decoder_only(preset), "num_layers": 2, "model_dim": 20, "dropout": 0.0}
    if preset["family"] == "transformer":
        shape |= {"num_heads": 2, "feedforward_dim": 23}
    torch.manual_seed(2)
    model = build_model(read_model_config({**shape, **changes}), tokenizer.vocab_size)
    for parameter in model.parameters():  # some projections are initially zero, and zeros hide mistakes
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    return model.double()


def stream(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    ids = [tokenizer.end]
    for encoded in tokenizer.encode(texts):
        ids += [*encoded, tokenizer.end]
    return np.array(ids)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt2-tiny", "llama-tiny"])
def test_packed_documents_have_the_gradients_of_single_ones(tokenizer: Tokenizer, name: str):
    model, task = make(tokenizer, name), task_with(tokenizer)
    packed = make_window_batch(stream(tokenizer, TEXTS)[None], tokenizer, isolate=True)
    assert packed.documents is not None
    together = task.loss(model, packed)
    together.backward()
    packed_gradients = gradients(model)
    alone = torch.zeros(())
    for text in TEXTS:
        batch = make_window_batch(stream(tokenizer, [text])[None], tokenizer, isolate=True)
        assert batch.documents is None
        alone = alone + task.loss(model, batch)
    alone.backward()
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(packed_gradients, gradients(model))


def test_documents_that_are_not_isolated_attend_to_each_other(tokenizer: Tokenizer):
    model, task, ids = make(tokenizer), task_with(tokenizer), stream(tokenizer, TEXTS)[None]
    apart, running = (task.loss(model, make_window_batch(ids, tokenizer, isolate=each)) for each in (True, False))
    assert not torch.isclose(apart, running)


def test_a_document_begins_with_the_start_token_and_its_last_target_is_the_end(tokenizer: Tokenizer):
    batch = make_window_batch(stream(tokenizer, ["vier"])[None], tokenizer, isolate=True)
    four = tokenizer.encode(["vier"])[0]
    assert batch.tokens.tolist() == [[tokenizer.start, *four]]
    assert batch.targets.tolist() == [[*four, tokenizer.end]]


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt-tiny", "lstm", "convolution"])
def test_the_probability_of_a_text_is_the_product_over_its_steps(tokenizer: Tokenizer, name: str):
    model = make(tokenizer, name).eval()
    found = task_with(tokenizer).score_text(model, "drei vier")
    state, total = model.initial_state(batch_size=1), 0.0
    ids = tokenizer.encode(["drei vier"])[0]
    for token, after in zip([tokenizer.start, *ids], [*ids, tokenizer.end], strict=True):
        logits, state = model.step(torch.tensor([[token]]), state)
        total += float(logits[0, 0].log_softmax(-1)[after])
    assert found.log_probability == pytest.approx(total)
    assert found.perplexity == pytest.approx(math.exp(-total / (len(ids) + 1)))
    assert found.bits_per_byte == pytest.approx(-total / math.log(2) / len(b"drei vier"))
    assert len(found.tokens) == len(found.log_probabilities) == len(ids) + 1


def test_the_probabilities_of_short_texts_sum_to_less_than_one():
    """They are some of all texts; the sum over every text is 1."""
    tokenizer = train_tokenizer(["ab"], "characters", 100)
    model, task = make(tokenizer).eval(), task_with(tokenizer)
    total = sum(math.exp(task.score_text(model, text).log_probability) for text in ("a", "b", "ab", "ba", "aa"))
    assert 0.0 < total < 1.0


@pytest.mark.parametrize(("window", "stride"), [(7, 7), (7, 3), (5, 1), (100, 100)])
def test_every_token_is_scored_once_whatever_the_stride(tokenizer: Tokenizer, window: int, stride: int):
    ids = stream(tokenizer, TEXTS)
    batches = list(stream_batches(ids, tokenizer, window=window, stride=stride, isolate=False))
    scored = [target for batch in batches for target in batch.targets.flatten().tolist() if target != IGNORED]
    assert scored == ids[1:].tolist()
    assert sum(batch.num_targets for batch in batches) == len(ids) - 1


@torch.no_grad()
def test_with_a_stride_of_one_each_token_has_a_full_window_as_context(tokenizer: Tokenizer):
    model, ids = make(tokenizer).eval(), stream(tokenizer, TEXTS)
    batches = stream_batches(ids, tokenizer, window=6, stride=1, isolate=False)
    found = task_with(tokenizer).likelihoods(model, batches, CPU)
    last = make_window_batch(ids[None, -7:], tokenizer, isolate=False)
    log_probs = model(last.tokens)[0, -1].log_softmax(-1)
    assert found.losses[-1] == pytest.approx(-float(log_probs[last.targets[0, -1]]))


@pytest.mark.parametrize(("window", "stride"), [(5, 5), (7, 3), (5, 1)])
def test_a_recurrent_model_reads_a_text_as_a_whole_whatever_the_windows(tokenizer: Tokenizer, window: int, stride: int):
    model, ids = make(tokenizer, "lstm", hidden_dim=23).eval(), stream(tokenizer, TEXTS)
    whole, cut = (
        task_with(tokenizer).likelihoods(model, stream_batches(ids, tokenizer, window=w, stride=s, isolate=False), CPU)
        for w, s in ((len(ids) - 1, len(ids) - 1), (window, stride))
    )
    assert len(cut.losses) > 1
    assert sum(whole.losses) == pytest.approx(sum(cut.losses))
    assert cut.carries_state
    assert sum(cut.counts) == len(ids) - 1


def test_a_signature_states_the_window_and_whether_the_state_was_carried(tokenizer: Tokenizer):
    for name, isolate, is_carried in (("lstm", False, True), ("lstm", True, False), ("gpt-tiny", False, False)):
        task = task_with(tokenizer, isolate=isolate, stride=3)
        likelihoods = task.likelihoods(make(tokenizer, name).eval(), task.row_batches(ROWS), CPU)
        perplexity, bits = task.scores(EvaluationData(ROWS, [], likelihoods))
        for score in (perplexity, bits):
            assert ("|state:carried|" in score.signature) == is_carried
            assert "stride:3" in score.signature
            assert "window:7" in score.signature
        num_bytes = sum(len(text.encode()) for text in TEXTS)
        assert bits.value == pytest.approx(sum(likelihoods.losses) / math.log(2) / num_bytes)


def windows_of(tokenizer: Tokenizer, *lengths: int) -> list[WindowBatch]:
    """Two texts side by side, in windows that continue the previous ones."""
    ids = np.stack([stream(tokenizer, TEXTS)[:20], stream(tokenizer, TEXTS[::-1])[:20]])
    places = np.cumsum([0, *lengths])
    cut = [ids[:, start : end + 1] for start, end in pairwise(places)]
    return [
        replace(make_window_batch(each, tokenizer, isolate=False), continues=number > 0)
        for number, each in enumerate(cut)
    ]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_two_windows_with_a_carried_state_have_the_loss_of_one_of_their_length(tokenizer: Tokenizer, cell: str):
    model, task = make(tokenizer, cell, hidden_dim=23).eval(), task_with(tokenizer)
    (whole,), (first, second) = windows_of(tokenizer, 17), windows_of(tokenizer, 6, 11)
    expected, end = task.stateful_loss(model, whole, None)
    torch.testing.assert_close(expected, task.loss(model, whole))
    one, carried = task.stateful_loss(model, first, None)
    two, last = task.stateful_loss(model, second, carried)
    torch.testing.assert_close(one + two, expected)
    torch.testing.assert_close(last, end)
    assert not any(part.requires_grad for part in carried)


def test_gradients_through_a_carried_state_end_where_the_window_begins(tokenizer: Tokenizer):
    model, task = make(tokenizer, "lstm"), task_with(tokenizer)
    first, second = windows_of(tokenizer, 6, 11)
    _, carried = task.stateful_loss(model, first, None)
    loss, _ = task.stateful_loss(model, second, carried)
    loss.backward()
    ours = gradients(model)
    with torch.no_grad():
        state = model.step(first.tokens, model.initial_state(batch_size=2))[1]
    total = torch.zeros(())
    for token, target in zip(second.tokens.split(1, dim=1), second.targets.T, strict=True):
        logits, state = model.step(token, state)
        total = total - logits[:, 0].log_softmax(-1).gather(1, target[:, None]).sum()
    torch.testing.assert_close(loss, total)
    total.backward()
    torch.testing.assert_close(ours, gradients(model))


def test_the_first_batch_of_an_epoch_has_no_state(tokenizer: Tokenizer):
    model, task = make(tokenizer, "gru").eval(), task_with(tokenizer)
    first, second = windows_of(tokenizer, 6, 11)
    _, carried = task.stateful_loss(model, first, None)
    torch.testing.assert_close(task.stateful_loss(model, first, carried)[0], task.stateful_loss(model, first, None)[0])
    assert not torch.isclose(task.stateful_loss(model, second, carried)[0], task.stateful_loss(model, second, None)[0])


def test_both_passes_of_rdrop_continue_the_same_state(tokenizer: Tokenizer):
    """Without dropout the two agree, and the loss is that of one."""
    model, task = make(tokenizer, "lstm").eval(), task_with(tokenizer, activation_penalty=0.3)
    first, second = windows_of(tokenizer, 6, 11)
    _, carried = task.stateful_loss(model, first, None, Objective(rdrop=2.0))
    torch.testing.assert_close(carried, task.stateful_loss(model, first, None)[1])
    loss, _ = task.stateful_loss(model, second, carried, Objective(rdrop=2.0))
    torch.testing.assert_close(loss, task.stateful_loss(model, second, carried)[0])


def test_penalties_are_mean_squares_of_states_and_of_their_changes():
    """Means over all numbers, as in the code of Merity et al. (2017)."""
    batch, time, width = 3, 7, 11
    states = torch.randn(batch, time, width)
    size, change = (hidden_state_penalty(states, activation=a, change=c) for a, c in ((2.0, 0.0), (0.0, 3.0)))
    torch.testing.assert_close(size / (batch * time), 2 * states.square().mean())
    changes = (states[:, 1:] - states[:, :-1]).square().mean()
    torch.testing.assert_close(change / (batch * (time - 1)), 3 * changes)
    torch.testing.assert_close(hidden_state_penalty(states, activation=2.0, change=3.0), size + change)


@pytest.mark.parametrize("name", ["lstm", "gpt-tiny"])
def test_penalties_are_added_to_the_loss_of_any_model(tokenizer: Tokenizer, name: str):
    model = make(tokenizer, name).eval()
    batch = make_window_batch(stream(tokenizer, TEXTS)[None], tokenizer, isolate=False)
    more = hidden_state_penalty(model.hidden_states(batch.tokens), activation=0.5, change=0.25)
    assert more > 0
    expected = task_with(tokenizer).loss(model, batch) + more
    penalized = task_with(tokenizer, activation_penalty=0.5, change_penalty=0.25)
    torch.testing.assert_close(penalized.loss(model, batch), expected)


def test_a_language_model_has_no_encoder(tokenizer: Tokenizer):
    config = read_model_config({"model_dim": 20, "num_heads": 2})
    with pytest.raises(ConfigError, match=r"encoder_layers=6"):
        task_with(tokenizer).build(config, HeadConfig(pooling="mean"))


def test_a_text_longer_than_learned_positions_is_an_error(tokenizer: Tokenizer):
    model = make(tokenizer, "gpt2-tiny", context_length=5).eval()
    with pytest.raises(DataError, match=r"9 tokens.* 4\b"):
        task_with(tokenizer).score_text(model, "drei vier")


def test_the_stride_is_at_most_the_window(tokenizer: Tokenizer):
    task = task_with(tokenizer)
    assert task.with_stride(3).settings.stride == 3
    for stride in (0, 8):
        with pytest.raises(ConfigError, match=rf"7 tokens.*{stride}"):
            task.with_stride(stride)
    with pytest.raises(ConfigError, match=r"task\.stride.* 9 and 7"):
        task_with(tokenizer, stride=9).check(model=make(tokenizer).config, is_finetuned=False, held_out={})


def test_special_tokens_are_not_generated(tokenizer: Tokenizer):
    """Not even the unknown token, and not even where they have the highest logits and the end has the lowest."""
    model = make(tokenizer).eval()
    model.output.bias = nn.Parameter(torch.zeros(tokenizer.vocab_size))
    with torch.no_grad():
        model.output.bias[list(tokenizer.never_generated)] = 100.0
        model.output.bias[tokenizer.end] = -100.0
    predict = task_with(tokenizer).predictor(model, GenerationConfig(max_tokens=6, temperature=0.7))
    (found,) = predict(["eins"])
    assert len(found.output) == 6
    assert "<" not in found.output
    assert "".join(predict.stream("eins")) == found.output


def mixed(tokenizer: Tokenizer, name: str = "gpt-tiny", *, weight: float, **settings: Any) -> tuple[Any, Any]:
    """A task with 3-grams of TEXTS, and its model with random weights."""
    task = task_with(tokenizer, ngrams=3, **settings)
    network = make(tokenizer, name)
    model: Any = task.build(network.config, HeadConfig.read({"pooling": "mean"})).double().eval()
    model.body.load_state_dict(network.state_dict())
    tables = estimate_kneser_ney(stream(tokenizer, TEXTS), vocab_size=tokenizer.vocab_size, order=3)
    model.tables.fill(tables)
    model.network_weight.fill_(weight)
    return task, model


@pytest.mark.parametrize("name", ["gpt-tiny", "lstm"])
@pytest.mark.parametrize(("window", "stride"), [(7, 7), (7, 3), (5, 1), (100, 100)])
def test_with_weight_0_the_likelihoods_are_those_of_the_baseline_whatever_the_windows(
    tokenizer: Tokenizer, name: str, window: int, stride: int
):
    task, model = mixed(tokenizer, name, weight=0.0, window=window, stride=stride)
    baseline = KneserNey(stream(tokenizer, TEXTS), vocab_size=tokenizer.vocab_size, order=3)
    rows = [("sieben drei",), ("eins vier acht",)]
    expected = baseline.losses(stream(tokenizer, [row[0] for row in rows]))
    found = task.likelihoods(model, task.row_batches(rows), CPU)
    assert sum(found.losses) == pytest.approx(expected.sum())
    assert sum(found.counts) == len(expected)
    model.network_weight.fill_(1.0)
    alone = task.likelihoods(model.body, task.row_batches(rows), CPU)
    assert task.likelihoods(model, task.row_batches(rows), CPU).losses == pytest.approx(alone.losses)


@torch.no_grad()
@pytest.mark.parametrize("isolate", [True, False])
def test_likelihoods_and_scores_of_texts_are_those_of_the_logits(tokenizer: Tokenizer, isolate: bool):
    task, model = mixed(tokenizer, weight=0.4, isolate=isolate, window=60)
    texts = [[text] for text in TEXTS] if isolate else [TEXTS]
    batches = [make_window_batch(stream(tokenizer, some)[None], tokenizer, isolate=False) for some in texts]
    found = [model(batch.tokens).gather(2, batch.targets[..., None]).flatten() for batch in batches]
    likelihoods = task.likelihoods(model, task.row_batches(ROWS), CPU)
    assert -sum(likelihoods.losses) == pytest.approx(float(torch.cat(found).sum()))
    score = task.score_text(model, TEXTS[0])
    assert score.log_probabilities == pytest.approx(found[0][: len(score.tokens)].tolist())


def test_the_weight_is_the_best_one_for_the_validation_text(tokenizer: Tokenizer):
    task, model = mixed(tokenizer, weight=1.0)
    rows = [("nebeis ierd thca",)] * 3

    def loss(weight: float) -> float:
        model.network_weight.fill_(weight)
        return task.likelihoods(model, task.row_batches(rows), CPU).mean

    task.blend(model, task.row_batches(rows), CPU)
    fitted = float(model.network_weight)
    assert 0.001 < fitted < 0.999, "both are of some use"
    assert loss(fitted) < min(loss(0.99 * fitted), loss(0.01 + 0.99 * fitted), loss(0.0), loss(1.0))


def test_training_ignores_the_ngrams(tokenizer: Tokenizer):
    task, model = mixed(tokenizer, weight=0.2)
    batch = make_window_batch(stream(tokenizer, TEXTS)[None], tokenizer, isolate=False)
    for objective in (Objective(), Objective(rdrop=1.0)):
        assert torch.equal(task.loss(model.train(), batch, objective), task.loss(model.body.train(), batch, objective))


def test_a_mixture_is_generated_from_and_its_signature_states_the_ngrams(tokenizer: Tokenizer):
    task, model = mixed(tokenizer, weight=0.0)
    [found] = task.predictor(model, GenerationConfig(max_tokens=3))(["fü"])
    assert found.output == "nf "
    likelihoods = task.likelihoods(model, task.row_batches(ROWS), CPU)
    assert all("|ngrams:3" in score.signature for score in task.scores(EvaluationData(ROWS, [], likelihoods)))


def test_ngrams_are_not_exported_and_not_fine_tuned(tokenizer: Tokenizer):
    assert task_with(tokenizer, ngrams=3).export_spec().unsupported == {"task.ngrams": 3}
    assert not task_with(tokenizer, ngrams=0).export_spec().unsupported
    with pytest.raises(ConfigError, match=r"task\.ngrams is for models that are trained from scratch.* got 3"):
        task_with(tokenizer, ngrams=3).check(model=make(tokenizer).config, is_finetuned=True, held_out={})


def test_ngrams_of_a_text_that_is_too_short_for_them_are_an_error():
    short = tiny("language-modeling", [("one two three four",)], tokenizer="words", window=2,
                 ngrams=5, data={"splits": [0.5, 0.5, 0.0]}, preset="gpt-tiny")  # fmt: skip
    with pytest.raises(DataError, match="n-grams of 5 tokens need a text of more tokens"):
        short.task.solve(short.build(), short.data)


@pytest.mark.parametrize(
    ("tokenizer", "train", "expected"),
    [
        ("words", {"minutes": 2.0, "max_steps": None}, 3),
        ("bpe", {"minutes": 15.0, "max_steps": None}, 3),
        ("bpe", {"minutes": 16.0, "max_steps": None}, 0),
        ("characters", {"minutes": 2.0, "max_steps": None}, 0),
        ("bytes", {"minutes": 2.0, "max_steps": None}, 0),
        ("words", {}, 0),
    ],
)
def test_short_runs_on_a_cpu_are_mixed_with_ngrams_of_words(caplog, tokenizer: str, train: Any, expected: int):
    rows = [("one two three four five six seven eight " * 20,)]
    with caplog.at_level("INFO", logger="regard"):
        found = tiny("language-modeling", rows, tokenizer=tokenizer, preset="gpt-tiny", train=train)
    assert found.settings.task.ngrams == expected  # pyright: ignore[reportAttributeAccessIssue]  of language models
    assert ("ngrams 3: in a short run on a CPU" in caplog.text) == bool(expected)
