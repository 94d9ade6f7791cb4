r"""Preference optimization: a language model that learns which answers people prefer.

From pairs of a chosen and a rejected answer directly (dpo, ipo, and without a reference model simpo and orpo), or from
answers that the model samples in training and a reward scores (reinforce, ppo, grpo). Both maximize

$$ \mathbb{E}_{y \sim \pi(\cdot \mid x)}[r(x, y)] - \beta\, \mathrm{KL}(\pi \,\|\, \pi_0) $$

where $\pi_0$ is the model before; the losses are in `regard.nn.preferences`. At each evaluation the model samples
answers to held-out prompts, and its reward, its true reward where the data has one, and its KL divergence from
$\pi_0$ are measured, since a reward that is optimized for long enough is no longer what it stands for:
Gao et al., "Scaling Laws for Reward Model Overoptimization" (2023). https://arxiv.org/abs/2210.10760

Dimensions: `batch` pairs or texts, `two` answers of a pair, `time` positions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor, nn

from regard.data.permutation import mix, permute
from regard.data.preference_sources import PREFERENCE_ROLES, open_preferences
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.data.stores.rows import TokenStore
from regard.errors import ConfigError, RunError
from regard.evaluation.examples import Examples
from regard.generation.config import GenerationConfig
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.nn.losses import IGNORED
from regard.nn.preferences import (
    clipped_losses,
    dpo_losses,
    ipo_losses,
    kl_terms,
    orpo_losses,
    policy_gradient_losses,
    simpo_losses,
)
from regard.settings import nearest
from regard.tasks.capabilities import ReferenceModel, TextScore
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import ReportContent, Section, ServerSchema
from regard.tasks.instruction_tuning import InstructionPredictor
from regard.tasks.language_modeling import (
    LanguageModelingPredictor,
    answer_by_template,
    build_decoder,
    encode_prompt,
    score_text,
)
from regard.tasks.preference_optimization.progress import AlignmentProgress, alignment_sections
from regard.tasks.preference_optimization.rollouts import (
    Reward,
    RolloutBatch,
    Rollouts,
    answer_log_probs,
    join_answers,
    sample_answers,
)
from regard.tasks.task import PLAIN, EvaluationData, Likelihoods, Objective, to_device
from regard.tasks.text import TextSettings, TextTask
from regard.text.chat import Chat

AlignmentMethod = Literal["dpo", "ipo", "simpo", "orpo", "reinforce", "ppo", "grpo"]
_ON_POLICY, _WITH_REFERENCE = ("reinforce", "ppo", "grpo"), ("dpo", "ipo", "reinforce", "ppo", "grpo")
_BETA = {"dpo": 0.1, "ipo": 0.1, "simpo": 2.0, "orpo": 0.1, "reinforce": 0.05, "ppo": 0.05, "grpo": 0.04}
_UPDATES = {"reinforce": 1, "ppo": 4, "grpo": 2}
_LEARNING_RATE, _ADAPTER_RATE = 0.3, 3.6
"""Times model_dim ** -1.5: a quarter of what other fine-tuning uses, so that few steps do not go far from the base."""
_NEVER_KEPT = 1e9
"""The loss of a model that has diverged, which no reward outweighs."""
_LONGER_ANSWERS, _MOST_TOKENS = 2, 512
"""Sampled answers are cut at so many times the tokens of the longest training answer, and at so many."""
_MEASURED_ROWS = 10_000
"""Training rows in which the longest answer is sought."""
_SEED = 1
"""Of the answers by which a model without answers in its rows is evaluated."""
_LENGTH_STEP = 32
"""Batches that are captured as CUDA graphs are padded to multiples of it."""
_NUM_SAMPLES = 12
"""Prompts that a report has the model answer."""


class PreferenceOptimizationSettings(TextSettings):
    """Settings of preference optimization."""

    name: str = "preference-optimization"
    method: AlignmentMethod = "dpo"
    """dpo or ipo: pairs, and the base as the reference; simpo or orpo: pairs without a reference; reinforce, ppo or
    grpo: answers that the model samples, and a reward."""
    beta: float = Field(gt=0.0)
    """The weight of the KL divergence from the base; of simpo the scale of mean log-probabilities, of orpo the weight
    of the odds. Unset: 0.1, but 2 for simpo, 0.05 for reinforce and ppo, and 0.04 for grpo."""
    has_answers: bool = True
    """Whether rows have a chosen and a rejected answer; without them, an evaluation samples answers, and their mean
    reward is the score. Unset: as the data; reinforce, ppo and grpo need prompts alone."""
    margin: float = Field(default=0.5, ge=0.0)
    """With simpo: by how much the chosen answer is to be better."""
    template: str | None = None
    """The chat template, in Jinja, by which prompts become tokens. Unset: that of the base; where it has none, prompts
    are texts that the answers continue."""
    reward: str | None = None
    """A run of a reward model, or a Python function `module:function` of a prompt and an answer. For reinforce, ppo and
    grpo; other methods only measure it."""
    true_reward: str | None = None
    """A function `module:function`, or a run, that is measured beside the reward and never optimized. Unset: that of a
    built-in data set that has one."""
    reward_seconds: float = Field(default=10.0, gt=0.0)
    """The longest time that a reward function may take for one answer."""
    samples: int = Field(default=4, ge=1)
    """With reinforce, ppo and grpo: answers to each prompt."""
    prompts: int = Field(default=16, ge=1)
    """With reinforce, ppo and grpo: prompts of a batch."""
    updates: int = Field(ge=1)
    """With reinforce, ppo and grpo: updates with the same answers. Unset: 4 for ppo, 2 for grpo, 1 for reinforce."""
    clip: float = Field(default=0.2, gt=0.0, lt=1.0)
    """With ppo and grpo: the largest change of a token's probability, as a share, that an update is rewarded for."""
    max_tokens: int = Field(default=64, ge=1)
    """Tokens of a sampled answer. Unset: twice those of the longest training answer, at most 512; 64 for prompts
    alone."""
    max_kl: float = Field(default=100.0, gt=0.0)
    """Training is stopped where the KL divergence from the base, in nats of an answer, exceeds this."""
    evaluation_answers: int = Field(default=128, ge=2)
    """Answers to held-out prompts that are sampled at each evaluation."""

    @field_validator("method", mode="before")
    @classmethod
    def _known_method(cls, value: Any) -> Any:
        known = get_args(AlignmentMethod)
        if value not in known and value is not None:
            raise ConfigError(f"unknown method {value!r}{nearest(str(value), known)}")
        return value

    @property
    def is_on_policy(self) -> bool:
        return self.method in _ON_POLICY


@dataclass(frozen=True)
class PreferencePairs:
    """Prompts, each with a chosen and a rejected answer."""

    tokens: Int[Tensor, "batch two time"]
    targets: Int[Tensor, "batch two answers"]
    """Those of the last positions; `IGNORED` for tokens of prompts, and padding."""
    reference: Float[Tensor, "batch two"] | None
    """The log-probabilities of the answers by the base, where the loss needs them."""
    prompts: tuple[tuple[int, ...], ...]
    num_tokens: int = 0
    """Tokens of the answers."""

    @property
    def num_targets(self) -> int:
        return len(self.prompts) or self.tokens.size(0)

    def tensors(self) -> list[Tensor | None]:
        return [self.tokens, self.targets, self.reference]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "PreferencePairs":
        names = ("tokens", "targets", "reference")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name


class PromptBatches:
    """Batches of prompts in a shuffled order, each for several updates in succession."""

    def __init__(
        self,
        store: TokenStore,
        make: Callable[[NDArray[np.int64]], PreferencePairs],
        *,
        size: int,
        repeats: int,
        seed: int,
    ) -> None:
        self._make, self._seed, self._num_rows = make, seed, len(store)
        self._size, self._repeats = min(size, len(store)), repeats

    @property
    def per_epoch(self) -> int:
        return -(-self._num_rows // self._size) * self._repeats

    def batch(self, number: int) -> PreferencePairs:
        epoch, place = divmod(number // self._repeats * self._size, self._num_rows)
        places = np.arange(place, place + self._size) % self._num_rows
        return self._make(permute(places, self._num_rows, mix(self._seed, epoch)))


class PreferenceOptimization(TextTask[PreferenceOptimizationSettings]):
    """Prompts with preferred answers, by a language model."""

    name = "preference-optimization"
    description = "preference optimization"
    other_names = ("alignment", "align", "rlhf", "dpo", "ppo", "grpo")
    Settings = PreferenceOptimizationSettings
    roles = PREFERENCE_ROLES
    store_columns = ("prompt", "chosen", "rejected")
    metrics = ("accuracy", "perplexity", "mean_reward")
    architecture = "decoder"
    default_preset = "gpt"
    attention_kind = "causal"
    head_kind = "next-token"
    has_targets = False
    needs_base = True
    receives_imports = False
    objectives = frozenset()
    unit = "pair"

    def __init__(self, settings: PreferenceOptimizationSettings, codecs: Any = None) -> None:
        super().__init__(settings, codecs)
        self._reference: ReferenceModel | None = None
        self._rewards: Mapping[str, Reward] = {}
        self._progress: AlignmentProgress | None = None
        self._rollouts: Rollouts | None = None
        self._texts: dict[tuple[int, ...], str] = {}
        """By their tokens, prompts that a chat template has written: a reward reads them as the rows have them."""

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        settings = self.settings
        if not settings.is_on_policy:
            return open_preferences(config, rows)
        are_prompts = not settings.has_answers if "has_answers" in settings.model_fields_set else None
        return open_preferences(config, rows, are_prompts=are_prompts)

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row[:3]

    @property
    def chat_template(self) -> str | None:
        return self.settings.template or None

    @property
    def answers_prompts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  depends on the base
        return self.chat_template is not None

    @cached_property
    def _chat(self) -> Chat | None:
        return None if self.chat_template is None else Chat(self.chat_template, self.tokenizer)

    def cache_key(self) -> dict[str, Any]:
        return {**super().cache_key(), "template": self.chat_template}

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        end = self.tokenizer.end
        texts = [[row[side] if side < len(row) else "" for row in rows] for side in (1, 2)]
        answers = [[[*ids, end] for ids in self.tokenizer.encode(some)] for some in texts]
        return [self._encode_prompts([row[0] for row in rows]), *answers]

    def _encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        found = [encode_prompt(prompt, self.tokenizer, self._chat) for prompt in prompts]
        if self._chat is not None and self.settings.is_on_policy:
            self._texts.update(zip((tuple(self._cut(ids)) for ids in found), prompts, strict=True))
        return found

    def _cut(self, prompt: Any) -> Any:
        """A prompt that is longer than half of the context is cut to its end, so that its answers fit."""
        return prompt[-max(1, self.settings.max_length // 2) :]

    def _prompt_texts(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """Prompts as a reward reads them: those of the rows; without a chat template, the texts of their tokens."""
        decoded = self.tokenizer.decode(prompts)
        return [self._texts.get(tuple(prompt), text) for prompt, text in zip(prompts, decoded, strict=True)]

    def defaults(self, context: DefaultsContext) -> Defaults:
        method, width = self.settings.method or "dpo", context.model.model_dim
        factor = _ADAPTER_RATE if context.method == "lora" else _LEARNING_RATE
        has_answers = all(len(row) > 1 for row in context.data.held_out["valid"])
        own = {"beta": _BETA[method], "updates": _UPDATES.get(method, 1), "has_answers": has_answers}
        train = dict(super().defaults(context).train)
        if self.settings.is_on_policy:  # samples of any length cannot be captured as CUDA graphs
            train["cuda_graphs"] = False
        tuned = {"learning_rate": float(f"{factor / width**1.5:.2g}"), "schedule": "linear"}
        reasons = {}
        if has_answers:
            longest = _longest_answer(context.data.train)
            own["max_tokens"] = min(_MOST_TOKENS, _LONGER_ANSWERS * longest)
            reasons["task.max_tokens"] = f"{own['max_tokens']}: the longest training answer has {longest} tokens"
        return Defaults(train=train, task=own, finetune_train=tuned, reasons=reasons)

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        settings = self.settings
        if settings.method in _WITH_REFERENCE and not is_finetuned:
            raise ConfigError(f"method {settings.method} compares the model with its base: align the model of a run")
        if settings.is_on_policy and settings.reward is None:
            raise ConfigError(f"method {settings.method} needs a reward: a run of a reward model, or module:function")
        if settings.method in ("reinforce", "grpo") and settings.samples < 2:
            raise ConfigError(
                f"{settings.method} compares answers to the same prompt: task.samples must be at least 2, got "
                f"{settings.samples}"
            )

    @classmethod
    def check_base(cls, base: Any, model: ModelConfig, where: str) -> None:
        super().check_base(base, model, where)
        if base.head_kind != cls.head_kind:
            raise ConfigError(f"{cls.description} needs a language model, and {where} is for {base.description}")

    def num_positions(self, data: Prepared) -> int:
        return min(self.settings.max_length, 2 * super().num_positions(data))

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> nn.Module:
        return build_decoder(model, self.tokenizer.vocab_size)

    def reward_sources(self) -> dict[str, str]:
        found = {"reward": self.settings.reward, "true_reward": self.settings.true_reward}
        return {name: source for name, source in found.items() if source is not None}

    def evaluation_rewards(self) -> dict[str, str]:
        found = self.reward_sources()
        return {} if self.settings.has_answers else {"reward": found["reward"]}

    def reward_seconds(self) -> float:
        return self.settings.reward_seconds

    def with_rewards(self, rewards: Mapping[str, Reward]) -> Self:
        bound = type(self)(self.settings, self.codecs)
        bound._rewards = rewards
        return bound

    def bind(self, reference: ReferenceModel, rewards: Mapping[str, Reward]) -> Self:
        bound, settings = self.with_rewards(rewards), self.settings
        bound._reference = reference
        bound._progress = AlignmentProgress(
            self.tokenizer, bound._reference, rewards, num_answers=settings.evaluation_answers,
            max_tokens=settings.max_tokens, texts_of=bound._prompt_texts,
        )  # fmt: skip
        if settings.is_on_policy:
            bound._rollouts = Rollouts(
                self.tokenizer, settings.method, beta=settings.beta, samples=settings.samples,  # pyright: ignore[reportArgumentType]  one of them
                max_tokens=settings.max_tokens, texts_of=bound._prompt_texts,
            )  # fmt: skip
        return bound

    def batches(self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False) -> Any:
        settings = self.settings
        if not settings.is_on_policy:
            return super().batches(data, batch_tokens=batch_tokens, seed=seed)
        if self._chat is not None:
            self._encode_prompts([row[0] for row in (*data.train_rows(), *data.held_out["valid"])])
        store: Any = data.train

        def make(rows: NDArray[np.int64]) -> PreferencePairs:
            return self.collate([store.sequences(column, rows) for column in range(len(store.columns))])

        return PromptBatches(store, make, size=settings.prompts, repeats=settings.updates, seed=seed)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> PreferencePairs:
        most = self.settings.max_length
        prompts = [self._cut(ids).tolist() for ids in columns[0]]
        answers = [
            [ids[: most - len(prompt)].tolist() for ids, prompt in zip(side, prompts, strict=True)]
            for side in columns[1:]
        ]
        tokens, targets = join_answers([*prompts, *prompts], [*answers[0], *answers[1]], self.tokenizer.pad)
        two = (each.unflatten(0, (2, -1)).transpose(0, 1).contiguous() for each in (tokens, targets))
        num_tokens = sum(len(ids) for side in answers for ids in side)
        return PreferencePairs(*two, reference=None, prompts=tuple(map(tuple, prompts)), num_tokens=num_tokens)

    def pad_batch(self, batch: PreferencePairs, num_rows: int, length: int) -> PreferencePairs:
        """Pad to `num_rows` pairs, and to lengths that recur; added pairs have no target."""
        (have, _, time), width = batch.tokens.shape, batch.targets.size(2)
        after = -time % _LENGTH_STEP
        before = min(-(width + after) % _LENGTH_STEP, time - width)
        tokens = F.pad(batch.tokens, (0, after, 0, 0, 0, num_rows - have), value=self.tokenizer.pad)
        targets = F.pad(batch.targets, (before, after, 0, 0, 0, num_rows - have), value=IGNORED)
        return replace(batch, tokens=tokens, targets=targets)

    def roll_out(self, model: Any, batch: Any, number: int, seed: int) -> PreferencePairs | RolloutBatch:
        """Pairs with the log-probabilities of the reference, or answers that the model samples."""
        if self._rollouts is None:
            return self._with_reference(to_device(batch, model.device))
        if self._reference is None or number % self.settings.updates == 0 or self._rollouts.current is None:
            if number == 0:
                self._rollouts.restart()
            reward = self._rewards["reward"]
            return self._rollouts.sample(model, self._reference, reward, batch.prompts, seed=seed)
        return self._rollouts.current

    def _with_reference(self, batch: PreferencePairs) -> PreferencePairs:
        if self.settings.method not in _WITH_REFERENCE or self._reference is None:
            return batch
        with torch.no_grad(), self._reference.applied() as frozen:
            return replace(batch, reference=_answer_sums(frozen, batch)[0])

    def loss(self, model: Any, batch: Any, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The loss summed over pairs, texts, or for PPO tokens.

        There is no dropout: before the first update, the probabilities must be those of the reference and of sampling.
        """
        model.eval()
        if isinstance(batch, RolloutBatch):
            return self._policy_loss(model, batch)
        is_pair = (batch.targets != IGNORED).flatten(1).any(dim=1)
        return self._losses(model, batch).where(is_pair, 0.0).sum()

    def _losses(self, model: Any, batch: PreferencePairs) -> Float[Tensor, " batch"]:
        """The loss of each pair."""
        settings, beta = self.settings, self.settings.beta
        sums, counts = _answer_sums(model, batch)
        (chosen, rejected), (chosen_mean, rejected_mean) = sums.unbind(1), (sums / counts).unbind(1)
        if settings.method == "simpo":
            return simpo_losses(chosen_mean, rejected_mean, beta=beta, margin=settings.margin)
        if settings.method == "orpo":
            return orpo_losses(chosen_mean, rejected_mean, beta=beta)
        if batch.reference is None:
            raise RunError(f"{settings.method} needs the log-probabilities of a reference, and the batch has none")
        if settings.method == "ipo":
            return ipo_losses(chosen_mean, rejected_mean, *(batch.reference / counts).unbind(1), beta=beta)
        return dpo_losses(chosen, rejected, *batch.reference.unbind(1), beta=beta)

    def _policy_loss(self, model: Any, batch: RolloutBatch) -> Float[Tensor, ""]:
        settings, counts = self.settings, batch.targets != IGNORED
        log_probs = answer_log_probs(model, batch.tokens, batch.targets)
        if settings.method == "reinforce":
            of_texts = batch.advantages.gather(1, counts.int().argmax(dim=1, keepdim=True))[:, 0]  # that of each token
            return policy_gradient_losses(log_probs.sum(dim=1), of_texts).sum()
        losses = clipped_losses(log_probs, batch.log_probs, batch.advantages, clip=settings.clip) * counts
        if settings.method == "ppo":
            return losses.sum()
        losses = losses + settings.beta * kl_terms(log_probs, batch.reference) * counts
        return (losses.sum(dim=1) / counts.sum(dim=1)).sum()

    def state_tensors(self) -> dict[str, Tensor]:
        return {} if self._rollouts is None else self._rollouts.state()

    def restore_state(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        if self._rollouts is not None:
            self._rollouts.restore(tensors, device)

    def reason_to_stop(self) -> str | None:
        """That the policy has left the region in which the reward and the reference mean anything."""
        found = [each.kl for each in (self._rollouts, self._progress) if each is not None]
        worst = max((abs(kl) if np.isfinite(kl) else np.inf for kl in found), default=0.0)
        if worst <= self.settings.max_kl:
            return None
        return (
            f"stopped: the KL divergence from the base is {worst:.3g} nats, task.max_kl is {self.settings.max_kl:g}; a "
            f"larger task.beta than {self.settings.beta:g} or a lower train.learning_rate may help"
        )

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[PreferencePairs], device: torch.device) -> Likelihoods:
        """In training the loss of each pair, or minus the regularized reward of samples; else of the chosen answers.

        Without answers in the rows, minus the reward of a sampled one.
        """
        found = [to_device(batch, device) for batch in batches]
        if self._progress is None and not self.settings.has_answers:
            losses = [-worth for worth in self._sampled_rewards(model, [each for b in found for each in b.prompts])]
            return Likelihoods(losses, [1] * len(losses))
        if self._progress is None:
            sums, counts = (
                torch.cat(each) for each in zip(*(_answer_sums(model, batch) for batch in found), strict=True)
            )
            is_right = (sums / counts).diff(dim=1)[:, 0] < 0
            right = tuple(is_right.long().tolist())
            return Likelihoods((-sums[:, 0]).tolist(), counts[:, 0].tolist(), num_correct=right)
        prompts = [prompt for batch in found for prompt in batch.prompts]
        figures, rewards, divergences = self._progress.measure(model, prompts)
        if self.settings.is_on_policy:
            losses = [self.settings.beta * kl - worth for worth, kl in zip(rewards, divergences, strict=True)]
        else:
            losses = torch.cat([self._losses(model, self._with_reference(batch)) for batch in found]).tolist()
        if self.reason_to_stop() is not None:
            losses = [_NEVER_KEPT] * len(losses)
        return Likelihoods(losses, [1] * len(losses), figures=figures)

    def _sampled_rewards(self, model: Any, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        """The reward of an answer to each prompt, sampled from the model's own distribution."""
        answers = sample_answers(model, self.tokenizer, prompts, seed=_SEED, max_tokens=self.settings.max_tokens)
        return self._rewards["reward"](self._prompt_texts(prompts), self.tokenizer.decode(answers))

    # Use

    def predictor(self, model: Any, config: GenerationConfig) -> LanguageModelingPredictor:
        if self._chat is not None:
            return InstructionPredictor(model, self._chat, config)
        return LanguageModelingPredictor(model, self.tokenizer, config)

    def answer_messages(
        self, predictor: Any, messages: Sequence[Mapping[str, Any]], template: str | None
    ) -> Iterator[str]:
        return answer_by_template(predictor, messages, template, self.tokenizer)

    def score_text(self, model: Any, text: str) -> TextScore:
        return score_text(model, self.tokenizer, text)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return self.metric_names()[0]

    def metric_names(self) -> tuple[str, ...]:
        return self.metrics[:2] if self.settings.has_answers else self.metrics[2:]

    def examples(self, data: EvaluationData) -> Examples:
        """Whether the chosen answer has the higher log-probability per token, and its perplexity; or rewards."""
        likelihoods = data.likelihoods
        if not self.settings.has_answers:
            return Examples(extras={"rewards": [-loss for loss in likelihoods.losses]})
        return Examples(
            outputs=["chosen" if right else "rejected" for right in likelihoods.num_correct],
            targets=["chosen"] * len(likelihoods.num_correct),
            losses=likelihoods.losses,
            num_tokens=likelihoods.counts,
        )

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        shown = [(data.rows[0][0], data.rows[0][0])] if data.rows else []
        names = ("prompt", "chosen", "generated")
        return ReportContent(self.samples(model, data), names, facts=self.facts(), attention_inputs=shown)

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        """Held-out prompts, the answers that were chosen, and those of the model."""
        rows = {row[0]: row[1] if len(row) > 1 else "" for row in data.rows[: 8 * _NUM_SAMPLES]}
        prompts = list(rows)[:_NUM_SAMPLES]
        config = GenerationConfig(temperature=1.0, max_tokens=self.settings.max_tokens)
        found = self.predictor(model, config)(prompts)
        return [
            {"source": each.input, "target": rows[each.input].strip(), "prediction": each.output.strip()}
            for each in found
        ]

    def facts(self) -> dict[str, str]:
        settings = self.settings
        reward = {} if settings.reward is None else {"reward": settings.reward}
        return {**super().facts(), "method": f"{settings.method}, beta {settings.beta:g}", **reward}

    def training_sections(self, lines: Sequence[Mapping[str, Any]]) -> list[Section]:
        return alignment_sections(lines)

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(inputs=("prompt",), streams=True, placeholder="A prompt")


def _longest_answer(store: Any) -> int:
    """Tokens of the longest answer among the first training rows, its end token included."""
    rows = range(min(len(store), _MEASURED_ROWS))
    return max(len(ids) for column in (1, 2) for ids in store.sequences(column, rows))


def _answer_sums(model: Any, batch: PreferencePairs) -> tuple[Float[Tensor, "batch two"], Int[Tensor, "batch two"]]:
    """The log-probability of each answer, and its number of tokens."""
    targets = batch.targets.flatten(0, 1)
    found = answer_log_probs(model, batch.tokens.flatten(0, 1), targets)
    counts = (targets != IGNORED).sum(dim=1).clamp(min=1)
    return found.sum(dim=1).unflatten(0, (-1, 2)), counts.unflatten(0, (-1, 2))
