"""Language modelling: what is scored, from what, and that packing changes nothing."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regard.data.config import DataConfig
from regard.errors import ConfigError, DataError
from regard.models.families import AnyModel, make_model
from regard.models.presets import preset, without_encoder
from regard.nn.losses import IGNORED
from regard.tasks import find_task, guess_task
from regard.tasks.language import Language, make_batch, score_text, stream_as_batches
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


def test_a_recurrent_model_keeps_its_state_from_window_to_window(tokenizer: Tokenizer):
    model, ids = make(tokenizer, "lstm").eval(), stream(tokenizer, TEXTS)
    whole, cut = (
        TASK.negative_log_likelihoods(
            model, stream_as_batches(ids, tokenizer, window=w, stride=w, is_isolated=False), torch.device("cpu")
        )
        for w in (len(ids) - 1, 5)
    )
    assert len(cut.losses) > 1
    assert sum(whole.losses) == pytest.approx(sum(cut.losses))


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


def test_the_task_of_rows_is_read_off_their_width():
    assert guess_task(DataConfig(), [("eins", "one")]) == "translation"
    assert guess_task(DataConfig(), [("eins",)]) == "language"
    assert guess_task(DataConfig(train=["dates"])) == "translation"


def test_what_cannot_be_read_at_all_is_told(tmp_path: Path):
    with pytest.raises(DataError, match="there is no file"):
        guess_task(DataConfig(train=[str(tmp_path / "none.txt")]))
    assert find_task("language").name == "language"
