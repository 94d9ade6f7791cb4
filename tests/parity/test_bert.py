"""Our encoders against transformers' BERT, RoBERTa and DistilBERT, on random weights and tiny sizes."""

from typing import Any

import pytest
import torch
from torch import nn

from regard.interop.hf.architectures import ARCHITECTURES
from regard.interop.hf.weights import read_weight
from regard.models.heads import MaskedHead

transformers = pytest.importorskip("transformers")

VOCAB, MODEL, HEADS, WIDE, POSITIONS = 31, 22, 2, 29, 13
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": MODEL, "num_hidden_layers": 3, "num_attention_heads": HEADS,
    "intermediate_size": WIDE, "max_position_embeddings": POSITIONS,
}  # fmt: skip
LENGTHS = torch.tensor([7, 3, 5, 7, 1])
MASK = (torch.arange(7) < LENGTHS[:, None]).long()


def tokens(first: int = 2) -> torch.Tensor:
    """Rows of seven tokens, none of which pads."""
    return torch.randint(first, VOCAB, (5, 7))


def make(name: str) -> nn.Module:
    match name:
        case "bert":
            return transformers.BertModel(transformers.BertConfig(**SIZES, type_vocab_size=3))
        case "bert-tanh":
            return transformers.BertModel(transformers.BertConfig(**SIZES, hidden_act="gelu_new"))
        case "roberta":
            return transformers.RobertaModel(transformers.RobertaConfig(**SIZES, type_vocab_size=1))
        case "roberta-padding-0":
            return transformers.RobertaModel(transformers.RobertaConfig(**SIZES, pad_token_id=0))
        case _:
            return transformers.DistilBertModel(
                transformers.DistilBertConfig(
                    vocab_size=VOCAB, dim=MODEL, n_layers=3, n_heads=HEADS, hidden_dim=WIDE,
                    max_position_embeddings=POSITIONS,
                )
            )  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "bert-tanh", "roberta", "roberta-padding-0", "distilbert"])
@torch.no_grad()
def test_same_states(randomized, ours_from, name: str):
    theirs = randomized(make(name))
    ours = ours_from(theirs)
    source = tokens()

    torch.testing.assert_close(ours.encode(source).hidden_states, theirs(source).last_hidden_state)

    # RoBERTa finds out where padding is by its token, and gives it another position.
    padded = source.masked_fill(MASK == 0, theirs.config.pad_token_id)
    expected = theirs(padded, attention_mask=MASK).last_hidden_state
    torch.testing.assert_close(ours.encode(padded, LENGTHS).hidden_states[MASK == 1], expected[MASK == 1])


@torch.no_grad()
def test_segments_are_those_of_bert(randomized, ours_from):
    theirs = randomized(make("bert"))
    ours = ours_from(theirs)
    source, segments = tokens(), torch.randint(3, (5, 7))

    expected = theirs(source, attention_mask=MASK, token_type_ids=segments).last_hidden_state

    found = ours.encode(source, LENGTHS, segments=segments).hidden_states
    torch.testing.assert_close(found[MASK == 1], expected[MASK == 1])
    assert not torch.allclose(found, ours.encode(source, LENGTHS).hidden_states)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM"])
@torch.no_grad()
def test_same_scores_for_a_hidden_token(randomized, ours_from, name: str):
    body = make(name.removesuffix("ForMaskedLM").lower())
    theirs = randomized(getattr(transformers, name)(body.config))
    ours, head_names = ours_from(theirs), ARCHITECTURES[name].head_names
    assert head_names is not None
    head = MaskedHead(ours.embedding, norm_epsilon=ours.config.norm_epsilon)
    for part, weight in head_names(theirs.config.to_dict()).items():
        own = head.get_parameter(part)
        own.copy_(read_weight(weight, tuple(own.shape), theirs.state_dict()))
    source = tokens()

    torch.testing.assert_close(head(ours.encode(source).hidden_states), theirs(source).logits)
