"""Our losses against trl's, on the same models and batch.

The models, tiny GPT-2 with random weights, and trl's losses were written by `trl/remake.py`; trl itself is not needed.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from regard.interop.hf.architectures import ARCHITECTURES
from regard.interop.hf.weights import read_weight
from regard.models.transformer import Transformer
from regard.nn.losses import IGNORED
from regard.nn.preferences import bradley_terry_losses
from regard.tasks.preference_optimization.rollouts import RolloutBatch, answer_log_probs, join_answers
from regard.tasks.preference_optimization.task import (
    PreferenceOptimization,
    PreferenceOptimizationSettings,
    PreferencePairs,
)
from regard.training.checkpoints import load_weights, weights_of

GOLDEN = json.loads((Path(__file__).parent / "trl" / "losses.json").read_text())
EXPECTED = GOLDEN["losses"]


@pytest.fixture(scope="module")
def models() -> dict[str, Transformer]:
    tensors = load_file(Path(__file__).parent / "trl" / "models.safetensors")
    architecture = ARCHITECTURES["GPT2LMHeadModel"]
    config = {**architecture_defaults(), **GOLDEN["config"]}
    names, found = architecture.weight_names(config), {}
    for which in ("own", "reference", "old"):
        theirs = {name.partition(":")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{which}:")}
        ours = Transformer(architecture.read_config(config), config["vocab_size"]).double().eval()
        own = weights_of(ours)
        load_weights(ours, {name: read_weight(names[name], tuple(own[name].shape), theirs) for name in own})
        found[which] = ours
    return found


def architecture_defaults() -> dict:
    return {"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None,
            "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
            "tie_word_embeddings": True, "add_cross_attention": False}  # fmt: skip


def task(method: str) -> PreferenceOptimization:
    settings = PreferenceOptimizationSettings.read(
        {"name": "preference-optimization", "tokenizer": "words", "method": method, "beta": GOLDEN["beta"],
         "margin": GOLDEN["margin"], "clip": GOLDEN["clip"], "updates": 1, "reward": "a:b"}, section="task",
    )  # fmt: skip
    return PreferenceOptimization(settings, {"text": SimpleNamespace(tokenizer=SimpleNamespace(pad=0, end=2))})


def tokens_and_targets():
    return join_answers(GOLDEN["prompts"] * 2, GOLDEN["answers"], 0)


@pytest.mark.parametrize("method", ["dpo", "ipo", "simpo"])
def test_losses_of_pairs_are_those_of_trl(models, method):
    chosen, rejected = (torch.stack(each.chunk(2), dim=1) for each in tokens_and_targets())
    batch = PreferencePairs(chosen, rejected, None, ())
    with torch.no_grad():
        flat, targets = (each.flatten(0, 1) for each in (batch.tokens, batch.targets))
        reference = answer_log_probs(models["reference"], flat, targets).sum(dim=1).unflatten(0, (-1, 2))
    batch = PreferencePairs(chosen, rejected, reference, ())

    loss = task(method).loss(models["own"], batch) / batch.num_targets

    assert loss.item() == pytest.approx(EXPECTED[method], abs=1e-9)


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_losses_of_samples_are_those_of_trl(models, method):
    tokens, targets = tokens_and_targets()
    with torch.no_grad():
        old, reference = (answer_log_probs(models[name], tokens, targets) for name in ("old", "reference"))
    counts = targets != IGNORED
    advantages = torch.tensor(GOLDEN["advantages"])[:, None] * counts
    number = int(counts.sum()) if method == "ppo" else len(tokens)
    batch = RolloutBatch(tokens, targets, old, reference, advantages, number)

    loss = task(method).loss(models["own"], batch) / batch.num_targets

    assert loss.item() == pytest.approx(EXPECTED[method], abs=1e-9)


def test_the_loss_of_a_reward_model_is_that_of_trl():
    chosen, rejected = torch.tensor(GOLDEN["rewards"]).chunk(2)

    assert bradley_terry_losses(chosen, rejected).mean().item() == pytest.approx(EXPECTED["reward"], abs=1e-9)
