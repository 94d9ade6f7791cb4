"""Blocks against their formulas, and against those of `torch.nn`."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import Lookup, MultiHeadAttention
from regard.nn.blocks import Block, BlockOrder
from regard.nn.feedforward import FeedForward
from regard.nn.kv_cache import CrossAttentionKV, KVCache
from regard.nn.masks import padding_mask
from regard.nn.norms import Norm, make_norm
from regard.nn.similarity import DotProduct

BATCH, TIME, SOURCE, HEADS, HEAD, WIDE = 3, 5, 7, 2, 11, 29
MODEL = HEADS * HEAD
MASK = padding_mask(torch.tensor([7, 2, 5]), SOURCE)
ORDERS: tuple[BlockOrder, ...] = get_args(BlockOrder)


def make_block(
    order: BlockOrder,
    *,
    norm: Norm = "layer",
    has_residual: bool = True,
    has_feedforward: bool = True,
    has_cross_attention: bool = False,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Block:
    def causal(head_dim: int, num_heads: int) -> Lookup:
        return Lookup(DotProduct(head_dim**-0.5), is_causal=True)

    block = Block(
        MultiHeadAttention(MODEL, HEADS, make_lookup=causal if is_causal else None),
        FeedForward(MODEL, WIDE) if has_feedforward else None,
        cross_attention=MultiHeadAttention(MODEL, HEADS) if has_cross_attention else None,
        make_norm=partial(make_norm, norm, MODEL),
        order=order,
        has_residual=has_residual,
        dropout=dropout,
    )
    for parameter in block.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    return block


def written_out(block: Block, x: Tensor, kv: CrossAttentionKV | None) -> Tensor:
    def attention(y: Tensor) -> Tensor:
        return block.attention(y)

    def cross_attention(y: Tensor) -> Tensor:
        assert block.cross_attention is not None
        assert kv is not None
        return block.cross_attention.cross_attend(y, kv)

    layers: dict[str, Callable[[Tensor], Tensor]] = {"attention": attention}
    if block.cross_attention is not None:
        layers["cross_attention"] = cross_attention
    if block.feedforward is not None:
        layers["feedforward"] = block.feedforward

    if block.order == "parallel":
        n = block.norm(x)
        if block.has_residual:
            return x + sum(f(n) for f in layers.values())
        assert block.gains is not None
        return sum(block.gains[i] * f(n) for i, f in enumerate(layers.values()))
    for name, f in layers.items():
        norm = getattr(block, f"{name}_norm")
        match block.order, block.has_residual:
            case "pre-norm", True:
                x = x + f(norm(x))
            case "pre-norm", False:
                x = f(norm(x))
            case "post-norm", True:
                x = norm(x + f(x))
            case "post-norm", False:
                x = norm(f(x))
    return x


@pytest.mark.parametrize("has_cross_attention", [False, True])
@pytest.mark.parametrize("has_feedforward", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("order", ORDERS)
def test_each_order_follows_its_formula(
    order: BlockOrder, norm: Norm, has_residual: bool, has_feedforward: bool, has_cross_attention: bool
):
    block = make_block(
        order,
        norm=norm,
        has_residual=has_residual,
        has_feedforward=has_feedforward,
        has_cross_attention=has_cross_attention,
    )
    x = torch.randn(BATCH, TIME, MODEL)
    kv = block.project_memory(torch.randn(BATCH, SOURCE, MODEL), MASK) if has_cross_attention else None
    torch.testing.assert_close(block(x, cross_kv=kv), written_out(block, x, kv))


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_cross_attention_needs_an_encoder_output_and_without_it_none_is_taken(order: BlockOrder, has_residual: bool):
    block = make_block(order, has_residual=has_residual, has_cross_attention=True)
    x, kv = torch.randn(BATCH, TIME, MODEL), block.project_memory(torch.randn(BATCH, SOURCE, MODEL), MASK)
    with pytest.raises(ConfigError, match="got none"):
        block(x)
    with pytest.raises(ConfigError, match="got one"):
        make_block(order, has_residual=has_residual)(x, cross_kv=kv)


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_every_parameter_gets_a_gradient(order: BlockOrder, has_residual: bool):
    block = make_block(order, has_residual=has_residual, has_cross_attention=True)
    kv = block.project_memory(torch.randn(BATCH, SOURCE, MODEL), MASK)
    block(torch.randn(BATCH, TIME, MODEL), cross_kv=kv).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name


def test_beside_attention_gains_start_small():
    block = Block(
        MultiHeadAttention(MODEL, HEADS),
        FeedForward(MODEL, WIDE),
        cross_attention=MultiHeadAttention(MODEL, HEADS),
        make_norm=nn.Identity,
        order="parallel",
        has_residual=False,
    )
    assert block.gains is not None
    assert block.gains.tolist() == [1.0, 0.1, 0.1]


@pytest.mark.parametrize("order", ORDERS)
def test_a_cache_changes_nothing(order: BlockOrder):
    block = make_block(order, has_cross_attention=True, is_causal=True)
    x, kv = torch.randn(BATCH, TIME, MODEL), block.project_memory(torch.randn(BATCH, SOURCE, MODEL), MASK)
    cache = KVCache.empty(x.new_empty(BATCH, HEADS, 0, HEAD))
    parts = [block(x[:, a:b], cross_kv=kv, cache=cache) for a, b in pairwise([0, 2, 3, 5])]
    torch.testing.assert_close(torch.cat(parts, dim=1), block(x, cross_kv=kv))


@pytest.mark.parametrize("order", ORDERS)
def test_dropout_leaves_the_residual_stream_alone(order: BlockOrder):
    """Where all but nothing of a sub-layer is kept, what is left is what came in."""
    block = make_block(order, norm="none", dropout=1 - 2**-16)
    x = torch.randn(1, 1, MODEL)
    assert torch.equal(block(x), x)
    assert not torch.equal(block.eval()(x), x)


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.query, ours.key, ours.value)
    for projection, weight, bias in zip(
        projections, theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    ):
        projection.load_state_dict({"weight": weight, "bias": bias})
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_block(ours: Block, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    for parameter in theirs.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    copy_attention(ours.attention, theirs.self_attn)
    if isinstance(theirs, nn.TransformerDecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        ours.cross_attention_norm.load_state_dict(theirs.norm2.state_dict())
        ours.feedforward_norm.load_state_dict(theirs.norm3.state_dict())
    else:
        ours.feedforward_norm.load_state_dict(theirs.norm2.state_dict())
    ours.attention_norm.load_state_dict(theirs.norm1.state_dict())
    ours.feedforward.input.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.output.load_state_dict(theirs.linear2.state_dict())


@pytest.mark.parametrize("order", ["pre-norm", "post-norm"])
@torch.no_grad()
def test_same_states_as_torch_encoder_layer(order: BlockOrder):
    ours = make_block(order)
    theirs = nn.TransformerEncoderLayer(MODEL, HEADS, WIDE, 0.0, batch_first=True, norm_first=order == "pre-norm")
    copy_block(ours, theirs)
    x = torch.randn(BATCH, SOURCE, MODEL)
    torch.testing.assert_close(ours(x, MASK), theirs(x, src_key_padding_mask=~MASK[:, 0, 0]))


@pytest.mark.parametrize("order", ["pre-norm", "post-norm"])
@torch.no_grad()
def test_same_states_as_torch_decoder_layer(order: BlockOrder):
    ours = make_block(order, has_cross_attention=True, is_causal=True)
    theirs = nn.TransformerDecoderLayer(MODEL, HEADS, WIDE, 0.0, batch_first=True, norm_first=order == "pre-norm")
    copy_block(ours, theirs)
    x, memory = torch.randn(BATCH, TIME, MODEL), torch.randn(BATCH, SOURCE, MODEL)
    future = torch.ones(TIME, TIME, dtype=torch.bool).triu(diagonal=1)
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=~MASK[:, 0, 0])
    torch.testing.assert_close(ours(x, cross_kv=ours.project_memory(memory, MASK)), expected)
