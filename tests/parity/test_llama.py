"""Our decoder against transformers' Llama, Mistral, Qwen 2 and Qwen 3, on random weights and tiny sizes.

Transformers computes the norms and the angles of these models in float32,
whatever their weights are. PyTorch's norm and angles in float64 stand in for
them, so that the rest can be compared to ten digits; the angles themselves are
compared by themselves, in float32.
"""

from typing import Any

import pytest
import torch
from torch import nn

from regard.interop.hf.llama import LLAMA
from regard.interop.hf.weights import foreign_weights
from regard.nn.positions import Rotary
from regard.training.checkpoints import weights_of

transformers = pytest.importorskip("transformers")

VOCAB = 31
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 29, "max_position_embeddings": 17,
}  # fmt: skip
STRETCHED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 500.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 500.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped": ("Llama", {}),
    "one head for each": ("Llama", {"num_key_value_heads": 6}),
    "tied": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "wide heads": ("Llama", {"head_dim": 10}),
    "another base": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 97.0}}),
    "stretched": ("Llama", {"rope_parameters": STRETCHED}),
    "stretched linearly": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with windows": ("Mistral", {"sliding_window": 5}),
    "qwen2 with windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3 with windows": (
        "Qwen3",
        {
            "head_dim": 10,
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 10}),
}


class ExactAngles(nn.Module):
    """Cosines and sines by the frequencies of our own module, in float64."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rotation = self.rotary(position_ids, position_ids).rotation
        return torch.cat([rotation.cosine] * 2, dim=-1), torch.cat([rotation.sine] * 2, dim=-1)


def exact(theirs: nn.Module, rotary: Rotary) -> nn.Module:
    for name, module in list(theirs.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            norm.weight = module.weight
            theirs.set_submodule(name, norm)
    theirs.model.rotary_emb = ExactAngles(rotary)
    return theirs


@pytest.fixture(params=MODELS, ids=lambda name: name.replace(" ", "-"))
def pair(request, randomized, ours_from):
    """A foreign model and ours."""
    family, more = MODELS[request.param]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **more})
    theirs = randomized(getattr(transformers, f"{family}ForCausalLM")(config))
    ours = ours_from(theirs)
    return exact(theirs, ours.decoder.positions), ours


@torch.no_grad()
def test_same_scores(pair):
    theirs, ours = pair
    tokens = torch.randint(VOCAB, (5, 13))

    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


@torch.no_grad()
def test_steps_give_the_same_scores_as_the_whole(pair):
    theirs, ours = pair
    tokens = torch.randint(VOCAB, (5, 11))
    expected, state = theirs(tokens).logits, ours.initial_state(batch_size=5)
    first, state = ours.step(tokens[:, :7], state)
    rest = []
    for place in range(7, 11):
        scores, state = ours.step(tokens[:, place : place + 1], state)
        rest.append(scores)

    torch.testing.assert_close(torch.cat([first, *rest], dim=1), expected)


def test_weights_are_converted_back(pair):
    theirs, ours = pair
    back = foreign_weights(LLAMA.weight_names(theirs.config.to_dict()), weights_of(ours))
    expected = theirs.state_dict()
    if ours.config.tie_embeddings:
        del expected["lm_head.weight"]
    assert back.keys() == expected.keys()
    for name, tensor in back.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("more", [{}, {"factor": 32.0}, {"original_max_position_embeddings": 8192}])
@pytest.mark.parametrize("rope_type", ["default", "linear", "llama3", "yarn"])
def test_angles_are_those_of_transformers_in_float32(rope_type: str, more: dict):
    scalings = {"llama3": {**STRETCHED, **more}, "yarn": {**YARN, **more}, "linear": {"factor": 8.0, **more}}
    scaling = {"rope_theta": 500.0, **scalings.get(rope_type, {}), "rope_type": rope_type}
    scaling |= {} if rope_type in ("llama3", "yarn") else {"original_max_position_embeddings": None}
    torch.set_default_dtype(torch.float32)
    config = transformers.LlamaConfig(**{**SIZES, "head_dim": 32, "rope_parameters": scaling})
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    shape = LLAMA.read_config({**config.to_dict()})
    ours = Rotary(
        shape.head_dim,
        base=shape.position_base,
        stretch=shape.position_stretch,
        stretch_from=shape.position_stretch_from,
        stretch_by=shape.position_stretch_by or "llama3",
    )
    places = torch.arange(101)
    cosine, sine = theirs(torch.zeros(1), places[None])
    rotation = ours(places, places).rotation

    # Angles reach to 100, of which float32 has seven digits.
    torch.testing.assert_close(rotation.cosine, cosine[0, :, :16], rtol=0.0, atol=2e-5)
    torch.testing.assert_close(rotation.sine, sine[0, :, :16], rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("multiple", [2, 7])
def test_a_larger_base_is_that_of_transformers_at_a_longer_input(multiple: int):
    """With a factor of 1, the base of their dynamic form is stretched by the length over that of the context."""
    torch.set_default_dtype(torch.float32)
    scaling = {"rope_type": "dynamic", "factor": 1.0, "rope_theta": 500.0}
    config = transformers.LlamaConfig(**{**SIZES, "head_dim": 32, "rope_parameters": scaling})
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["dynamic"]
    frequencies, _ = compute(config, torch.device("cpu"), seq_len=multiple * SIZES["max_position_embeddings"])
    places = torch.arange(101)
    rotation = Rotary(32, base=500.0, stretch=float(multiple), stretch_by="ntk")(places, places).rotation
    torch.testing.assert_close(rotation.cosine, (places[:, None] * frequencies).cos(), rtol=0.0, atol=2e-5)
