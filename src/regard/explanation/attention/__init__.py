"""Attention maps: recorded during a forward pass, and drawn as a page, a figure or a heat map in the terminal."""

from regard.explanation.attention.maps import AttentionMaps, write_attention_page
from regard.explanation.attention.pictures import PictureMaps, picture_maps
from regard.explanation.attention.recording import (
    causal_attention_maps,
    cross_attention_maps,
    encoder_attention_maps,
    graph_attention_maps,
    has_attention,
    model_attention_maps,
    record_attention,
)

__all__ = [
    "AttentionMaps",
    "PictureMaps",
    "causal_attention_maps",
    "cross_attention_maps",
    "encoder_attention_maps",
    "graph_attention_maps",
    "has_attention",
    "model_attention_maps",
    "picture_maps",
    "record_attention",
    "write_attention_page",
]
