"""Generation: tokens from a decoder, by greedy decoding, sampling or beam search.

    sampling      how the next token is chosen, and generation in its simplest form
    engine        continuous batching: many requests in parallel
    beam          beam search
    batch         the running batch of the engine
    cuda_graphs   steps captured as CUDA graphs

Everything works on the protocols of `regard.models.protocols`; a model's faster
implementation is obtained from itself, by `for_inference`.
"""

from regard.generation.beam import BeamSearch, Hypothesis
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, NewTokens, Request
from regard.generation.sampling import Constraint, sample
from regard.nn.inference import prepare_for_inference

__all__ = [
    "BeamSearch",
    "Constraint",
    "Engine",
    "GenerationConfig",
    "Hypothesis",
    "NewTokens",
    "Request",
    "prepare_for_inference",
    "sample",
]
