"""Language modelling: what is scored, from what, and that packing changes nothing."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regard.data.config import DataConfig
from regard.errors import ConfigError, DataError
from regard.models.families import AnyModel, make_model
from regard.models.presets import preset, without_encoder
from regard.models.recurrent import Recurrent
from regard.nn.losses import IGNORED
from regard.tasks import find_task, guess_task
from regard.tasks.language import Language, TextBatch, make_batch, score_text, stream_as_batches
from regard.tasks.objective import Objective, state_penalty
from regard.tasks.task import RunningTask
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.settings import RunSettings

TASK = Language()
TEXTS = ["eins zwei drei", "vier", "fünf sechs sieben acht"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, "characters", 100)


def make(tokenizer: Tokenizer, name: str = "gpt-tiny", **changes: object) -> AnyModel:
    shape = {**without_encoder(preset(name)[1]), "num_layers": 2, "model_dim": 20, "dropout": 0.0, **changes}
    if shape["family"] == "transformer":
        shape |= {"num_heads": 2, "feedforward_dim": 23}
    torch.manual_seed(2)
    model = make_model(RunSettings.read({"model": shape}).model, tokenizer.vocab_size)
    for parameter in model.parameters():  # some projections start at zero, and zeros hide mistakes
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
def test_packed_documents_teach_what_they_teach_one_by_one(tokenizer: Tokenizer, name: str):
    model = make(tokenizer, name)
    packed = make_batch(stream(tokenizer, TEXTS)[None], tokenizer, is_isolated=True)
    assert packed.documents is not None
    together = TASK.loss(model, packed)
    together.backward()
    packed_gradients = gradients(model)
    alone = torch.zeros(())
    for text in TEXTS:
        batch = make_batch(stream(tokenizer, [text])[None], tokenizer, is_isolated=True)
        assert batch.documents is None
        alone = alone + TASK.loss(model, batch)
    alone.backward()
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(packed_gradients, gradients(model))


def test_documents_that_run_on_see_one_another(tokenizer: Tokenizer):
    model, ids = make(tokenizer), stream(tokenizer, TEXTS)[None]
    apart, running = (TASK.loss(model, make_batch(ids, tokenizer, is_isolated=each)) for each in (True, False))
    assert not torch.isclose(apart, running)


def test_a_document_starts_with_the_start_and_is_to_end_with_the_end(tokenizer: Tokenizer):
    batch = make_batch(stream(tokenizer, ["vier"])[None], tokenizer, is_isolated=True)
    four = tokenizer.encode(["vier"])[0]
    assert batch.tokens.tolist() == [[tokenizer.start, *four]]
    assert batch.targets.tolist() == [[*four, tokenizer.end]]


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt-tiny", "lstm", "convolution"])
def test_the_probability_of_a_text_is_the_product_of_its_steps(tokenizer: Tokenizer, name: str):
    model = make(tokenizer, name).eval()
    found = score_text(model, tokenizer, "drei vier")
    state, total = model.start(batch_size=1), 0.0
    ids = tokenizer.encode(["drei vier"])[0]
    for token, after in zip([tokenizer.start, *ids], [*ids, tokenizer.end], strict=True):
        scores, state = model.step(torch.tensor([[token]]), state)
        total += float(scores[0, 0].log_softmax(-1)[after])
    assert found.log_probability == pytest.approx(total)
    assert found.perplexity == pytest.approx(math.exp(-total / (len(ids) + 1)))
    assert found.bits_per_byte == pytest.approx(-total / math.log(2) / len(b"drei vier"))
    assert len(found.tokens) == len(found.log_probabilities) == len(ids) + 1


def test_all_texts_of_one_token_have_probability_one_together():
    """Of all strings of up to two characters, and all that are longer: what ends early sums to less than one."""
    tokenizer = train_tokenizer(["ab"], "characters", 100)
    model = make(tokenizer).eval()
    total = sum(math.exp(score_text(model, tokenizer, text).log_probability) for text in ("a", "b", "ab", "ba", "aa"))
    assert 0.0 < total < 1.0


@pytest.mark.parametrize(("window", "stride"), [(7, 7), (7, 3), (5, 1), (100, 100)])
def test_every_token_is_scored_once_whatever_the_stride(tokenizer: Tokenizer, window: int, stride: int):
    ids = stream(tokenizer, TEXTS)
    batches = list(stream_as_batches(ids, tokenizer, window=window, stride=stride, is_isolated=False))
    scored = [target for batch in batches for target in batch.targets.flatten().tolist() if target != IGNORED]
    assert scored == ids[1:].tolist()
    assert sum(batch.num_targets for batch in batches) == len(ids) - 1


@torch.no_grad()
def test_a_smaller_stride_gives_tokens_more_to_go_by(tokenizer: Tokenizer):
    """Scored one position at a time, a token is seen from a full window; so it equals reading that window alone."""
    model, ids = make(tokenizer).eval(), stream(tokenizer, TEXTS)
    batches = stream_as_batches(ids, tokenizer, window=6, stride=1, is_isolated=False)
    found = TASK.negative_log_likelihoods(model, batches, torch.device("cpu"))
    last = make_batch(ids[None, -7:], tokenizer, is_isolated=False)
    scores = model(last.tokens)[0, -1].log_softmax(-1)
    assert found.losses[-1] == pytest.approx(-float(scores[last.targets[0, -1]]))


@pytest.mark.parametrize(("window", "stride"), [(5, 5), (7, 3), (5, 1)])
def test_a_recurrent_model_reads_all_of_a_text_however_it_is_cut(tokenizer: Tokenizer, window: int, stride: int):
    model, ids = make(tokenizer, "lstm", hidden_dim=23).eval(), stream(tokenizer, TEXTS)
    whole, cut = (
        TASK.negative_log_likelihoods(
            model, stream_as_batches(ids, tokenizer, window=w, stride=s, is_isolated=False), torch.device("cpu")
        )
        for w, s in ((len(ids) - 1, len(ids) - 1), (window, stride))
    )
    assert len(cut.losses) > 1
    assert sum(whole.losses) == pytest.approx(sum(cut.losses))
    assert cut.is_carried
    assert sum(cut.counts) == len(ids) - 1


def test_a_score_says_that_the_state_was_carried(tokenizer: Tokenizer):
    rows = [(text,) for text in TEXTS]
    for name, isolate, is_carried in (("lstm", False, True), ("lstm", True, False), ("gpt-tiny", False, False)):
        config = DataConfig(window=7, stride=3, isolate=isolate)
        batches = TASK.rows_as_batches(rows, tokenizer, config)
        found = TASK.negative_log_likelihoods(make(tokenizer, name).eval(), batches, torch.device("cpu"))
        for score in TASK.scores(rows, [], found, config):
            assert ("|state:carried|" in score.signature) == is_carried
            assert "stride:3" in score.signature


def windows_of(tokenizer: Tokenizer, *lengths: int) -> list[TextBatch]:
    """Two texts side by side, in windows that go on where the last ones ended."""
    ids = np.stack([stream(tokenizer, TEXTS)[:20], stream(tokenizer, TEXTS[::-1])[:20]])
    places = np.cumsum([0, *lengths])
    cut = [ids[:, start : end + 1] for start, end in pairwise(places)]
    return [
        replace(make_batch(each, tokenizer, is_isolated=False), goes_on=number > 0) for number, each in enumerate(cut)
    ]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_two_windows_with_a_carried_state_cost_what_one_of_their_length_does(tokenizer: Tokenizer, cell: str):
    model = make(tokenizer, cell, hidden_dim=23).eval()
    (whole,), (first, second) = windows_of(tokenizer, 17), windows_of(tokenizer, 6, 11)
    expected, end = TASK.running_loss(model, whole, None)
    torch.testing.assert_close(expected, TASK.loss(model, whole))
    one, carried = TASK.running_loss(model, first, None)
    two, last = TASK.running_loss(model, second, carried)
    torch.testing.assert_close(one + two, expected)
    torch.testing.assert_close(last, end)
    assert not any(part.requires_grad for part in carried)


def test_gradients_through_a_carried_state_end_where_the_window_begins(tokenizer: Tokenizer):
    model = make(tokenizer, "lstm")
    assert isinstance(model, Recurrent)
    first, second = windows_of(tokenizer, 6, 11)
    _, carried = TASK.running_loss(model, first, None)
    loss, _ = TASK.running_loss(model, second, carried)
    loss.backward()
    ours = gradients(model)
    with torch.no_grad():
        state = model.step(first.tokens, model.start(batch_size=2))[1]
    total = torch.zeros(())
    for token, target in zip(second.tokens.split(1, dim=1), second.targets.T, strict=True):
        scores, state = model.step(token, state)
        total = total - scores[:, 0].log_softmax(-1).gather(1, target[:, None]).sum()
    torch.testing.assert_close(loss, total)
    total.backward()
    torch.testing.assert_close(ours, gradients(model))


def test_the_first_batch_of_an_epoch_goes_on_from_nowhere(tokenizer: Tokenizer):
    model = make(tokenizer, "gru").eval()
    first, second = windows_of(tokenizer, 6, 11)
    _, carried = TASK.running_loss(model, first, None)
    torch.testing.assert_close(TASK.running_loss(model, first, carried)[0], TASK.running_loss(model, first, None)[0])
    assert not torch.isclose(TASK.running_loss(model, second, carried)[0], TASK.running_loss(model, second, None)[0])


def test_two_readings_go_on_from_one_state(tokenizer: Tokenizer):
    """Without dropout the two agree, and the loss is that of one."""
    model = make(tokenizer, "lstm").eval()
    first, second = windows_of(tokenizer, 6, 11)
    _, carried = TASK.running_loss(model, first, None, Objective(consistency=2.0, activation_penalty=0.3))
    torch.testing.assert_close(carried, TASK.running_loss(model, first, None)[1])
    loss, _ = TASK.running_loss(model, second, carried, Objective(consistency=2.0, activation_penalty=0.3))
    torch.testing.assert_close(loss, TASK.running_loss(model, second, carried, Objective(activation_penalty=0.3))[0])


def test_language_is_a_task_that_runs_on_and_translation_is_not():
    assert isinstance(TASK, RunningTask)
    assert not isinstance(find_task("translation"), RunningTask)


def test_penalties_are_mean_squares_of_states_and_of_their_changes():
    """As Merity et al.'s code has them, which takes means over all numbers."""
    batch, time, width = 3, 7, 11
    states = torch.randn(batch, time, width)
    size, change = (state_penalty(states, activation=a, change=c) for a, c in ((2.0, 0.0), (0.0, 3.0)))
    torch.testing.assert_close(size / (batch * time), 2 * states.square().mean())
    changes = (states[:, 1:] - states[:, :-1]).square().mean()
    torch.testing.assert_close(change / (batch * (time - 1)), 3 * changes)
    torch.testing.assert_close(state_penalty(states, activation=2.0, change=3.0), size + change)


@pytest.mark.parametrize("name", ["lstm", "gpt-tiny"])
def test_penalties_are_added_to_the_loss_of_any_model(tokenizer: Tokenizer, name: str):
    model = make(tokenizer, name).eval()
    batch = make_batch(stream(tokenizer, TEXTS)[None], tokenizer, is_isolated=False)
    more = state_penalty(model.states(batch.tokens), activation=0.5, change=0.25)
    assert more > 0
    expected = TASK.loss(model, batch) + more
    torch.testing.assert_close(
        TASK.loss(model, batch, Objective(activation_penalty=0.5, change_penalty=0.25)), expected
    )


def test_scores_say_how_the_text_was_cut(tokenizer: Tokenizer):
    rows = [(text,) for text in TEXTS]
    config = DataConfig(window=7, stride=3, isolate=True)
    batches = TASK.rows_as_batches(rows, tokenizer, config)
    likelihoods = TASK.negative_log_likelihoods(make(tokenizer).eval(), batches, torch.device("cpu"))
    perplexity, bits = TASK.scores(rows, [], likelihoods, config)
    assert "stride:3" in perplexity.signature
    assert "window:7" in perplexity.signature
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert bits.value == pytest.approx(sum(likelihoods.losses) / math.log(2) / num_bytes)


def test_a_language_model_has_no_encoder(tokenizer: Tokenizer):
    shape = RunSettings.read({"model": {"model_dim": 20, "num_heads": 2}}).model
    with pytest.raises(ConfigError, match="a language model is a decoder alone"):
        TASK.build_model(shape, tokenizer)


def test_learned_positions_end_somewhere(tokenizer: Tokenizer):
    model = make(tokenizer, "gpt2-tiny", context_length=5).eval()
    with pytest.raises(DataError, match="the text has 9 tokens, the model reads 4 at most"):
        score_text(model, tokenizer, "drei vier")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("pairs.tsv", "eins\tone\nzwei\ttwo\n", "translation"),
        ("plain.txt", "Once upon a time\nthere was a file.\n", "language"),
        ("tabs.txt", "eins\tone\nzwei\ttwo\n", "translation"),
        ("docs.jsonl", '{"text": "one"}\n{"text": "two"}\n', "language"),
        ("more.jsonl", '{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n', "language"),
        ("pairs.jsonl", '{"de": "eins", "en": "one"}\n', "translation"),
    ],
)
def test_the_task_is_read_off_the_data(tmp_path: Path, name: str, content: str, expected: str):
    path = tmp_path / name
    path.write_text(content)
    assert guess_task(DataConfig(train=[str(path)])) == expected


@pytest.mark.slow
def test_the_task_of_rows_is_read_off_their_width():
    assert guess_task(DataConfig(), [("eins", "one")]) == "translation"
    assert guess_task(DataConfig(), [("eins",)]) == "language"
    assert guess_task(DataConfig(train=["dates"])) == "translation"


def test_what_cannot_be_read_at_all_is_told(tmp_path: Path):
    with pytest.raises(DataError, match="there is no file"):
        guess_task(DataConfig(train=[str(tmp_path / "none.txt")]))
    assert find_task("language").name == "language"
