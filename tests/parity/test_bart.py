"""Our encoder-decoder against transformers' BART and Marian, on random weights."""

from typing import Any

import pytest
import torch
from tests.parity.encoder_decoders import assert_same_outputs, assert_same_steps
from torch import nn

from regard.interop.hf.bart import BART
from regard.interop.hf.weights import foreign_weights
from regard.training.checkpoints import weights_of

transformers = pytest.importorskip("transformers")

VOCAB, POSITIONS = 31, 13
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 22, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "max_position_embeddings": POSITIONS, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}  # fmt: skip
MODELS = {
    "bart": ("BartConfig", "BartForConditionalGeneration", {}),
    "bart-scaled": ("BartConfig", "BartForConditionalGeneration", {"scale_embedding": True}),
    "marian": ("MarianConfig", "MarianMTModel", {"scale_embedding": True, "activation_function": "swish"}),
}


@pytest.fixture(params=MODELS)
def pair(request, randomized, ours_from):
    """A foreign model and ours."""
    kind, family, more = MODELS[request.param]
    theirs = getattr(transformers, family)(getattr(transformers, kind)(**{**SIZES, **more}))
    fixed = {name: tensor.double() for name, tensor in theirs.state_dict().items() if "embed_positions" in name}
    theirs = randomized(theirs)
    nn.init.normal_(theirs.final_logits_bias)
    if request.param == "marian":  # its sinusoids are not learned
        theirs.load_state_dict(fixed, strict=False)
    return theirs, ours_from(theirs)


def test_same_states_and_scores(pair):
    source, target = torch.randint(3, VOCAB, (5, 7)), torch.randint(3, VOCAB, (5, 11))
    assert_same_outputs(*pair, source, target, torch.tensor([7, 3, 5, 7, 1]))


def test_steps_give_the_same_scores_as_the_whole(pair):
    source, target = torch.randint(3, VOCAB, (5, 7)), torch.randint(3, VOCAB, (5, 11))
    assert_same_steps(*pair, source, target)


@torch.no_grad()
def test_marian_finds_its_positions_where_the_file_has_none(ours_from):
    config = transformers.MarianConfig(**SIZES)
    theirs = transformers.MarianMTModel(config)
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "embed_positions" not in name}
    theirs.state_dict = lambda: state
    ours = ours_from(theirs)
    # Theirs are made in float32.
    expected = theirs.model.encoder.embed_positions.weight.float()
    torch.testing.assert_close(ours.encoder.positions.table.weight.float(), expected)


def test_weights_are_converted_back(randomized, ours_from):
    theirs = randomized(transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES)))
    back = foreign_weights(BART.weight_names(theirs.config.to_dict()), weights_of(ours_from(theirs)))
    expected = theirs.state_dict()
    assert expected.keys() - back.keys() == {
        "lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    }  # fmt: skip
    for name, tensor in back.items():
        skipped = 2 if "embed_positions" in name else 0
        assert tensor.shape == expected[name].shape
        assert torch.equal(tensor[skipped:], expected[name][skipped:]), name
