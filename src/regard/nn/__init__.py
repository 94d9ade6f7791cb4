"""Layers: the parts that the models are composed of.

attention     attend, Lookup, MultiHeadAttention      similarity    the scores that attention can use
positions     position encodings                      masks         causal, padding and document masks
blocks        the Transformer block                   kv_cache      keys and values stored between steps
feedforward   the position-wise network               norms         layer norm and RMS norm
recurrent     rnn, gru and lstm                       convolution   gated convolution
dropout       dropout of numbers, tokens, weights     crf           conditional random field
losses        cross-entropy, R-Drop, contrastive      precision     float16 and float8
inference     packed and quantized weights            ngrams        Kneser-Ney n-grams
kernels/      Triton kernels
"""

from regard.nn.attention import Lookup, MultiHeadAttention, attend
from regard.nn.blocks import Block
from regard.nn.convolution import GatedConvolution
from regard.nn.crf import ConditionalRandomField
from regard.nn.dropout import Dropout, LockedDropout, TokenDropout
from regard.nn.feedforward import FeedForward
from regard.nn.inference import prepare_for_inference
from regard.nn.kv_cache import KVCache, StaticKVCache
from regard.nn.losses import contrastive_losses, cross_entropy, linear_cross_entropy, rdrop_cross_entropy
from regard.nn.masks import causal_mask, document_mask, padding_mask
from regard.nn.norms import LayerNorm, RMSNorm
from regard.nn.positions import ALiBi, Learned, RelativeBias, RelativeKeys, Rotary, Sinusoidal
from regard.nn.recurrent import RecurrentStack
from regard.nn.similarity import Similarity, make_similarity

__all__ = [
    "ALiBi",
    "Block",
    "ConditionalRandomField",
    "Dropout",
    "FeedForward",
    "GatedConvolution",
    "KVCache",
    "LayerNorm",
    "Learned",
    "LockedDropout",
    "Lookup",
    "MultiHeadAttention",
    "RMSNorm",
    "RecurrentStack",
    "RelativeBias",
    "RelativeKeys",
    "Rotary",
    "Similarity",
    "Sinusoidal",
    "StaticKVCache",
    "TokenDropout",
    "attend",
    "causal_mask",
    "contrastive_losses",
    "cross_entropy",
    "document_mask",
    "linear_cross_entropy",
    "make_similarity",
    "padding_mask",
    "prepare_for_inference",
    "rdrop_cross_entropy",
]
