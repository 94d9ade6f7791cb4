"""Beam search of language models against a search through all continuations, for each family of decoders."""

from itertools import product
from typing import Any

import pytest
import torch

from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.models.family import build_model, read_model_config
from regard.models.ngram_mixture import NgramMixture
from regard.nn.ngrams import NgramTables, estimate_kneser_ney
from regard.tasks.language_modeling import LanguageModelingPredictor
from regard.text.tokenizer import train_tokenizer

VOCAB, END, LIMIT = 5, 2, 3
PROMPT = [1, 4, 3]
SMALL = {"num_layers": 1, "model_dim": 10, "dropout": 0.0, "encoder_layers": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "transformer": {**SMALL, "num_heads": 1, "feedforward_dim": 11, "positions": "rotary"},
    "recurrent": {**SMALL, "family": "recurrent", "bidirectional": False},
    "convolutional": {**SMALL, "family": "convolutional"},
}


def make_model(name: str) -> Any:
    model = build_model(read_model_config(FAMILIES[name.removesuffix("-ngrams")]), VOCAB)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    if name.endswith("-ngrams"):
        tables = NgramTables(VOCAB, 2)
        tables.fill(estimate_kneser_ney(torch.randint(VOCAB, (200,)).numpy(), vocab_size=VOCAB, order=2))
        model = NgramMixture(model, tables, start=1, end=END, isolates=False)
    return model.eval()


@torch.no_grad()
def best_of_all(model: Any, alpha: float) -> tuple[list[int], float]:
    """The best continuation that ends, or has LIMIT tokens, by trying each."""
    best: tuple[list[int], float] = ([], -torch.inf)
    others = [token for token in range(VOCAB) if token != END]
    for length in range(1, LIMIT + 1):
        lasts = [END] if length < LIMIT else range(VOCAB)
        for tokens in ([*some, last] for some in product(others, repeat=length - 1) for last in lasts):
            logits, _ = model.step(torch.tensor([[*PROMPT, *tokens[:-1]]]), model.initial_state(batch_size=1))
            scores = logits[0, len(PROMPT) - 1 :].log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])
            score = float(scores.sum()) / length**alpha
            if score > best[1]:
                best = ([token for token in tokens if token != END], score)
    return best


@pytest.mark.parametrize("name", [*FAMILIES, "transformer-ngrams"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@torch.no_grad()
def test_a_beam_of_every_prefix_finds_the_best_continuation(name: str, alpha: float):
    model = make_model(name)
    config = GenerationConfig(beam_size=VOCAB**LIMIT, length_penalty=alpha, stopping="exact")
    _, state = model.step(torch.tensor([PROMPT[:-1]]), model.initial_state(batch_size=1))
    search = BeamSearch(model, end=[END], config=config, truncates=True)
    found = search.search_by_selection(state, torch.tensor([PROMPT[-1:]]), [LIMIT])[0][0]
    tokens, score = best_of_all(model, alpha)
    assert found.tokens == tokens
    assert found.score == pytest.approx(score, abs=1e-10)


def test_several_tokens_may_end_a_hypothesis():
    model = make_model("transformer")
    config = GenerationConfig(beam_size=4)
    search = BeamSearch(model, end=[0, END], config=config)
    found = search.search_by_selection(model.initial_state(batch_size=1), torch.tensor([[1]]), [9])[0]
    assert all(token not in (0, END) for each in found for token in each.tokens)


def test_a_predictor_with_a_beam_continues_a_prompt_and_reports_its_score():
    tokenizer = train_tokenizer(["the cat sees the sea"] * 3, kind="words", vocab_size=20)
    model = build_model(read_model_config(FAMILIES["transformer"]), tokenizer.vocab_size).eval()
    predictor = LanguageModelingPredictor(model, tokenizer, GenerationConfig(beam_size=3, max_tokens=4))
    (found,) = predictor(["the cat"])
    assert found.score is not None
    assert 0 < len(found.output.split()) <= 4
    assert "".join(predictor.stream("the cat")).split() == found.output.split()
