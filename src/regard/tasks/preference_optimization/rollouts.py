"""Answers that a policy samples in training: their rewards, their advantages, and how far they are from the reference.

    reinforce   the reward minus the KL penalty, minus the mean of the other samples of the prompt
    ppo         the penalty at each token and the reward at the last, by a critic and generalized advantages
    grpo        the reward, standardized among the samples of the prompt; the penalty is part of the loss

The critic of PPO is a linear function of the policy's hidden states. It is solved by ridge regression on the returns of
earlier texts, so that it does not depend on the rewards that it is a baseline for, and the model has no second head.

Dimensions: `batch` texts, `time` positions, `model` width, `features` of the critic.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.batches import pad
from regard.data.permutation import mix
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.nn.losses import IGNORED
from regard.nn.preferences import generalized_advantages, group_advantages, leave_one_out, whiten
from regard.tasks.text import output_log_probs
from regard.text.tokenizer import Tokenizer

Reward = Callable[[Sequence[str], Sequence[str]], list[float]]
"""The rewards of answers, given prompts and answers."""
OnPolicy = Literal["reinforce", "ppo", "grpo"]

_SLOTS = {"cpu": 64, "cuda": 256}
"""Answers that are generated side by side."""
_CRITIC_DECAY, _RIDGE = 0.9, 1e-2
"""The weight of earlier texts in the critic, for each batch after them, and the penalty on its weights."""
_SMOOTHING = 0.95
"""The lambda of generalized advantages."""


@dataclass(frozen=True)
class RolloutBatch:
    """Sampled answers after their prompts; numbers are 0 where `targets` is `IGNORED`."""

    tokens: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch answers"]
    log_probs: Float[Tensor, "batch answers"]
    """Log-probabilities of the targets under the policy that sampled them."""
    reference: Float[Tensor, "batch answers"]
    advantages: Float[Tensor, "batch answers"]
    num_targets: int

    @property
    def num_tokens(self) -> int:
        return int((self.targets != IGNORED).sum())

    def tensors(self) -> list[Tensor | None]:
        return [self.tokens, self.targets, self.log_probs, self.reference, self.advantages]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "RolloutBatch":
        names = ("tokens", "targets", "log_probs", "reference", "advantages")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name


def answer_log_probs(
    model: Any, tokens: Int[Tensor, "batch time"], targets: Int[Tensor, "batch answers"]
) -> Float[Tensor, "batch answers"]:
    """The log-probability of each target, with its gradient; 0 where it is `IGNORED`.

    The targets are those of the last positions: prompts cost no product with the vocabulary.
    """
    return log_probs_of(model, model.hidden_states(tokens)[:, -targets.size(1) :], targets)


def log_probs_of(
    model: Any, hidden_states: Float[Tensor, "batch answers model"], targets: Int[Tensor, "batch answers"]
) -> Float[Tensor, "batch answers"]:
    """`answer_log_probs` of positions whose hidden states are known."""
    if hidden_states.is_cuda:  # counting what counts would wait for the GPU, and a CUDA graph cannot
        return output_log_probs(model.output, hidden_states.flatten(0, 1), targets.flatten()).view(targets.shape)
    counts = targets != IGNORED
    found = output_log_probs(model.output, hidden_states[counts], targets[counts])
    return found.new_zeros(targets.shape).masked_scatter(counts, found)


def sample_answers(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    seed: int,
    max_tokens: int,
    engine: Engine | None = None,
) -> list[list[int]]:
    """An answer to each prompt from the model's own distribution, with its end token unless it was cut off.

    An `engine` of this model is used again; otherwise there is a new one.
    """
    most = model.config.max_positions
    limits = [max_tokens if most is None else max(1, min(max_tokens, most - len(prompt))) for prompt in prompts]
    model.eval()
    engine = engine or sampling_engine(model, tokenizer)
    requests = [
        Request(list(prompt), limit, seed=mix(seed, number))
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    found = engine.run(requests)
    return [
        [*answer, tokenizer.end] if len(answer) < limit else answer for answer, limit in zip(found, limits, strict=True)
    ]


def sampling_engine(model: Any, tokenizer: Tokenizer) -> Engine:
    """An engine that samples from the model's own distribution."""
    config, num_slots = GenerationConfig(temperature=1.0), _SLOTS[model.device.type]
    return Engine(model.eval(), config, end=tokenizer.ends, num_slots=num_slots)


def join_answers(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], padding: int
) -> tuple[Int[Tensor, "batch time"], Int[Tensor, "batch answers"]]:
    """Tokens, and the targets after the last of them, from the end of the shortest prompt on.

    Targets are the tokens of the answers; those of prompts and padding are `IGNORED`.
    """
    whole = [np.array([*prompt, *answer], np.int64) for prompt, answer in zip(prompts, answers, strict=True)]
    tokens = torch.from_numpy(pad([ids[:-1] for ids in whole], padding))
    targets = torch.from_numpy(pad([ids[1:] for ids in whole], IGNORED))
    for row, prompt in enumerate(prompts):
        targets[row, : len(prompt) - 1] = IGNORED
    first = min(map(len, prompts), default=1) - 1
    return tokens, targets[:, first:].contiguous()


class Critic:
    """A linear value of hidden states, by ridge regression on the returns of earlier texts."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.gram = torch.zeros(width + 1, width + 1, dtype=torch.float64, device=device)
        self.moment = torch.zeros(width + 1, dtype=torch.float64, device=device)

    def values(self, hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch"]:
        """The expected return after each hidden state; 0 before the first texts."""
        penalty = _RIDGE * (1.0 + self.gram.diagonal().mean())
        weights = torch.linalg.solve(self.gram + penalty * torch.eye(len(self.moment)).to(self.gram), self.moment)
        return (_features(hidden_states) @ weights).to(hidden_states.dtype)

    def add(self, hidden_states: Float[Tensor, "texts model"], returns: Float[Tensor, " texts"]) -> None:
        """Take in texts with their returns; earlier ones lose weight."""
        features = _features(hidden_states)
        self.gram = _CRITIC_DECAY * self.gram + features.T @ features / len(features)
        self.moment = _CRITIC_DECAY * self.moment + features.T @ returns.double() / len(features)


class Rollouts:
    """Samples answers, and computes their advantages."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        method: OnPolicy,
        *,
        beta: float,
        samples: int,
        max_tokens: int,
        texts_of: Callable[[Sequence[Sequence[int]]], list[str]],
    ) -> None:
        """`texts_of` are the prompts as the reward reads them, given their tokens."""
        self._tokenizer, self._method, self._texts_of = tokenizer, method, texts_of
        self._beta, self._samples, self._max_tokens = beta, samples, max_tokens
        self._critic: Critic | None = None
        self._engine: Engine | None = None
        self.current: RolloutBatch | None = None
        """The newest batch, which is used for several updates."""
        self.kl = 0.0
        """Nats of an answer of the newest batch, on average."""

    def restart(self) -> None:
        """Forget earlier texts."""
        self._critic, self.current, self.kl = None, None, 0.0

    @torch.no_grad()
    def sample(
        self, model: Any, reference: Any, reward: Reward, prompts: Sequence[Sequence[int]], *, seed: int
    ) -> RolloutBatch:
        """Sample answers to each prompt by `model`; `reference` is a context in which the reference can be called."""
        repeated = [prompt for prompt in prompts for _ in range(self._samples)]
        answers = sample_answers(
            model, self._tokenizer, repeated, seed=seed, max_tokens=self._max_tokens, engine=self._engine_of(model)
        )
        tokens, targets = (each.to(model.device) for each in join_answers(repeated, answers, self._tokenizer.pad))
        hidden_states = model.hidden_states(tokens)[:, -targets.size(1) :]
        log_probs = log_probs_of(model, hidden_states, targets)
        with reference.applied() as frozen:
            references = answer_log_probs(frozen, tokens, targets)
        texts = self._texts_of(repeated), self._tokenizer.decode(answers)
        rewards = torch.tensor(reward(*texts), dtype=log_probs.dtype, device=log_probs.device)
        log_ratios = log_probs - references
        self.kl = float(log_ratios.sum(dim=1).mean())
        advantages = self._advantages(rewards, log_ratios, hidden_states, targets != IGNORED)
        # The loss of PPO is a mean over tokens, those of the others are means over texts.
        num_targets = int((targets != IGNORED).sum()) if self._method == "ppo" else len(answers)
        self.current = RolloutBatch(tokens, targets, log_probs, references, advantages, num_targets)
        return self.current

    def _engine_of(self, model: Any) -> Engine | None:
        """On a GPU one engine for all batches, whose CUDA graphs read the weights as they are now."""
        if model.device.type != "cuda":  # where the model for inference may have copies of weights
            return None
        if self._engine is None:
            self._engine = sampling_engine(model, self._tokenizer)
        return self._engine

    def _advantages(
        self,
        rewards: Float[Tensor, " batch"],
        log_ratios: Float[Tensor, "batch time"],
        hidden_states: Float[Tensor, "batch time model"],
        counts: Tensor,
    ) -> Float[Tensor, "batch time"]:
        groups = (-1, self._samples)
        if self._method == "grpo":
            return group_advantages(rewards.view(groups)).flatten()[:, None] * counts
        if self._method == "reinforce":
            total = rewards - self._beta * log_ratios.sum(dim=1)
            return leave_one_out(total.view(groups)).flatten()[:, None] * counts
        places = torch.arange(counts.size(1), device=counts.device)
        is_last = places == (counts * places).amax(dim=1, keepdim=True)
        by_token = rewards[:, None] * is_last - self._beta * log_ratios
        if self._critic is None:
            self._critic = Critic(hidden_states.size(-1), hidden_states.device)
        values = self._critic.values(hidden_states)
        advantages, _ = generalized_advantages(by_token, values, counts, smoothing=_SMOOTHING)
        to_come = by_token.flip(1).cumsum(dim=1).flip(1)
        self._critic.add(hidden_states[counts], to_come[counts])
        return whiten(advantages, counts)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs of the newest batch and of the critic."""
        found: dict[str, Tensor] = {}
        if self._critic is not None:
            found |= {"gram": self._critic.gram, "moment": self._critic.moment}
        if self.current is not None:
            found |= {str(number): tensor for number, tensor in enumerate(self.current.tensors()) if tensor is not None}
            found["numbers"] = torch.tensor([self.current.num_targets, self.kl], dtype=torch.float64)
        return found

    def restore(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore what `state` returned."""
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        if "gram" in tensors:
            self._critic = Critic(len(tensors["moment"]) - 1, device)
            self._critic.gram, self._critic.moment = tensors["gram"], tensors["moment"]
        if "numbers" in tensors:
            num_targets, self.kl = tensors["numbers"].tolist()
            parts = [tensors[str(number)] for number in range(5)]
            self.current = RolloutBatch(*parts, num_targets=int(num_targets))


def _features(hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch features"]:
    """Hidden states and a constant 1."""
    return F.pad(hidden_states.double(), (0, 1), value=1.0)
