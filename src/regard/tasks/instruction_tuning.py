r"""Instruction tuning: answer a prompt or a conversation; the loss is on the answers only.

Ouyang et al., "Training language models to follow instructions with human feedback" (2022), section 3.5, the first
step. https://arxiv.org/abs/2203.02155
Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021), https://arxiv.org/abs/2107.02027

A conversation of tokens $x$ in which the assistant writes those of a set $A$, the end token of each answer included,
has the loss

$$ -\sum_{t \in A} \log p(x_t \mid x_1 \dots x_{t-1}) $$

The chat template decides what the tokens are: see `regard.text.chat`. Several conversations are packed into a window of
`max_length` positions. Attention stays inside each, and positions restart, so that loss and gradients are those of
separate conversations.

Dimensions: `batch` windows, `time` positions.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import model_validator
from torch import Tensor, nn

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.baselines.ngrams import KneserNey
from regard.baselines.pairs import NearestTarget
from regard.data.codecs.codec import Codec
from regard.data.conversation_sources import (
    CONVERSATION_ROLES,
    MESSAGE_FIELDS,
    MESSAGES,
    ChatMessage,
    RowTemplates,
    conversation_columns,
    conversation_of,
    open_conversations,
    parse_prompt,
)
from regard.data.formats.messages import format_count
from regard.data.permutation import mix, permute
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.data.splits.by_hash import row_hash
from regard.data.stores.rows import TokenStore
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.generation.config import GenerationConfig
from regard.generation.engine import Request
from regard.logging import log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.nn.losses import IGNORED
from regard.tasks.capabilities import TextScore
from regard.tasks.choices import BATCH_TOKENS, ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.language_modeling import (
    DECODER_TRAIN_DEFAULTS,
    LanguageModelingPredictor,
    WindowBatch,
    answer_by_template,
    build_decoder,
    documents_for,
    score_text,
)
from regard.tasks.task import (
    EVALUATION_TOKENS,
    NUM_SAMPLES,
    PLAIN,
    ComparedRun,
    Detection,
    EvaluationData,
    Likelihoods,
    Objective,
    repeat_batch,
    to_device,
)
from regard.tasks.text import TextSettings, TextTask, fit_tokenizer, next_token_loss, row_losses
from regard.text.chat import (
    PLAIN_TEMPLATE,
    Chat,
    TemplateLimitError,
    compile_template,
    render_chat,
    silent_roles,
    template_variables,
)
from regard.text.tokenizer import Tokenizer

_PLAIN = "plain"
_COMPARED_ROWS, _COMPARED_CHARACTERS = 1_000, 50_000
"""Answers to the validation prompts of a report are generated where these have at most so many characters."""
_ADAPTER_RATE = 2.4
"""Times model_dim ** -1.5, for LoRA. After 100 steps on 860 instructions, SmolLM2 has the format in 99 of 100 held-out
answers, and a perplexity on other text that is 0.7 % higher; at twice this rate in all of them, and 2.9 %."""
_NGRAM_ORDER, _NGRAM_TOKENS = 3, 2_000_000
_BLANK_TOKENS = {"bos_token": "", "eos_token": "", "pad_token": "", "add_generation_prompt": False}


class InstructionTuningSettings(TextSettings):
    """Settings of models that answer."""

    name: str = "instruction-tuning"
    template: str = _PLAIN
    """The chat template, in Jinja; plain: each message between the start token and the end token. Unset: that of the
    base, where it has one, otherwise plain."""
    prompt: str | None = None
    """How a prompt is made of the columns of a table, in Jinja: `Translate: {{ english }}`. Unset: the table has
    messages, or a prompt and an answer."""
    answer: str | None = None
    """How its answer is made of the columns, with task.prompt."""
    answers: Literal["all", "last"] = "all"
    """The answers of a conversation that the loss is on."""
    too_long: Literal["leave-out", "cut"] = "leave-out"
    """Training conversations of more than task.max_length tokens are left out, or their oldest tokens are cut; both are
    counted. Held-out ones are cut."""
    pack: bool
    """Whether several conversations share a window, without attending to each other. Unset: true for models that can
    isolate them."""
    compare_answers: bool
    """Whether evaluation generates answers and compares them with those of the rows. Unset: where the validation
    answers are short enough."""
    format: str | None = None
    """A regular expression that a whole answer must match: the share that does is a score."""

    @model_validator(mode="after")
    def _templates_can_be_used(self) -> Self:
        if (self.prompt is None) != (self.answer is None):
            raise ConfigError("task.prompt and task.answer belong together: one of them is not set")
        try:
            for name in ("template", "prompt", "answer"):
                if (source := getattr(self, name)) is not None and source != _PLAIN:
                    compile_template(source, what=f"task.{name}")
        except DataError as error:
            raise ConfigError(str(error)) from None
        if self.template not in (None, _PLAIN) and MESSAGES not in template_variables(self.template):
            shown = self.template if len(self.template) < 60 else f"{self.template[:60]}..."
            raise ConfigError(f"task.template is the text of a Jinja template that reads messages, got {shown!r}")
        if self.format is not None:
            try:
                re.compile(self.format)
            except re.error as error:
                raise ConfigError(f"task.format must be a regular expression, got {self.format!r}: {error}") from None
        return self


class InstructionTuning(TextTask[InstructionTuningSettings]):
    """Conversations, or prompts and answers, by a decoder-only model."""

    name = "instruction-tuning"
    description = "instruction tuning"
    other_names = ("chat", "sft", "conversational", "supervised-fine-tuning", "instructions", "assistant")
    Settings = InstructionTuningSettings
    roles = CONVERSATION_ROLES
    store_columns = ("tokens", "is_answer")
    metrics = ("perplexity", "bits_per_byte", "exact_match", "chrf", "format_match")
    architecture = "decoder"
    default_preset = "gpt"
    unit = "conversation"
    attention_kind = "causal"
    head_kind = "next-token"
    receives_imports = False
    answers_prompts = True

    def __init__(self, settings: InstructionTuningSettings, codecs: Mapping[str, Codec] | None = None) -> None:
        super().__init__(settings, codecs)
        self.has_targets = bool(settings.compare_answers)

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        fields = [name for name in MESSAGE_FIELDS if name in summary.lists]
        if not fields and summary.columns_given and len(summary.names) == 1:
            fields = [name for name in MESSAGE_FIELDS if name == summary.names[0]]
        if fields:
            return Detection(f"conversations ({fields[0]})", confidence=0.95)
        form = conversation_columns(summary.names)
        if form is None or len(form) == 1 or summary.has_column("chosen", "rejected") or summary.has_images:
            return None
        return Detection(f"prompts ({', '.join(form[:-1])}) and answers ({form[-1]})", confidence=0.7)

    @property
    def chat_template(self) -> str:
        """The Jinja source of the template."""
        return PLAIN_TEMPLATE if self.settings.template in (None, _PLAIN) else self.settings.template

    @cached_property
    def chat(self) -> Chat:
        """Encodes conversations by the template and the tokenizer."""
        return Chat(self.chat_template, self.tokenizer)

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        prompt, answer = self.settings.prompt, self.settings.answer
        templates = None if prompt is None or answer is None else RowTemplates(prompt, answer)
        return open_conversations(config, rows, templates=templates, check=self._check_messages)

    def _check_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Raise a DataError where the template rejects messages, or does not write some of them."""
        try:
            render_chat(self.chat_template, messages, _BLANK_TOKENS)
            silent = silent_roles(self.chat_template, [message["role"] for message in messages])
        except TemplateLimitError:
            raise
        except DataError as error:
            raise DataError(f"messages that cannot be rendered: {error}") from None
        if silent:
            raise DataError(f"the role {silent[0]!r}, which the chat template does not write")

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared[TokenStore]:
        prepared = super().prepare(config, rows)
        limit, notes = self.settings.max_length, list(prepared.notes)
        for store, which in ((prepared.train, "training"), (prepared.valid, "validation")):
            if num_long := int((store.lengths() > limit).sum()):
                sizes = f"{num_long:,} of {format_count(len(store), which + ' conversation')}"
                notes.append(f"cut to their last {limit:,} tokens: {sizes} with more than task.max_length")
                log_warning(notes[-1])
        return replace(prepared, notes=notes)

    @property
    def max_row_length(self) -> int | None:
        return self.settings.max_length if self.settings.too_long == "leave-out" else None

    def cache_key(self) -> dict[str, Any]:
        names = {"template", "prompt", "answer", "answers", "too_long"}
        return {**super().cache_key(), **self.settings.model_dump(include=names)}

    def texts_of(self, row: Sequence[str]) -> list[str]:
        return [message["content"] for message in conversation_of(row[0], row[1])]

    def choose(self, context: ChoiceContext) -> Choices:
        """A tokenizer that keeps line ends: answers are read as they are written."""
        found = super().choose(context)
        if found.task.get("tokenizer") in (None, "bpe", "characters"):
            return found
        reason = {"tokenizer": "bpe: answers keep their spaces and line ends"}
        return Choices({"tokenizer": "bpe", **self.vocabulary("bpe", context)}, reasons=reason)

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        """The tokenizer is trained on what the template writes, its own words included."""
        rendered = (
            render_chat(self.chat_template, conversation_of(row[0], row[1]), _BLANK_TOKENS)
            for row in data.whole_sample()
        )
        return {"text": fit_tokenizer(rendered, self.settings, data)}

    def notes(self) -> list[str]:
        return [*super().notes(), f"chat template: {self._template_name}"]

    @property
    def _template_name(self) -> str:
        if self.chat_template == PLAIN_TEMPLATE:
            return "plain, each message between the start and the end token"
        return format_count(len(self.chat_template.splitlines()), "line") + " of Jinja"

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        last_only = self.settings.answers == "last"
        found = [self.chat.encode_conversation(conversation_of(*row[:2]), last_only=last_only) for row in rows]
        return [[each.tokens for each in found], [[int(flag) for flag in each.is_answer] for each in found]]

    def defaults(self, context: DefaultsContext) -> Defaults:
        if context.method == "head":
            raise ConfigError(
                "instruction tuning adds no head to its base, so there is nothing to train with the method head: "
                "lora, top and all are possible"
            )
        train = {
            **DECODER_TRAIN_DEFAULTS,
            "optimizer": "muon" if context.model.can_use_muon and not context.is_finetuned else "adamw",
            "batch_tokens": BATCH_TOKENS[context.device],
        }
        answers = [row[1] for row in context.data.held_out["valid"][:_COMPARED_ROWS]]
        task = {
            "pack": context.model.can_isolate_documents,
            "compare_answers": sum(map(len, answers)) <= _COMPARED_CHARACTERS,
        }
        if context.method != "lora":
            return Defaults(train=train, task=task)
        rate = float(f"{_ADAPTER_RATE / context.model.model_dim**1.5:.2g}")
        reason = f"{rate:g}: there is no new head to learn, and larger changes forget other text"
        return Defaults(
            train=train, task=task, finetune_train={"learning_rate": rate}, reasons={"train.learning_rate": reason}
        )

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        if self.settings.pack and not model.can_isolate_documents:
            raise ConfigError(f"models of family {model.family} cannot isolate conversations: task.pack must be false")
        if self.settings.format is not None and not self.settings.compare_answers:
            raise ConfigError("task.format is matched with generated answers: task.compare_answers must be true")

    def num_positions(self, data: Prepared) -> int:
        return self.settings.max_length

    def build(self, model: ModelConfig, head: HeadConfig) -> nn.Module:
        return build_decoder(model, self.tokenizer.vocab_size)

    def batches(self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False) -> Any:
        settings = self.settings
        return PackedBatches(
            data.train, self.tokenizer, window=settings.max_length, batch_tokens=batch_tokens, seed=seed,
            packs=settings.pack, is_padded=has_fixed_shapes,
        )  # fmt: skip

    def validation_batches(self, data: Prepared) -> Iterator[WindowBatch]:
        store: Any = data.valid
        for rows in _runs_within(store.lengths()):
            yield self._separate(zip(*(store.sequences(column, rows) for column in (0, 1)), strict=True))

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[WindowBatch]:
        """In the order of the rows, so that runs with different tokenizers are compared row by row."""
        tokens, flags = self.encode_rows(rows)
        for some in _runs_within([len(each) for each in tokens]):
            yield self._separate((np.array(tokens[row]), np.array(flags[row])) for row in some)

    def _separate(self, conversations: Any) -> WindowBatch:
        """One conversation in each row."""
        limit = self.settings.max_length
        windows = [[(tokens[-limit:], flags[-limit:])] for tokens, flags in conversations]
        return make_packed_batch(windows, self.tokenizer, isolate=False)

    def loss(self, model: Any, batch: WindowBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the tokens of answers."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        hidden_states = model.hidden_states(batch.tokens, documents=documents_for(model, batch))
        return next_token_loss(model, hidden_states, batch.targets, objective)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[WindowBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each conversation's answers."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            hidden_states = model.hidden_states(batch.tokens, documents=documents_for(model, batch))
            some_losses, some_counts = row_losses(model, hidden_states, batch.targets)
            losses += some_losses
            counts += some_counts
        return Likelihoods(losses, counts)

    def predictor(self, model: Any, config: GenerationConfig) -> "InstructionPredictor":
        return InstructionPredictor(model, self.chat, config)

    def answer_messages(
        self, predictor: Any, messages: Sequence[Mapping[str, Any]], template: str | None
    ) -> Iterator[str]:
        return answer_by_template(predictor, messages, template, self.tokenizer)

    def metric_names(self) -> tuple[str, ...]:
        compared = ("exact_match", "chrf") if self.settings.compare_answers else ()
        return ("perplexity", "bits_per_byte", *compared, *(("format_match",) if self.settings.format else ()))

    def examples(self, data: EvaluationData) -> Examples:
        settings = self.settings
        how: dict[str, str | int | float] = {"max_length": settings.max_length, "answers": settings.answers}
        found = Examples(
            losses=data.likelihoods.losses,
            num_tokens=data.likelihoods.counts,
            num_bytes=sum(len(text.encode()) for row in data.rows for text in self._answers_of(row)),
            settings=how | ({"format": settings.format} if settings.format else {}),
        )
        if not data.predictions:
            return found
        outputs = [each.output for each in data.predictions]
        return replace(found, outputs=outputs, targets=[row[1] for row in data.rows])

    def _answers_of(self, row: Sequence[str]) -> list[str]:
        messages = conversation_of(row[0], row[1])
        found = [message["content"] for message in messages if message["role"] == "assistant"]
        return found if self.settings.answers == "all" else found[-1:]

    def selects_by_score(self, device: Literal["cpu", "cuda"]) -> bool:
        """By the loss: the headline is the perplexity."""
        return False

    def baseline(self, data: Prepared) -> Baseline:
        """N-grams of the model's own tokens, and the answer to the nearest training prompt."""
        store: Any = data.train
        tokens = np.concatenate(store.sequences(0, range(len(store))))[-_NGRAM_TOKENS:]
        ngrams = KneserNey(tokens, vocab_size=self.tokenizer.vocab_size, order=_NGRAM_ORDER)
        pairs = [(row[0], row[1]) for row in data.train_rows()]
        nearest, limit = NearestTarget(pairs) if self.settings.compare_answers else None, self.settings.max_length

        def predict(rows: Sequence[str]) -> BaselinePredictions:
            read = [json.loads(row) for row in rows]
            outputs = nearest([prompt for prompt, _ in read]) if nearest is not None else ()
            losses, counts = [], []
            for tokens, flags in zip(*self.encode_rows(read), strict=True):
                marked = np.array(flags[-limit:][1:], bool)
                losses.append(float(ngrams.losses(np.array(tokens[-limit:]))[marked].sum()))
                counts.append(int(marked.sum()))
            return BaselinePredictions(outputs, losses=losses, num_tokens=counts)

        name = f"Kneser-Ney {_NGRAM_ORDER}-grams"
        name += ", and the answer to the nearest training prompt" if nearest is not None else ""
        return Baseline(name, predict, len(store), "conversations")

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        """The baseline reads prompts with their answers, as JSON: likelihoods are of these answers."""
        found = baseline.predict([json.dumps(row[:2]) for row in rows])
        predictions = [Prediction(row[0], output) for row, output in zip(rows, found.outputs, strict=False)]
        likelihoods = Likelihoods(list(found.losses), list(found.num_tokens))
        return self.examples(EvaluationData(rows, predictions, likelihoods))

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        """Bits per byte first: perplexities compare only for one vocabulary."""
        return ("bits_per_byte", *(name for name in self.metric_names() if name != "bits_per_byte"))

    def comparison_notes(self, runs: Sequence[ComparedRun]) -> list[str]:
        return [f"scores are on the answers of the {runs[0].role} conversations"]

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        shown = data.rows[0][1] if data.rows else ""
        inputs = [(shown, shown)] if shown.strip() else []
        facts = {**self.facts(), "chat template": self._template_name}
        names = ("prompt", "expected", "generated")
        return ReportContent(self.samples(model, data), names, facts=facts, attention_inputs=inputs)

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        if data.predictions:
            return super().samples(model, data)
        rows = data.rows[: NUM_SAMPLES // 20]
        found = self.predictor(model, GenerationConfig(max_tokens=100))([row[0] for row in rows])
        return [
            {"source": row[0], "target": row[1], "prediction": each.output}
            for row, each in zip(rows, found, strict=True)
        ]

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(inputs=("prompt",), streams=True, placeholder="A question, or an instruction")

    def score_text(self, model: Any, text: str) -> TextScore:
        return score_text(model, self.tokenizer, text)


class InstructionPredictor(LanguageModelingPredictor):
    """Answers prompts: texts, or messages as JSON."""

    def __init__(self, model: Any, chat: Chat, config: GenerationConfig) -> None:
        super().__init__(model, chat.tokenizer, config)
        self._chat = chat

    def stream(self, prompt: str) -> Iterator[str]:
        """The answer to a prompt, piece by piece."""
        yield from self._decode(self._request(prompt), [])

    def _request(self, prompt: str) -> Request:
        seed = mix(self._config.seed, row_hash((prompt,)))
        return Request(self._chat.encode(parse_prompt(prompt)), self._limit, seed=seed)


class PackedBatches:
    """Conversations in windows, several in each, in shuffled order; each conversation once in an epoch.

    What shares a window is the same in each epoch, by best fit in a shuffled order; the order of windows differs.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        *,
        window: int,
        batch_tokens: int,
        seed: int,
        packs: bool = True,
        is_padded: bool = False,
    ) -> None:
        if len(store) == 0:
            raise ConfigError("there are no conversations to make batches of")
        self._store, self._tokenizer, self._window, self._seed = store, tokenizer, window, seed
        self._isolates, self._is_padded = packs, is_padded
        order = permute(np.arange(len(store)), len(store), mix(seed, 0))
        lengths = np.minimum(store.lengths(), window) - 1
        self.windows: list[list[int]] = pack_windows(lengths, order, window) if packs else [[row] for row in order]
        longest = window if packs else int(lengths.max())
        self.per_epoch = -(-len(self.windows) // max(1, batch_tokens // max(1, longest)))

    def batch(self, number: int) -> WindowBatch:
        epoch, place = divmod(number, self.per_epoch)
        start, end = (len(self.windows) * part // self.per_epoch for part in (place, place + 1))
        chosen = permute(np.arange(start, end), len(self.windows), mix(self._seed, epoch, 1))
        windows = [
            [
                (tokens[-self._window :], flags[-self._window :])
                for tokens, flags in zip(*(self._store.sequences(c, self.windows[w]) for c in (0, 1)), strict=True)
            ]
            for w in chosen
        ]
        length = self._window if self._is_padded else None
        return make_packed_batch(windows, self._tokenizer, isolate=self._isolates, length=length)


def pack_windows(lengths: NDArray[np.int64], order: NDArray[np.int64], window: int) -> list[list[int]]:
    """Rows in windows of `window` positions, each in the fullest window that has room for it.

    Example:
        >>> pack_windows(np.array([5, 4, 3, 2]), np.arange(4), 7)
        [[0, 3], [1, 2]]
    """
    windows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(window + 1)]
    for row in order.tolist():
        length = int(lengths[row])
        room = next((room for room in range(length, window + 1) if by_room[room]), None)
        if room is None:
            windows.append([row])
            place, left = len(windows) - 1, window - length
        else:
            place, left = by_room[room].pop(), room - length
            windows[place].append(row)
        by_room[left].append(place)
    return windows


def make_packed_batch(
    windows: Sequence[Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]],
    tokenizer: Tokenizer,
    *,
    isolate: bool,
    length: int | None = None,
) -> WindowBatch:
    """Windows of conversations, each given by its tokens and by 1 for those that are targets.

    Args:
        windows: The conversations of each window.
        tokenizer: For the padding.
        isolate: Whether conversations of a window are separate documents; without it there is one in each.
        length: The positions of a window; None for those of the fullest one.
    """
    sizes = [sum(len(tokens) - 1 for tokens, _ in window) for window in windows]
    width = max(sizes) if length is None else length
    tokens = np.full((len(windows), width), tokenizer.pad, np.int64)
    targets = np.full((len(windows), width), IGNORED, np.int64)
    documents = np.zeros((len(windows), width), np.int64)
    for row, window in enumerate(windows):
        place = 0
        for number, (ids, flags) in enumerate(window):
            end = place + len(ids) - 1
            tokens[row, place:end] = ids[:-1]
            targets[row, place:end] = np.where(flags[1:] > 0, ids[1:], IGNORED)
            documents[row, place:end] = number
            place = end
        documents[row, place:] = len(window)  # padding attends to padding only
    num_targets = int((targets != IGNORED).sum())
    kept = torch.from_numpy(documents) if isolate else None
    padding = len(windows) * width - sum(sizes)
    return WindowBatch(
        torch.from_numpy(tokens), torch.from_numpy(targets), kept, num_targets, num_padding=padding
    )  # fmt: skip


def _runs_within(lengths: Any) -> Iterator[list[int]]:
    """Consecutive rows in batches of about `EVALUATION_TOKENS` tokens with padding."""
    rows: list[int] = []
    longest = 0
    for row, length in enumerate(lengths):
        longest = max(longest, int(length))
        if rows and (len(rows) + 1) * longest > EVALUATION_TOKENS:
            yield rows
            rows, longest = [], int(length)
        rows.append(row)
    if rows:
        yield rows
