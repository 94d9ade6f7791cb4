"""A run in use: what one can do with a trained model, from Python as from the command line."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.adapters.lora import merge_lora
from regard.data.config import DataConfig
from regard.data.files import plain_name
from regard.data.sources import Rows
from regard.errors import CheckpointError, ConfigError, DataError, DeviceError, RunError
from regard.evaluation.scores import Score
from regard.explanation.highlights import Highlights, Judgement
from regard.explanation.maps import AttentionMaps
from regard.explanation.record import explain_pair, explain_reading, explain_text
from regard.generation.config import GenerationConfig
from regard.generation.inference import ready
from regard.logging import log_info, log_warning, progress_bar
from regard.selection.bounds import DELTA
from regard.selection.certificate import Certificate
from regard.selection.ledger import FILE, openings
from regard.selection.neighbours import look_around
from regard.selection.sealed import rows_digest, without_sealed
from regard.tasks import find_task
from regard.tasks.aspects import Aspects
from regard.tasks.blanks import has_blank
from regard.tasks.embedding import Embedding, embed_texts
from regard.tasks.language import score_text
from regard.tasks.masked import Masked
from regard.tasks.recognition import embed_pictures
from regard.tasks.task import Likelihoods, Prediction, Task, Writer
from regard.text.chat import Chat
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import (
    Undrawn,
    copy_weights,
    load_checkpoint,
    load_weights,
    note_of,
    read_tensors,
    trained_weights,
)
from regard.training.finetuning import adapt, base_weights
from regard.training.folder import RunFolder
from regard.training.precision import choose_hardware, find_device, threads
from regard.training.settings import RunSettings

_ROWS_AT_ONCE, _BATCH_TOKENS = 256, 8_192
_EXPLAINED = ("translation", "language")
"""Tasks that are explained while they answer."""
_READING = ("classification", "regression", "tagging", "answering", "masked", "embedding")
"""Tasks whose models have a body that reads; its attention is drawn on request."""
_KEPT_WRITERS = 8
"""Ways of writing that are kept ready: a server may be asked for any number of them."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""What stands in a string for a byte that is not UTF-8."""


@dataclass(frozen=True)
class Evaluation:
    """Scores by name, and what they were computed from."""

    scores: dict[str, Score]
    headline: str
    rows: list[tuple[str, ...]]
    outputs: list[str]
    likelihoods: Likelihoods

    def to_json(self) -> dict[str, Any]:
        """Each score under its name, and how many rows there were."""
        return {**{name: score.to_json() for name, score in self.scores.items()}, "rows": len(self.rows)}


class Run:
    """A folder with a trained model, ready to predict, to be judged and to be looked into.

    Example:
        run = regard.load("runs/dates")
        run.predict("4 March 2025")
    """

    def __init__(self, path: str | os.PathLike[str], *, device: str = "auto") -> None:
        self.folder = RunFolder(path)
        self.settings: RunSettings = self.folder.read_settings()
        self.tokenizer: Tokenizer = self.folder.read_tokenizer()
        self.task: Task = find_task(self.settings.task)
        self.device: torch.device = find_device(device)
        self._writers: dict[GenerationConfig, Writer] = {}

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def model(self) -> nn.Module:
        """The best model of the run, on the run's device, in evaluation mode."""
        model = self.unmerged()
        merge_lora(model)
        return model

    def unmerged(self) -> nn.Module:
        """The same model anew, with low-rank corrections beside the weights that they correct, where it has some."""
        settings = self.settings
        with Undrawn():
            model = self.task.build_model(settings.model, self.tokenizer, data=settings.data, head=settings.head)
        tuned = settings.finetune
        if tuned is not None and tuned.is_adapter:
            adapt(model, tuned, base_weights(tuned))
            copy_weights(trained_weights(model), self._weights())
        else:
            load_weights(model, self._weights())
        return model.to(self.device).eval()

    def predict(self, inputs: str | Sequence[str], *, aspect: str | None = None, **options: Any) -> Any:
        """The model's output for an input, or the list of outputs for a list of inputs.

        Where aspects are judged and none is named, the output is a label for each aspect. Options are those of
        `GenerationConfig`: beam_size, temperature, top_p and so on.
        """
        if isinstance(inputs, str):
            return self.predict([inputs], aspect=aspect, **options)[0]
        answers = self.answers(inputs, aspect=aspect, **options)
        if self.task.name == Aspects.name and aspect is None:
            return [{str(each.aspect): each.output for each in some} for some in answers]
        return [some[0].output for some in answers]

    def predictions(self, inputs: Sequence[str], *, aspect: str | None = None, **options: Any) -> list[Prediction]:
        """The outputs with what else is known of them; several for an input where no aspect is named."""
        return [prediction for some in self.answers(inputs, aspect=aspect, **options) for prediction in some]

    def answers(self, inputs: Sequence[str], *, aspect: str | None = None, **options: Any) -> list[list[Prediction]]:
        """For each input what the model makes of it: one prediction, or one for each aspect."""
        config = self.generation(**options)
        self._require_text(inputs)
        questions = [self._questions(text, aspect) for text in inputs]
        found = iter(self.answered([question for some in questions for question in some], config))
        return [list(islice(found, len(some))) for some in questions]

    def _questions(self, text: str, aspect: str | None) -> list[str]:
        """What is asked about an input: it alone, but for the aspects of a text."""
        if isinstance(self.task, Aspects):
            return self.task.questions(text, aspect, self.settings.data)
        if aspect is not None:
            raise RunError(f"only a run for aspects can be asked for one: {self.path} was trained for {self.task.name}")
        return [text]

    def answered(self, inputs: Sequence[str], config: GenerationConfig) -> list[Prediction]:
        chunks = [inputs[start : start + _ROWS_AT_ONCE] for start in range(0, len(inputs), _ROWS_AT_ONCE)]
        bar = progress_bar(chunks, "predicting", total=len(chunks)) if len(chunks) > 1 else chunks
        with threads(1):  # a step of decoding is too little work to share out
            return [prediction for chunk in bar for prediction in self.writer(config)(chunk)]

    def generation(self, **options: Any) -> GenerationConfig:
        """The run's way of writing, with some options changed."""
        values = {**self.settings.generate.model_dump(), **options}
        return GenerationConfig.read(values, section="generate")

    def evaluate(
        self,
        data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        *,
        rows: Rows | None = None,
        stride: int | None = None,
        **options: Any,
    ) -> Evaluation:
        """Score the model on a file (or rows) of the training file's kind; unset, on the validation rows.

        Running text is read in windows that start `stride` tokens apart; unset, side by side.
        """
        if data is None and rows is None:
            return self._evaluate(self.folder.read_held_out("valid"), "valid", stride=stride, **options)
        evaluation = self._evaluate(self._read(data, rows), None, stride=stride, **options)
        self._note_file(data, evaluation, **options, **({} if stride is None else {"stride": stride}))
        return evaluation

    def judge(self, rows: list[tuple[str, ...]], **options: Any) -> Evaluation:
        """Score the model on rows in the form that a run folder holds them back in; that is not written down."""
        return self._evaluate(rows, None, **options)

    def test(self, *, why: str = "test", **options: Any) -> Evaluation:
        """Open the sealed test set and score the model on its rows; both are written down, and `why`."""
        before, others = len(openings(self.folder.read_looks())), look_around(self.path).openers
        rows = self.folder.open_test(why, self.hypothesis(**options))
        if before:
            log_warning(
                f"the test set was opened {before} time(s) before, and now once more: "
                "a choice made in between spoils the score, and the certificate says so"
            )
        elif others:
            log_warning(
                f"{others[0]} beside it has opened the same test rows: "
                "to keep the better of them is a choice by these rows, and the certificate says so"
            )
        return self._evaluate(rows, "test", **options)

    def certificate(self, metric: str | None = None, *, delta: float = DELTA) -> Certificate:
        """What can be promised of the headline score, or of another, and whether the test set is sealed."""
        return self.folder.certificate(metric, delta=delta)

    def note(
        self, role: str, what: str, evaluation: Evaluation, *, about: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Write to the ledger what was seen of a set; `about` is what else is to be known of the set."""
        found, more = evaluation.to_json(), {"rows": len(evaluation.rows), "headline": evaluation.headline}
        self.folder.ledger.add(role, what, self.hypothesis(**options), found, **more, **(about or {}))

    def _note_file(self, data: Any, evaluation: Evaluation, **options: Any) -> None:
        """Write down a look at rows from elsewhere, and say where they have judged more than this."""
        paths = [] if data is None else [data] if isinstance(data, str | os.PathLike) else list(data)
        name, digest = ", ".join(Path(path).name for path in paths) or "memory", rows_digest(evaluation.rows)
        try:
            self.note(FILE, "evaluation", evaluation, about={"name": name, "hash": digest}, **options)
        except DeviceError as error:
            log_warning(f"this look is not written down: {error}")
            return
        if (count := look_around(self.path).num_by_file[digest]) > 1:
            log_info(f"these rows have judged {count:,} hypotheses here: to keep the best is a choice by them")

    def hypothesis(self, **options: Any) -> str:
        """What is judged when this run is: its weights, by their step, and how they are asked if not as usual."""
        step = note_of(self.folder.model_path).get("step", 0)
        return ", ".join([f"step {step}", *(f"{name} {value}" for name, value in sorted(options.items()))])

    def highlights(self, text: str, *, aspect: str | None = None) -> Highlights:
        """Of a run for aspects: which words of `text` mattered for `aspect`, or for each."""
        if self.task.name != Aspects.name:
            raise RunError(f"words are weighed where aspects are judged, {self.path} is for {self.task.name}")
        return highlighted(self.predictions([text], aspect=aspect))

    def attention(self, text: str, **options: Any) -> AttentionMaps:
        """Who looked at whom while the model answered `text`, or read it."""
        model: Any = self.model
        if self.task.name not in (*_EXPLAINED, *_READING):
            raise RunError(f"maps of attention are drawn where text is read, {self.path} is for {self.task.name}")
        if self.task.name in _READING:
            return explain_reading(model.body, self.tokenizer, text, partial(self._read_once, text))
        if not self.task.has_answers:
            self._require_text([text])
            return explain_text(model, self.tokenizer, text)
        return explain_pair(model, self.tokenizer, text, self.predict(text, **options))

    def _read_once(self, text: str) -> str:
        """What the model says of a text; of one that it only has a vector for, that it is one."""
        self._require_text([text])
        if self.task.name == Embedding.name or (self.task.name == Masked.name and not has_blank(text)):
            vector = embed_texts(self.model, self.tokenizer, [text], self.settings.data)[0]
            return f"a vector of {len(vector)} numbers"
        writer = self.task.writer(self.model, self.tokenizer, self.generation(), self.settings.data)
        return writer([text])[0].output

    def generate(self, prompt: str = "", **options: Any) -> str:
        """What may come behind `prompt`; for a seed always the same. Options are those of `GenerationConfig`."""
        return "".join(self.stream(prompt, **options))

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """What `generate` gives, piece by piece as it is written."""
        self._require_language("generate")
        if prompt:
            self._require_text([prompt])
        config = self.generation(**options)
        if config.beam_size > 1:
            raise ConfigError(f"beam search knows its text only at the end: it cannot stream, got {config.beam_size=}")
        writer: Any = self.writer(config)
        with threads(1):
            yield from writer.stream(prompt)

    def chat(self, messages: str | Sequence[Mapping[str, str]], **options: Any) -> Iterator[str]:
        """What the model answers to a conversation, or to one question, piece by piece as it is written.

        Messages have a `role`, such as system, user or assistant, and `content`; the model's own chat template puts
        them together.
        """
        self._require_language("chat")
        template = self.folder.read_chat_template()
        if template is None:
            raise RunError(
                f"{self.path} has no chat template: it was not trained to answer, and can only go on from a prompt"
            )
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        tokens = Chat(template, self.tokenizer).encode(conversation)
        writer: Any = self.writer(self.generation(**options))
        with threads(1):
            yield from writer.answer(tokens)

    def embed(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """A vector of length 1 for a text, or a row for each of a list of them: products of two are cosines.

        A model for recognition takes paths of pictures in the place of texts.
        """
        if isinstance(texts, str):
            return self.embed([texts])[0]
        self._require_text(texts)
        if self.task.name == "recognition":
            model: Any = self.model
            return embed_pictures(model, texts, self.settings.data)
        return embed_texts(self.model, self.tokenizer, texts, self.settings.data)

    def score(self, texts: str | Sequence[str]) -> Any:
        """How probable the model holds a text from its beginning to its end, token by token; or a list of them."""
        self._require_language("score")
        if isinstance(texts, str):
            return self.score([texts])[0]
        self._require_text(texts)
        model: Any = self.model
        return [score_text(model, self.tokenizer, text) for text in texts]

    def writer(self, config: GenerationConfig) -> Writer:
        """What writes in this way; it is kept for the next time."""
        writer = self._writers.pop(config, None)
        if writer is None:
            writer = self.task.writer(self.inference_model, self.tokenizer, config, self.settings.data)
        for oldest in list(self._writers)[: 1 - _KEPT_WRITERS]:
            del self._writers[oldest]
        self._writers[config] = writer
        return writer

    @cached_property
    def inference_model(self) -> Any:
        """The model made ready to write: on a GPU in the precision that it was trained in."""
        hardware = choose_hardware(str(self.device), self.settings.train.precision, self.settings.model.model_dim)
        return ready(self.model, hardware.precision if self.device.type == "cuda" else "float32")

    def _require_language(self, verb: str) -> None:
        if self.task.name != "language":
            raise RunError(f"only a language model can {verb}: {self.path} was trained for {self.task.name}")

    def _require_text(self, inputs: Sequence[str]) -> None:
        for number, text in enumerate(inputs, start=1):
            if not text.strip():
                raise DataError(f"input {number} is empty: there is nothing to go by")
            if _LONE_SURROGATE.search(text):
                raise DataError(f"input {number} is not UTF-8: {text!r}")
        if unknown := self.tokenizer.count_unknown(self.tokenizer.encode(inputs)):
            log_warning(f"{unknown:,} tokens of the input are unknown to the vocabulary")

    def _evaluate(
        self, rows: list[tuple[str, ...]], role: str | None, *, stride: int | None = None, **options: Any
    ) -> Evaluation:
        if not rows:
            raise DataError("there are no rows to evaluate on")
        config = self.settings.data if stride is None else self.settings.data.changed(stride=stride)
        if stride is not None and not 1 <= stride <= (config.window or 0):
            raise ConfigError(f"stride must lie in 1 to the window of {config.window} tokens, got {stride}")
        questions = [self.task.question(row) for row in rows] if self.task.has_answers else []
        predictions = self.predictions(questions, **options) if questions else []
        outputs = [prediction.output for prediction in predictions]
        likelihoods = self._likelihoods(rows, config)
        scores = self.task.scores(rows, predictions, likelihoods, config)
        by_name, headline = {score.name: score for score in scores}, self.task.headline(rows)
        headline = headline if headline in by_name else scores[0].name  # of several labels a row there is no accuracy
        result = Evaluation(by_name, headline, rows, outputs, likelihoods)
        if role is not None:
            self.note(role, "evaluation", result, **options)
        return result

    def _likelihoods(self, rows: list[tuple[str, ...]], config: DataConfig) -> Likelihoods:
        batches = self.task.rows_as_batches(rows, self.tokenizer, config)
        return self.task.negative_log_likelihoods(self.model, batches, self.device)

    def _read(self, data: Any, rows: Rows | None) -> list[tuple[str, ...]]:
        own = self.settings.data
        paths = [] if data is None else [str(p) for p in ([data] if isinstance(data, str | os.PathLike) else data)]
        endings = {Path(plain_name(Path(name))).suffix for name in (*paths[:1], *own.train[:1])}
        is_alike = bool(paths and own.train) and len(endings) == 1
        config = DataConfig(
            train=paths,
            columns=own.columns,
            format=own.format if is_alike else None,
            header=own.header if is_alike else None,
            skip_bad=own.skip_bad,
            documents=own.documents,
            tokenizer=own.tokenizer,
            label_separator=own.label_separator,
            ignored_labels=own.ignored_labels,
            picture=own.picture,
            max_length=own.max_length,
            split_seed=own.split_seed + 1,  # of a built-in data set, rows that were not trained on
        )
        found, content_hash = self.task.read(config, rows)
        found = self._unsealed(found)
        assert self.settings.record is not None, "a run folder has a record"
        if rows is None and content_hash in self.settings.record.data_hash:
            log_warning("these are the rows the model was trained on: the scores say nothing about new ones")
        return found

    def _unsealed(self, rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The rows that are not of the sealed test set, which only its test opens."""
        marks = self.folder.test_marks()
        kept = [tuple(row) for row in without_sealed(rows, marks)]
        if rows and not kept:
            raise RunError("these rows are the sealed test set of the run: its test opens them, and writes that down")
        if len(kept) < len(rows):
            log_warning(
                f"{len(rows) - len(kept):,} of {len(rows):,} rows are of the sealed test set, and were left out"
            )
        return kept

    def _weights(self) -> dict[str, torch.Tensor]:
        try:
            return read_tensors(self.folder.model_path)[0]
        except CheckpointError as error:
            found = load_checkpoint(self.folder.checkpoints)
            if found is None:
                raise
            log_warning(f"{error}; using the newest whole checkpoint, of step {found[1]['step']}")
            tensors = found[0]
            part = "average:" if any(name.startswith("average:") for name in tensors) else "model:"
            return {name.removeprefix(part): t for name, t in tensors.items() if name.startswith(part)}


def load(path: str | os.PathLike[str], *, device: str = "auto") -> Run:
    """The run in a folder."""
    return Run(path, device=device)


def highlighted(predictions: Sequence[Prediction], wanted: str | None = None) -> Highlights:
    """Predictions about the aspects of one text, as a reader should see them."""
    judgements = [
        Judgement(str(each.aspect), each.output, each.probabilities or {}, each.weights or [], wanted)
        for each in predictions
    ]
    return Highlights(predictions[0].input, judgements)
