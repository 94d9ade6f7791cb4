"""Remake `losses.json`: the losses that trl computes for two tiny GPT-2 and a batch.

    python tests/parity/trl/remake.py        with trl 1.16.0 and transformers installed

Trl's own methods are called; its trainers, which need data sets and a training loop, are replaced by objects with the
attributes that the methods read. Everything is in float64.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
import trl
from safetensors.torch import save_file
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.reward_trainer import RewardTrainer

HERE = Path(__file__).parent
CONFIG = {"vocab_size": 11, "n_positions": 17, "n_embd": 8, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0,
          "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
PROMPTS = [[1, 5], [1, 7, 3, 9]]
ANSWERS = [[4, 8, 2], [6, 2], [3, 3, 10, 5, 2], [9, 2]]
"""Those that were chosen, then those that were rejected."""
BETA, MARGIN, CLIP = 0.3, 0.4, 0.1


def log_probs(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of the tokens of each answer, one row at a time, and which of them count."""
    most = max(map(len, answers))
    found, mask = torch.zeros(len(answers), most), torch.zeros(len(answers), most)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids = torch.tensor([[*prompt, *answer]])
        table = model(ids).logits[0, :-1].log_softmax(-1)
        found[row, : len(answer)] = table[range(len(prompt) - 1, ids.size(1) - 1), ids[0, len(prompt) :]]
        mask[row, : len(answer)] = 1
    return found, mask


def dpo(kind: str, own: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor) -> float:
    nothing = SimpleNamespace(gather_for_metrics=lambda x: x, gather=lambda x: x, device="cpu",
                              unwrap_model=lambda x: x, reduce=lambda x, **_: x)  # fmt: skip
    model = SimpleNamespace(training=False)
    fake = SimpleNamespace(
        model=model, accelerator=nothing, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True,
        f_divergence_type="reverse_kl", loss_types=[kind], loss_weights=[1.0], beta=BETA, label_smoothing=0.0,
        use_weighting=False, args=SimpleNamespace(), _metrics={"eval": _Anything()}, _total_train_tokens=0,
    )  # fmt: skip
    shifted = torch.cat([torch.zeros(len(mask), 1), mask], dim=1)
    inputs = {"input_ids": torch.zeros(shifted.shape, dtype=torch.long), "completion_mask": shifted,
              "attention_mask": torch.ones_like(shifted),
              "ref_chosen_logps": reference.sum(1)[:2], "ref_rejected_logps": reference.sum(1)[2:]}  # fmt: skip
    zeros = torch.zeros_like(own)
    outputs = SimpleNamespace(log_probs=own * mask, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    fake_model = _Callable(outputs)
    try:
        return float(DPOTrainer._compute_loss(fake, fake_model, inputs, return_outputs=False))
    except (AttributeError, KeyError, TypeError) as error:
        raise SystemExit(
            f"trl {trl.__version__} reads an attribute that the object in its place lacks: {error!r}"
        ) from None


class _Anything(dict):
    def __missing__(self, key: str) -> list:
        self[key] = []
        return self[key]


class _Callable:
    training = False

    def __init__(self, outputs: Any) -> None:
        self._outputs = outputs

    def __call__(self, **_: Any) -> Any:
        return self._outputs


def grpo(kind: str, own: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor,
         advantages: torch.Tensor, beta: float) -> float:  # fmt: skip
    nothing = SimpleNamespace(gather=lambda x: x, num_processes=1, reduce=lambda x, **_: x,
                              gather_for_metrics=lambda x: x)  # fmt: skip
    fake = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=nothing, aux_loss_enabled=False, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, importance_sampling_level="token", beta=beta, epsilon_low=CLIP,
        epsilon_high=CLIP, loss_type=kind, use_vllm=False, _entropy_bonus_enabled=False, _metrics={"eval": _Anything()},
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None), current_gradient_accumulation_steps=1,
        _get_per_token_logps_and_entropies=lambda *_, **__: (own, torch.zeros_like(own), None),
    )  # fmt: skip
    prompt = torch.zeros(len(own), 1, dtype=torch.long)
    inputs = {"prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt), "completion_ids": mask.long(),
              "completion_mask": mask, "advantages": advantages, "old_per_token_logps": old,
              "ref_per_token_logps": reference}  # fmt: skip
    return float(GRPOTrainer._compute_loss(fake, None, inputs))


def reward(chosen: torch.Tensor, rejected: torch.Tensor) -> float:
    fake = SimpleNamespace(
        model=SimpleNamespace(training=False), args=SimpleNamespace(center_rewards_coefficient=None),
        accelerator=SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x), _metrics={"eval": _Anything()},
        _total_train_tokens=0,
    )  # fmt: skip
    outputs = SimpleNamespace(logits=torch.cat([chosen, rejected])[:, None])
    inputs = {"attention_mask": torch.ones(2, 2)}
    return float(RewardTrainer.compute_loss(fake, lambda **_: outputs, inputs))


def simpo(chosen: torch.Tensor, rejected: torch.Tensor) -> float:
    fake = SimpleNamespace(alpha=0.0, loss_type="simpo", simpo_gamma=MARGIN, beta=BETA, label_smoothing=0.0,
                           accelerator=SimpleNamespace(device="cpu"))  # fmt: skip
    return float(CPOTrainer.cpo_loss(fake, chosen, rejected)[0].mean())


def main() -> None:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    models = []
    for _ in range(3):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG)).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        models.append(model)
    with torch.no_grad():
        prompts = PROMPTS * 2
        (own, mask), (reference, _), (old, _) = (log_probs(model, prompts, ANSWERS) for model in models)
        means = (own * mask).sum(1) / mask.sum(1)
        rewards, advantages = torch.randn(4), torch.randn(4)
        found = {
            "trl": trl.__version__,
            "config": CONFIG, "prompts": PROMPTS, "answers": ANSWERS, "beta": BETA, "margin": MARGIN, "clip": CLIP,
            "rewards": rewards.tolist(), "advantages": advantages.tolist(),
            "losses": {
                "reward": reward(rewards[:2], rewards[2:]),
                "dpo": dpo("sigmoid", own, reference, mask),
                "ipo": dpo("ipo", own, reference, mask),
                "simpo": simpo(means[:2], means[2:]),
                "ppo": grpo("bnpo", own, old, reference, mask, advantages, 0.0),
                "grpo": grpo("grpo", own, old, reference, mask, advantages, BETA),
            },
        }  # fmt: skip
    (HERE / "losses.json").write_text(json.dumps(found, indent=1) + "\n")
    tensors = {f"{name}:{key}": value.contiguous().clone() for name, model in zip(("own", "reference", "old"), models,
               strict=True) for key, value in model.state_dict().items() if key != "lm_head.weight"}  # fmt: skip
    save_file(tensors, HERE / "models.safetensors")


if __name__ == "__main__":
    main()
