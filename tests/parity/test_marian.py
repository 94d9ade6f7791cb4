"""Our encoder-decoder against transformers' Marian, on random weights and tiny sizes."""

import pytest
import torch
from torch import nn

from regard.models.transformer import Transformer, TransformerConfig

transformers = pytest.importorskip("transformers")

VOCAB, MODEL, HEADS, WIDE, POSITIONS = 31, 22, 2, 29, 13
NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "self_attn_layer_norm": "attention_norm",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_attention_norm",
    "fc1": "feedforward.input",
    "fc2": "feedforward.output",
    "final_layer_norm": "feedforward_norm",
}


def ours_from(theirs: nn.Module) -> dict[str, torch.Tensor]:
    weights = {"embedding.weight": theirs.model.shared.weight, "output.weight": theirs.model.shared.weight}
    for side in ("encoder", "decoder"):
        stack = getattr(theirs.model, side)
        # Marian's sinusoids are in another order than the paper's: they are copied as a table.
        weights[f"{side}.positions.table.weight"] = stack.embed_positions.weight
        for name, tensor in stack.layers.state_dict().items():
            layer, rest = name.split(".", 1)
            part, kind = rest.rsplit(".", 1)
            weights[f"{side}.blocks.{layer}.{NAMES[part]}.{kind}"] = tensor
    return weights


@torch.no_grad()
def test_same_scores_as_marian():
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=MODEL, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=WIDE, decoder_ffn_dim=WIDE,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, activation_function="gelu", dropout=0.0,
        max_position_embeddings=POSITIONS, scale_embedding=True, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, forced_eos_token_id=1,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).double().eval()
    for name, parameter in theirs.named_parameters():  # initial biases are zero, and zeros hide mistakes
        if "embed_positions" not in name:
            nn.init.normal_(parameter, std=0.3)
    ours = Transformer(
        TransformerConfig(
            encoder_layers=2,
            decoder_layers=3,
            model_dim=MODEL,
            num_heads=HEADS,
            feedforward_dim=WIDE,
            activation="gelu",
            positions="learned",
            context_length=POSITIONS,
            dropout=0.0,
        ),
        VOCAB,
    ).eval()
    ours.load_state_dict(ours_from(theirs))
    source, target = torch.randint(2, VOCAB, (5, 7)), torch.randint(2, VOCAB, (5, 11))
    lengths = torch.tensor([7, 3, 5, 7, 1])
    mask = (torch.arange(7) < lengths[:, None]).long()

    expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits

    torch.testing.assert_close(ours(target, source, lengths), expected)
