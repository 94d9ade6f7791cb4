"""Our encoder-decoder against transformers' T5, on random weights and tiny sizes.

Transformers computes the norms of T5 in float32, whatever its weights are:
PyTorch's norm stands in for them.
"""

from typing import Any

import pytest
import torch
from tests.parity.encoder_decoders import assert_same_outputs, assert_same_steps
from torch import nn

from regard.interop.hf.t5 import T5
from regard.interop.hf.weights import foreign_weights
from regard.nn.positions import RelativeBias
from regard.training.checkpoints import weights_of

transformers = pytest.importorskip("transformers")

VOCAB = 31
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 22, "d_kv": 7, "d_ff": 29, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3,
    "relative_attention_num_buckets": 6, "relative_attention_max_distance": 11, "decoder_start_token_id": 0,
}  # fmt: skip
VERSIONS = {
    "1.0": {},
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated by silu": {"feed_forward_proj": "gated-silu"},
    "as wide as the model": {"d_kv": 11, "num_heads": 2},
}


@pytest.fixture(params=VERSIONS, ids=lambda name: name.replace(" ", "-"))
def pair(request, randomized, ours_from):
    """A foreign model and ours."""
    config = transformers.T5Config(**{**SIZES, **VERSIONS[request.param]})
    theirs = randomized(transformers.T5ForConditionalGeneration(config))
    for name, module in list(theirs.named_modules()):
        if type(module).__name__ == "T5LayerNorm":
            norm = nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            norm.weight = module.weight
            theirs.set_submodule(name, norm)
    return theirs, ours_from(theirs)


def test_same_states_and_scores(pair):
    source, target = torch.randint(1, VOCAB, (5, 17)), torch.randint(1, VOCAB, (5, 13))
    assert_same_outputs(*pair, source, target, torch.tensor([17, 3, 5, 16, 1]))


def test_steps_give_the_same_scores_as_the_whole(pair):
    source, target = torch.randint(1, VOCAB, (5, 7)), torch.randint(1, VOCAB, (5, 11))
    assert_same_steps(*pair, source, target)


def test_weights_are_converted_back(pair):
    theirs, ours = pair
    back = foreign_weights(T5.weight_names(theirs.config.to_dict()), weights_of(ours))
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    expected = {name: tensor for name, tensor in theirs.state_dict().items() if name not in copies}
    assert back.keys() == expected.keys()
    for name, tensor in back.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (6, 11), (10, 29)])
def test_distances_fall_into_the_same_buckets(is_causal: bool, num_buckets: int, max_distance: int):
    torch.set_default_dtype(torch.float32)  # as models are used: some distances lie on the edge of a bucket
    offsets = torch.arange(-300, 301)[None]
    ours = RelativeBias(2, is_causal=is_causal, num_buckets=num_buckets, max_distance=max_distance)

    expected = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(
        offsets, bidirectional=not is_causal, num_buckets=num_buckets, max_distance=max_distance
    )

    assert torch.equal(ours.bucket(offsets), expected)
