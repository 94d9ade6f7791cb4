r"""Reward modeling: a number for an answer to a prompt, learned from which of two answers people prefer.

The probability that the first of two answers is preferred depends on the difference of their rewards alone:

$$ p(y_1 \succ y_2 \mid x) = \sigma(r(x, y_1) - r(x, y_2)) $$

Bradley & Terry, "Rank Analysis of Incomplete Block Designs" (1952).
Christiano et al., "Deep Reinforcement Learning from Human Preferences" (2017). https://arxiv.org/abs/1706.03741
Ouyang et al., "Training Language Models to Follow Instructions with Human Feedback" (2022), equation 1.
https://arxiv.org/abs/2203.02155

Dimensions: `batch` pairs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.linear import fit_preferences
from regard.data.builtin import find_builtin
from regard.data.codecs.codec import Codec
from regard.data.codecs.text import TextCodec
from regard.data.preference_sources import NO_RATER, PREFERENCE_ROLES, has_preferences, open_preferences
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, is_builtin
from regard.errors import DataError
from regard.evaluation.agreement import agreement_on_pairs
from regard.evaluation.examples import Examples
from regard.generation.config import GenerationConfig
from regard.logging import log_info
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.nn.preferences import bradley_terry_losses
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.language_modeling import encode_prompt
from regard.tasks.sentence_embedding import MatchBatch
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, Task, to_device
from regard.tasks.text import SEPARATOR, TextSettings, TextTask, encode_texts, make_text_batch, pad_text_batch
from regard.text.chat import Chat

_FIRST, _SECOND = "first", "second"
_NARROW, _NARROW_RATE, _WIDE_RATE = 256, 0.03, 40.0
"""Learning rates of fine-tuning: times model_dim ** -0.5, as from scratch, at most times model_dim ** -2, by which wide
models, which know more than minutes of training teach, change little."""
_MOST_RATERS = 12
"""Raters whose agreement with the model a report lists."""


class RewardModelingSettings(TextSettings):
    """Settings of reward models."""

    name: str = "reward-modeling"
    template: str | None = None
    """The chat template, in Jinja, by which prompts become tokens that an answer continues. Unset: that of the base."""
    continues: bool = False
    """Whether an answer continues its prompt, as in the texts of a language model; otherwise an end token separates
    them. Unset: true where the base is a language model."""


class RewardModeling(TextTask[RewardModelingSettings]):
    """Pairs of a chosen and a rejected answer, by a model with one output."""

    name = "reward-modeling"
    description = "reward modeling"
    output_description = "the reward of an answer"
    other_names = ("reward", "reward-model", "preference-model", "bradley-terry")
    Settings = RewardModelingSettings
    roles = PREFERENCE_ROLES
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec}
    store_columns = ("chosen", "rejected")
    metrics = ("accuracy", "calibration_error")
    objectives = frozenset()
    attention_kind = None  # an answer is read beside another one
    unit = "pair"

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        found = has_preferences(summary.names)
        if not found or summary.columns_given:
            return None
        is_rated = "chosen" not in found
        what = "ratings of answers" if is_rated else "pairs of a chosen and a rejected answer"
        return Detection(f"{what} ({', '.join(found)})", confidence=0.75 if is_rated else 0.95)

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_preferences(config, rows)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        """Beside the rows: the agreement of their raters, and the best accuracy where their noise is known."""
        data = super().prepare(config, rows)
        notes = []
        if (agreement := agreement_on_pairs(data.train_rows())) is not None:
            notes.append(f"agreement of raters: {agreement}")
        ceiling = find_builtin(config.train[0]).preference_ceiling if rows is None and is_builtin(config) else None
        if ceiling is not None and (valid := data.held_out["valid"]):
            notes.append(f"accuracy on the validation pairs that the noise of the raters allows: {ceiling(valid):.4f}")
        for note in notes:
            log_info(note)
        return replace(data, notes=[*data.notes, *notes])

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row[:3]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [self._encode_answers([(row[0], row[side]) for row in rows]) for side in (1, 2)]

    def _encode_answers(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Prompts and answers as tokens; of a prompt that leaves no half of the positions for its answer, the end."""
        most, tokenizer = self.settings.max_length, self.tokenizer
        if self._chat is None and not self.settings.continues:
            return encode_texts(pairs, tokenizer, most)
        found = []
        for (prompt, _), answer in zip(pairs, tokenizer.encode([answer for _, answer in pairs]), strict=True):
            ids = encode_prompt(prompt, tokenizer, self._chat)[-max(1, most // 2, most - 1 - len(answer)) :]
            found.append([*ids, *answer[: most - 1 - len(ids)], tokenizer.end])
        return found

    @cached_property
    def _chat(self) -> Chat | None:
        return None if self.settings.template is None else Chat(self.settings.template, self.tokenizer)

    def cache_key(self) -> dict[str, Any]:
        return {**super().cache_key(), **self.settings.model_dump(include={"template", "continues"})}

    @classmethod
    def inherited_settings(cls, base: Task[Any]) -> dict[str, Any]:
        return {"continues": base.head_kind == "next-token"}

    def input_of(self, row: Sequence[str]) -> str:
        return SEPARATOR.join(map(_without_separators, row[:3]))

    def target_of(self, row: Sequence[str]) -> str:
        return _FIRST

    def defaults(self, context: DefaultsContext) -> Defaults:
        width = context.model.model_dim
        rate = float(f"{min(_NARROW_RATE / width**0.5, _WIDE_RATE / width**2):.2g}")
        tuned = {} if context.method != "all" else {"learning_rate": rate}
        reasons = {"train.learning_rate": f"{rate:g}: which answer is better is a weak signal, and the model is narrow"}
        return Defaults(
            super().defaults(context).train, head={"pooling": "mean"}, finetune_train=tuned,
            reasons=reasons if tuned and width < _NARROW else {},
        )  # fmt: skip

    def build(self, model: ModelConfig, head: HeadConfig) -> SequenceClassifier:
        return SequenceClassifier(model, head, self.tokenizer.vocab_size, 1)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> MatchBatch:
        nothing = torch.zeros(len(columns[0]), dtype=torch.long)
        chosen, rejected = (make_text_batch(side, nothing, self.tokenizer) for side in columns)
        return MatchBatch(chosen, rejected, len(columns[0]))

    def pad_batch(self, batch: MatchBatch, num_rows: int, length: int) -> MatchBatch:
        sides = (pad_text_batch(side, num_rows, length, self.tokenizer.pad) for side in (batch.text, batch.other))
        return replace(batch, **dict(zip(("text", "other"), sides, strict=True)))

    def loss(self, model: SequenceClassifier, batch: MatchBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The negative log-likelihood of the preferences, summed over the pairs."""
        return (bradley_terry_losses(*self._rewards(model, batch)) * batch.text.weights).sum()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[MatchBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each pair's preference."""
        losses = [
            loss
            for batch in batches
            for loss in bradley_terry_losses(*self._rewards(model, to_device(batch, device))).tolist()
        ]
        return Likelihoods(losses, [1] * len(losses))

    def _rewards(
        self, model: SequenceClassifier, batch: MatchBatch
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """The rewards of both sides, by one pass over all texts: small products take longer one by one."""
        sides, num_rows = (batch.text, batch.other), batch.text.source.size(0)
        length = max(side.source.size(1) for side in sides)
        padded = [pad_text_batch(side, num_rows, length, self.tokenizer.pad) for side in sides]
        source, lengths, segments = (
            torch.cat([getattr(side, name) for side in padded]) for name in ("source", "lengths", "segments")
        )
        found = model(source, lengths, segments)[:, 0]
        first, second = found.to(torch.promote_types(found.dtype, torch.float32)).chunk(2)
        return first, second

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        """An input is a prompt and an answer, or a prompt and two answers to compare."""
        parts = [text.split(SEPARATOR) for text in inputs]
        for number, some in enumerate(parts, start=1):
            if len(some) not in (2, 3):
                raise DataError(
                    "an input is a prompt and an answer, or a prompt and two answers, separated by tabs, got "
                    f"{len(some)} part{'s' * (len(some) != 1)} in input {number}"
                )
        first = self._encode_answers([(some[0], some[1]) for some in parts])
        compared = iter(self._encode_answers([(some[0], some[2]) for some in parts if len(some) == 3]))
        nothing = [self.tokenizer.start, self.tokenizer.end]
        return [first, [next(compared) if len(some) == 3 else nothing for some in parts]]

    def outputs(self, model: Any, batch: MatchBatch) -> list[tuple[float, float]]:
        first, second = (rewards.double().tolist() for rewards in self._rewards(model, batch))
        return list(zip(first, second, strict=True))

    def prediction(self, text: str, output: tuple[float, float]) -> Prediction:
        """The reward of one answer; of two, which is preferred, with what probability."""
        if text.count(SEPARATOR) == 1:
            return Prediction(text, f"{output[0]:.6g}")
        share = float(1 / (1 + np.exp(np.clip(output[1] - output[0], -500, 500))))
        best = _FIRST if share >= 0.5 else _SECOND
        probabilities = {_FIRST: share, _SECOND: 1 - share}
        return PreferencePrediction(text, best, None, probabilities, max(share, 1 - share), list(output))

    def rewards(self, model: Any, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        inputs = (map(_without_separators, each) for each in (prompts, answers))
        found = self.predictor(model, GenerationConfig())([SEPARATOR.join(pair) for pair in zip(*inputs, strict=True)])
        return [float(each.output) for each in found]

    def examples(self, data: EvaluationData) -> Examples:
        """The chosen answer is the first one; one that is exactly as good is right half of the time, counted as not."""
        shares = [(each.probabilities or {}).get(_FIRST, 0.0) for each in data.predictions]
        return Examples(
            outputs=[_FIRST if share > 0.5 else _SECOND for share in shares],
            targets=[_FIRST] * len(shares),
            confidences=[max(share, 1 - share) for share in shares],
        )

    def baseline(self, data: Prepared) -> Baseline:
        return fit_preferences([row[:3] for row in data.train_rows()], separator=SEPARATOR, outputs=(_FIRST, _SECOND))

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return self.metrics

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        return ReportContent(samples=self.samples(model, data), facts=self.facts() | _by_rater(data))

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        """Pairs with the answer that the model prefers; errors first."""
        found = super().samples(model, data)
        answers = {self.input_of(row): {_FIRST: row[1], _SECOND: row[2]} for row in data.rows}
        return [
            {"source": each["source"].split(SEPARATOR)[0], "right": each["right"],
             "target": answers[each["source"]][_FIRST], "prediction": answers[each["source"]][each["prediction"]]}
            for each in found
        ]  # fmt: skip

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(inputs=("prompt", "answer"), output="label")


def _without_separators(text: str) -> str:
    return text.replace(SEPARATOR, " ")


def _by_rater(data: EvaluationData) -> dict[str, str]:
    """The agreement of the raters of the evaluated rows, and that of the model with each of them."""
    facts = {}
    if (agreement := agreement_on_pairs(data.rows)) is not None:
        facts["agreement of raters"] = str(agreement)
    counts, right = Counter(row[3] for row in data.rows), Counter[str]()
    for row, each in zip(data.rows, data.predictions, strict=True):
        right[row[3]] += (each.probabilities or {}).get(_FIRST, 0.0) > 0.5
    if set(counts) != {NO_RATER}:
        shown = sorted(counts, key=lambda rater: -counts[rater])[:_MOST_RATERS]
        facts["accuracy by rater"] = ", ".join(f"{name} {right[name] / counts[name]:.2f}" for name in shown)
    return facts


@dataclass(frozen=True)
class PreferencePrediction(Prediction):
    """Which of two answers is preferred."""

    rewards: list[float] = field(default_factory=list)
    """The rewards of the first and of the second answer."""
