"""Filling blanks: how they are encoded, and which tokens fill them."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.tiny import BODIES

from regard.errors import DataError
from regard.nn.inference import prepare_for_inference
from regard.tasks.masked_language_modeling import MaskedLanguageModel
from regard.tasks.masked_language_modeling.task import FillingPredictor, filled_samples, with_mask
from regard.text.tokenizer import Tokenizer, TokenizerKind, train_tokenizer

SENTENCES = ["the cat sat on the mat.", "the dog sat on the log.", "a cat and a dog sat (on it)."]
WORDS = ["the", "cat", "sat", "on", "mat", "dog", "log", "and", "a", "bird", "tree", "green", "water", "stone", "when"]


def tokenizer_of(kind: TokenizerKind) -> Tokenizer:
    rng = np.random.default_rng(0)
    texts = [*SENTENCES * 5, *(" ".join(rng.choice(WORDS, size=7)) + "." for _ in range(200))]
    return with_mask(train_tokenizer(texts, kind, {"bpe": 400, "unigram": 60}.get(kind, 300)))


def model_for(tokenizer: Tokenizer, **changes: Any) -> MaskedLanguageModel:
    """A model whose weights are all random, biases too."""
    model = MaskedLanguageModel(BODIES["transformer"].changed(**changes), tokenizer.vocab_size)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.5)
    return model.eval()


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
def test_the_mask_is_appended_to_the_vocabulary_and_encodes_no_text(kind: TokenizerKind):
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


@pytest.mark.parametrize("blank", ["[MASK]", "<mask>", "___", "_______"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words", "wordpunct"])
def test_a_blank_is_encoded_as_the_mask_in_place_of_a_token(kind: TokenizerKind, blank: str):
    tokenizer = tokenizer_of(kind)
    fill = FillingPredictor(model_for(tokenizer), tokenizer)
    text = SENTENCES[0]
    for missing in {"characters": "c", "bytes": "c", "words": ["on"]}.get(kind, ["on", "mat"]):
        expected = tokenizer.encode([text])[0]
        place = next(place for place, piece in enumerate(tokenizer.pieces(expected)) if piece.strip() == missing)
        assert tokenizer.mask is not None
        expected[place] = tokenizer.mask
        assert fill._encoded(text.replace(missing, blank, 1)) == [tokenizer.start, *expected, tokenizer.end]


def test_blanks_are_filled_with_the_most_probable_tokens():
    tokenizer = tokenizer_of("bpe")
    model = model_for(tokenizer)
    fill = FillingPredictor(model, tokenizer)
    (found,) = fill(["The cat ____ on the [MASK]."])
    assert found.probabilities is not None
    assert list(found.probabilities.values()) == sorted(found.probabilities.values(), reverse=True)
    assert len(found.probabilities) == 5
    assert sum(found.probabilities.values()) < 1
    ids = fill._encoded(found.input)
    probabilities = model(torch.tensor([ids]))[0].detach().softmax(dim=-1)
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask]
    special = {*tokenizer.specials, *tokenizer.never_generated}
    ordinary = [token for token in range(tokenizer.vocab_size) if token not in special]
    best = [ordinary[int(probabilities[place, ordinary].argmax())] for place in places]
    words = [piece.strip() or piece for piece in tokenizer.pieces(best)]
    assert found.output == "The cat {} on the {}.".format(*words)
    assert next(iter(found.probabilities.values())) >= float(probabilities[places[0], best[0]]) - 1e-9


def test_special_tokens_do_not_fill_a_blank():
    tokenizer = tokenizer_of("words")
    model = model_for(tokenizer)
    with torch.no_grad():
        model.head.output.bias[list(tokenizer.never_generated)] = 100.0
    (found,) = FillingPredictor(model, tokenizer)(["the ____ sat"])
    assert found.probabilities is not None
    assert not any("<" in word for word in found.probabilities)


def test_a_model_prepared_for_inference_predicts_the_same():
    torch.set_default_dtype(torch.float32)
    tokenizer = tokenizer_of("bpe")
    model = model_for(tokenizer)
    plain, prepared = (
        FillingPredictor(each, tokenizer)(["the cat ____ on"])[0]
        for each in (model, prepare_for_inference(model, "float32"))
    )
    assert plain.output == prepared.output
    assert plain.probabilities == pytest.approx(prepared.probabilities, rel=1e-4)


def test_texts_that_cannot_be_filled_are_errors():
    tokenizer = tokenizer_of("words")
    with pytest.raises(DataError, match=r"\[MASK\] or ____.*'the cat __'"):
        FillingPredictor(model_for(tokenizer), tokenizer)(["the cat __"])
    short = FillingPredictor(model_for(tokenizer, positions="learned", context_length=5), tokenizer)
    with pytest.raises(DataError, match=r"4 tokens.* 3$"):
        short(["the cat ____ on"])
    assert short(["the cat ____"])[0].output.startswith("the cat ")


def test_samples_leave_out_one_word():
    tokenizer = tokenizer_of("words")
    fill = FillingPredictor(model_for(tokenizer), tokenizer)
    found = filled_samples(fill, tokenizer, SENTENCES * 7)
    assert len(found) > 3
    for each in found:
        before, _, after = each["source"].partition("____")
        assert each["target"].startswith(before)
        assert each["target"].endswith(after)
        assert each["right"] == (each["prediction"] == each["target"])
    assert filled_samples(fill, tokenizer, []) == []
