"""Attention maps of models: the weights are those of the forward pass, by kind, and for the tokens that were read."""

import numpy as np
import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.explanation import record_attention
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.text.tokenizer import Tokenizer, train_tokenizer

LAYERS, HEADS = 2, 3
TEXT, TARGET = "abcab", "cba"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([TEXT], "characters", 20)


def transformer(tokenizer: Tokenizer, **changes: int) -> Transformer:
    shape = {"num_layers": LAYERS, "num_heads": HEADS, "model_dim": 12, "feedforward_dim": 17, **changes}
    return Transformer(TransformerConfig.read(shape), tokenizer.vocab_size)


def stacked(weights: dict[str, torch.Tensor], *names: str) -> np.ndarray:
    return np.stack([weights[name][0].float().numpy() for name in names])


def test_an_encoder_decoder_has_three_kinds_of_maps(tokenizer: Tokenizer):
    model = transformer(tokenizer)
    maps = regard.attention_maps(model, TEXT, tokenizer=tokenizer, target=TARGET)
    assert maps.source_tokens == (*TEXT, "</s>")
    assert maps.target_tokens == (*TARGET, "</s>")
    assert maps.target_inputs == ("<s>", *TARGET)
    source = [*tokenizer.encode([TEXT])[0], tokenizer.end]
    inputs = [tokenizer.start, *tokenizer.encode([TARGET])[0]]
    with torch.inference_mode(), record_attention(model) as weights:
        model(torch.tensor([inputs]), torch.tensor([source]))
    places = {"encoder": "encoder.blocks.{}.attention", "decoder": "decoder.blocks.{}.attention"}
    places["cross"] = "decoder.blocks.{}.cross_attention"
    for kind, name in places.items():
        expected = stacked(weights, *(name.format(layer) for layer in range(LAYERS)))
        assert expected.shape[:2] == (LAYERS, HEADS)
        np.testing.assert_array_equal(maps.weights[kind], expected)


def test_a_decoder_reads_no_later_token_and_an_encoder_reads_all(tokenizer: Tokenizer):
    decoder, encoder = transformer(tokenizer, encoder_layers=0), transformer(tokenizer, decoder_layers=0)
    causal = regard.attention_maps(decoder, TEXT, tokenizer=tokenizer)
    assert (causal.kinds, causal.prediction) == (("decoder",), TEXT)
    assert (np.triu(causal.weights["decoder"], k=1) == 0.0).all()
    full = regard.attention_maps(encoder, TEXT, tokenizer=tokenizer)
    assert (full.kinds, full.source_tokens) == (("encoder",), ("<s>", *TEXT, "</s>"))
    assert (full.weights["encoder"] > 0.0).all()
    for maps in (causal, full):
        (kind,) = maps.kinds
        np.testing.assert_allclose(maps.weights[kind].sum(axis=-1), 1.0, rtol=1e-5)


def test_what_a_model_needs_is_asked_for(tokenizer: Tokenizer):
    both, decoder = transformer(tokenizer), transformer(tokenizer, encoder_layers=0)
    with pytest.raises(ConfigError, match="need its tokenizer"):
        regard.attention_maps(both, TEXT)
    with pytest.raises(ConfigError, match="need a target"):
        regard.attention_maps(both, TEXT, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="only an encoder-decoder has a target"):
        regard.attention_maps(decoder, TEXT, tokenizer=tokenizer, target=TARGET)
    with pytest.raises(ConfigError, match="no options of generation"):
        regard.attention_maps(decoder, TEXT, tokenizer=tokenizer, beam_size=4)
    plain = Recurrent(RecurrentConfig(model_dim=8, attention="none"), tokenizer.vocab_size)
    with pytest.raises(ConfigError, match="no attention layers: Recurrent"):
        regard.attention_maps(plain, TEXT, tokenizer=tokenizer, target=TARGET)
