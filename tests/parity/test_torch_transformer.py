"""Our encoder-decoder against `torch.nn.Transformer`, on random weights."""

import pytest
import torch
from torch import nn

from regard.models.transformer import TransformerConfig
from regard.models.transformer.model import TransformerStack

BATCH, SOURCE, TARGET, MODEL, HEADS, WIDE = 3, 7, 5, 22, 2, 29


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    for index, name in enumerate(("query", "key", "value")):
        rows = slice(index * MODEL, (index + 1) * MODEL)
        getattr(ours, name).weight.copy_(theirs.in_proj_weight[rows])
        getattr(ours, name).bias.copy_(theirs.in_proj_bias[rows])
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_stack(ours: TransformerStack, theirs: nn.Module) -> None:
    for mine, layer in zip(ours.blocks, theirs.layers, strict=True):
        norms = [layer.norm1, layer.norm2]
        copy_attention(mine.attention, layer.self_attn)
        if mine.cross_attention is not None:
            copy_attention(mine.cross_attention, layer.multihead_attn)
            norms.append(layer.norm3)
        mine.feedforward.input.load_state_dict(layer.linear1.state_dict())
        mine.feedforward.output.load_state_dict(layer.linear2.state_dict())
        own = [n for n in (mine.attention_norm, mine.cross_attention_norm, mine.feedforward_norm) if n is not None]
        for norm, other in zip(own, norms, strict=True):
            norm.load_state_dict(other.state_dict())
    if ours.final_norm is not None:
        ours.final_norm.load_state_dict(theirs.norm.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("block", ["pre-norm", "post-norm"])
@torch.no_grad()
def test_same_states_as_torch_nn_transformer(block: str):
    theirs = nn.Transformer(
        MODEL, HEADS, 2, 3, WIDE, dropout=0.0, batch_first=True, norm_first=block == "pre-norm"
    ).eval()
    if block == "post-norm":  # the paper has no norm after the last block; torch adds one
        theirs.encoder.norm = theirs.decoder.norm = None
    for parameter in theirs.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    config = TransformerConfig(
        model_dim=MODEL, num_heads=HEADS, feedforward_dim=WIDE, dropout=0.0, block=block, positions="none"
    )
    encoder = TransformerStack(config, 2).eval()
    decoder = TransformerStack(config, 3, is_causal=True, has_cross_attention=True).eval()
    copy_stack(encoder, theirs.encoder)
    copy_stack(decoder, theirs.decoder)
    source, target = torch.randn(BATCH, SOURCE, MODEL), torch.randn(BATCH, TARGET, MODEL)
    mask = torch.arange(SOURCE) < torch.tensor([7, 3, 5])[:, None]

    memory = encoder(source, mask[:, None, None])
    cross_kvs = [b.project_memory(memory, mask[:, None, None]) for b in decoder.blocks]
    ours = decoder(target, cross_kvs=cross_kvs)

    future = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(diagonal=1)
    expected_memory = theirs.encoder(source, src_key_padding_mask=~mask)
    expected = theirs.decoder(target, expected_memory, tgt_mask=future, memory_key_padding_mask=~mask)
    torch.testing.assert_close(memory[mask], expected_memory[mask])
    torch.testing.assert_close(ours, expected)
