"""A run in use: what can be done with a trained model, from Python as from the command line."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypedDict, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.adapters.lora import merge_lora
from regard.data.formats.encodings import check_encoding
from regard.data.formats.files import uncompressed_name
from regard.data.formats.messages import format_count, format_names
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows
from regard.errors import CheckpointError, ConfigError, DataError, DeviceError, RegardError, RunError
from regard.evaluation.examples import Examples
from regard.evaluation.scores import Score
from regard.evaluation.tables import html_table
from regard.explanation.attention import (
    AttentionMaps,
    model_attention_maps,
)
from regard.explanation.attribution import Highlights
from regard.explanation.image_maps import ImageMaps, image_maps
from regard.explanation.report import certificate_summary, update_report
from regard.files import write_atomically
from regard.generation.config import GenerationConfig
from regard.logging import log_info, log_warning, progress_bar, quiet_logs
from regard.nn.inference import prepare_for_inference
from regard.runs.attention import attention_of, input_tokenizer
from regard.runs.baseline import BaselineResult
from regard.runs.commands import next_commands
from regard.runs.conversation import Conversation
from regard.runs.evaluation import Evaluation
from regard.runs.folder import RunFolder
from regard.runs.tables import ROWS_AT_ONCE, TableInputs, check_out, predict_subjects, write_table
from regard.selection.bounds import DELTA
from regard.selection.certificate import Certificate
from regard.selection.ledger import FILE, openings_in, weights_name
from regard.selection.sealed import rows_digest, without_sealed
from regard.selection.siblings import read_ledgers
from regard.tasks.capabilities import (
    AspectPredictor,
    Embedder,
    Forecaster,
    ImageExplainer,
    ImageGenerator,
    MessageAnswerer,
    OutputDrawer,
    RolloutTask,
    SampleScorer,
    SeriesForecast,
    StridedEvaluator,
    SubjectPredictor,
    TextScore,
    TextScorer,
    capability,
    forecast_plot,
)
from regard.tasks.content import DrawnImage, Prediction
from regard.tasks.registry import make_task
from regard.tasks.task import EvaluationData, Predictor, Task
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import (
    SkipInit,
    checkpoint_paths,
    copy_weights,
    files_of,
    load_checkpoint,
    load_weights,
    note_of,
    read_tensors,
    trained_weights,
)
from regard.training.finetuning import adapt, base_folder, base_weights, load_base
from regard.training.precision import Hardware, choose_hardware, find_device, threads
from regard.training.settings import ResolvedSettings

if TYPE_CHECKING:
    from regard.runs.rollout import Rollout

_MANY_INPUTS = 100
"""Fewer take less time than it takes to measure which cores are free."""
_MOST_PREDICTORS = 8
"""Predictors that are kept, by their generation settings: a server may be asked for any number of them."""
_MOST_FILES, _SHOWN = 2, 40
"""More names than those of two aligned files are rather texts; so many characters of one are in the message."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""How Python represents a byte that is not UTF-8."""

Output = str | dict[str, str]
"""The output for an input; for aspect sentiment without a named aspect, a label for each aspect."""
AnyPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class GenerationOptions(TypedDict, total=False):
    """Options of generation, which override the run's `[generate]` settings."""

    beam_size: int
    length_penalty: float
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    max_tokens: int | None
    seed: int
    quantization: Literal["int8"] | None


@dataclass(frozen=True)
class BestOf:
    """The best of several continuations of a prompt."""

    text: str
    reward: float
    mean_reward: float
    """The mean reward of all continuations."""


class Run:
    """A folder with a trained model, to predict, evaluate, explain and serve.

    Example:
        run = regard.load("runs/dates")
        run.predict("4 March 2025")
    """

    def __init__(self, path: str | os.PathLike[str], *, device: str = "auto") -> None:
        self.folder = RunFolder(path)
        self.settings: ResolvedSettings = self.folder.read_settings()
        self.task: Task[Any] = make_task(self.settings.task, self.folder.read_codecs(self.settings))
        self.device: torch.device = find_device(device)
        self._predictors: dict[GenerationConfig, Predictor] = {}

    def __repr__(self) -> str:
        facts = [f"task={self.task.name!r}", f"model={self.settings.preset!r}"]
        if report := self.last_report():
            facts.append(f"{report['headline']}={report['scores'][report['headline']]['value']:.4g}")
        return f"Run({str(self.path)!r}, {', '.join(facts)})"

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        rows = {"task": self.task.name, "model": self.settings.preset, "folder": str(self.path)}
        report = self.last_report()
        for name, score in (report["scores"] if report else {}).items():
            if isinstance(score, Mapping):
                interval = "" if score["interval"] is None else " [{:.4g}, {:.4g}]".format(*score["interval"])
                rows[name] = f"{score['value']:.4g}{interval}"
        return html_table((), list(rows.items()))

    def last_report(self) -> dict[str, Any] | None:
        """The newest line of the ledger that a report was written for."""
        reports = [line for line in self.folder.read_ledger() if line["event"] == "report"]
        return reports[-1] if reports else None

    @property
    def baseline(self) -> BaselineResult | None:
        """The baseline's scores on the validation rows, and how the model compares; None where there is none."""
        return self.folder.read_baseline()

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the inputs."""
        return input_tokenizer(self.task)

    @cached_property
    def model(self) -> nn.Module:
        """The best model of the run, on the run's device, in evaluation mode."""
        model = self.unmerged()
        merge_lora(model)
        return model

    def unmerged(self) -> nn.Module:
        """A new copy of the model; with LoRA, its low-rank updates are separate from the weights."""
        settings = self.settings
        with SkipInit(self._num_bytes()):
            model = self.task.build(settings.model, settings.head)
        tuned = settings.finetune
        if tuned is not None and tuned.is_adapter:
            adapt(model, tuned, base_weights(tuned, self.path))
            copy_weights(trained_weights(model), self._weights())
        else:
            load_weights(model, self._weights())
        return model.to(self.device).eval()

    @overload
    def predict(  # pyright: ignore[reportOverlappingOverload]  a string is a sequence of strings
        self, inputs: str, *, aspect: str | None = None, **options: Unpack[GenerationOptions]
    ) -> Output: ...

    @overload
    def predict(
        self, inputs: Sequence[str], *, aspect: str | None = None, **options: Unpack[GenerationOptions]
    ) -> list[Output]: ...

    def predict(
        self, inputs: str | Sequence[str], *, aspect: str | None = None, **options: Unpack[GenerationOptions]
    ) -> Output | list[Output]:
        """The output for an input, or the list of outputs for a list of inputs.

        Args:
            inputs: One input or several; the parts of a pair are separated by a tab.
            aspect: For aspect sentiment: the aspect; unset, the output is a label for each aspect.
            options: Options of generation, such as `beam_size=4`.
        """
        if isinstance(inputs, str) or not isinstance(inputs, Iterable):
            return self.predict([inputs], aspect=aspect, **options)[0]
        grouped = self.predict_grouped(inputs, aspect=aspect, **options)
        return [
            some[0].output if len(some) == 1 and (aspect is not None or some[0].key is None)
            else {str(each.key): each.output for each in some}
            for some in grouped
        ]  # fmt: skip

    def predict_full(
        self, inputs: Sequence[str], *, aspect: str | None = None, **options: Unpack[GenerationOptions]
    ) -> list[Prediction]:
        """Predictions with scores and probabilities; several for an input where no aspect is named."""
        grouped = self.predict_grouped(inputs, aspect=aspect, **options)
        return [prediction for some in grouped for prediction in some]

    def predict_grouped(
        self, inputs: Sequence[str], *, aspect: str | None = None, **options: Unpack[GenerationOptions]
    ) -> list[list[Prediction]]:
        """The predictions of each input: one, or one for each aspect."""
        config = self.generation(**options)
        self._check_inputs(inputs)
        expanded = self._expand(inputs, aspect)
        found = self._predict_expanded(expanded, config, has_bar=True)
        _warn_of_unseen(self._unseen_in(expanded))
        return found

    def _expand(self, inputs: Sequence[str], aspect: str | None) -> list[list[str]]:
        """For each input those that predictions are made for: itself, or with an aspect, or with each one."""
        if aspect is None and not isinstance(self.task, AspectPredictor):
            return [[text] for text in inputs]
        task = capability(self.task, AspectPredictor)
        return [task.expand_input(text, aspect) for text in inputs]

    def _unseen_in(self, expanded: Sequence[Sequence[str]]) -> list[str]:
        if not isinstance(self.task, AspectPredictor):
            return []
        return self.task.unseen_in(text for some in expanded for text in some)

    @overload
    def predict_table(
        self,
        data: str | os.PathLike[str] | Sequence[Any],
        *,
        out: None = None,
        columns: Sequence[str] | None = None,
        encoding: str | None = None,
        aspect: str | None = None,
        num_paths: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[dict[str, Any]]: ...

    @overload
    def predict_table(
        self,
        data: str | os.PathLike[str] | Sequence[Any],
        *,
        out: str | os.PathLike[str] | TextIO,
        columns: Sequence[str] | None = None,
        encoding: str | None = None,
        aspect: str | None = None,
        num_paths: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> None: ...

    def predict_table(
        self,
        data: str | os.PathLike[str] | Sequence[Any],
        *,
        out: str | os.PathLike[str] | TextIO | None = None,
        columns: Sequence[str] | None = None,
        encoding: str | None = None,
        aspect: str | None = None,
        num_paths: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[dict[str, Any]] | None:
        """The rows of a table, in their order, with a prediction for each.

        Added columns: `prediction`; `probability`, that of the prediction, where the model has one; for taggers
        `spans`. A row whose input is empty has none of them. The file `out` is complete or not written at all.

        Args:
            data: A CSV, TSV, JSON-lines, Parquet or Excel file, or rows in memory: dictionaries, lists of cells, texts.
            out: A file of any of these formats but Excel, or an open text file; unset, the rows are returned.
            columns: The columns of the input; unset, those of training where the table has them, else one of text.
            encoding: The encoding of a text file; unset, as in training, or detected.
            aspect: For aspect sentiment: the aspect; unset, a column of the table, or each aspect.
            num_paths: For events: continuations that are simulated for each subject; unset, `task.paths`.
            options: Options of generation; for events the seed of the simulation alone.
        """
        if isinstance(self.task, SubjectPredictor):
            with threads(1):
                seed = self.generation(**options).seed
                return predict_subjects(
                    self.task, self.model, data, out, columns=columns, encoding=self._encoding_of_table(data, encoding),
                    num_paths=num_paths, seed=seed,
                )  # fmt: skip
        if num_paths is not None:
            raise ConfigError(f"num_paths is for events, and this is a model for {self.task.description}")
        config = self.generation(**options)
        unseen: dict[str, None] = {}

        def predict(inputs: list[str]) -> list[list[Prediction]]:
            expanded = self._expand(inputs, aspect)
            unseen.update(dict.fromkeys(self._unseen_in(expanded)))
            return self._predict_expanded(expanded, config)

        inputs = TableInputs(
            self.task,
            own=self.folder.read_provenance().columns,
            schema=self.task.server_schema(self.folder.read_held_out("valid")[:1]),
            is_one_part=aspect is not None,
            tokenizer=self.tokenizer if self.task.tokenizer_kind else None,
        )
        encoding = self._encoding_of_table(data, encoding)
        rows = inputs.predict(data, predict, out=out, columns=columns, encoding=encoding)
        _warn_of_unseen(list(unseen))
        return rows

    def plot_timelines(
        self,
        data: str | os.PathLike[str] | Sequence[Any],
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        encoding: str | None = None,
    ) -> None:
        """Draw the events of the first subjects of a table, and the risks that were predicted over time.

        Args:
            data: A table of events, or rows in memory.
            path: A PNG or SVG file.
            columns: The columns to use; unset, all.
            encoding: The encoding of a text file; unset, as in training, or detected.
        """
        from regard.explanation.panels import require_plot_path, save_plot

        require_plot_path(path)
        task, encoding = capability(self.task, SubjectPredictor), self._encoding_of_table(data, encoding)
        save_plot(task.plot_subjects(self.model, data, columns=columns, encoding=encoding), path)

    def plot_output(self, output: str, path: str | os.PathLike[str]) -> None:
        """Draw an output that is a tree to an SVG file."""
        from regard.explanation.panels import require_plot_path

        drawer = capability(self.task, OutputDrawer)
        require_plot_path(path, (".svg",))
        write_atomically(Path(path), drawer.output_as_svg(output).encode())

    def _predict_expanded(
        self, expanded: Sequence[Sequence[str]], config: GenerationConfig, *, has_bar: bool = False
    ) -> list[list[Prediction]]:
        found = iter(self._predict([text for some in expanded for text in some], config, has_bar=has_bar))
        return [list(islice(found, len(some))) for some in expanded]

    def _predict(self, inputs: Sequence[str], config: GenerationConfig, *, has_bar: bool) -> list[Prediction]:
        chunks = [inputs[start : start + ROWS_AT_ONCE] for start in range(0, len(inputs), ROWS_AT_ONCE)]
        bar = progress_bar(chunks, "predicting", total=len(chunks)) if has_bar and len(chunks) > 1 else chunks
        with threads(1):  # a decoding step is too little work to be shared by threads
            return [prediction for chunk in bar for prediction in self.predictor(config)(chunk)]

    def generation(self, **options: Unpack[GenerationOptions]) -> GenerationConfig:
        """The run's generation settings with some options changed."""
        return GenerationConfig.read({**self.settings.generate.model_dump(), **options}, section="generate")

    def evaluate(
        self,
        data: AnyPaths | Rows | Sequence[Mapping[str, Any]] | None = None,
        *,
        encoding: str | None = None,
        columns: Sequence[str] | None = None,
        skip_bad: bool | None = None,
        all_rows: bool = False,
        stride: int | None = None,
        num_paths: int | None = None,
        log: bool = True,
        **options: Unpack[GenerationOptions],
    ) -> Evaluation:
        """Score the model on a file or on rows; unset, on the validation rows.

        Rows that are also in the run's sealed test set are left out, and counted, so that the set stays unseen.

        Args:
            data: A file of the training file's kind, two aligned ones, or rows in memory, which may be dictionaries.
            columns: The columns of the file, by name or by position from 1; unset, as in training.
            encoding: The encoding of the file; unset, as in training, or detected.
            skip_bad: Skip rows that cannot be read, however many (True), or none of them; unset, at most 5 %.
            all_rows: Score rows of the sealed test set as well; the ledger records that it was opened.
            stride: For running text: the distance between evaluation windows; unset, they do not overlap.
            num_paths: For events: continuations of each subject that are simulated and judged; unset, none.
            log: Whether the evaluation is recorded in the ledger.
            options: Options of generation.
        """
        if data is None:
            given = {"columns": columns, "encoding": encoding, "skip_bad": skip_bad, "all_rows": all_rows or None}
            if wrong := [name for name, value in given.items() if value is not None]:
                raise ConfigError(f"{wrong[0]} is for a file or rows, and the validation rows are evaluated")
            if self.settings.train.release is not None:
                raise RunError(
                    f"scores on the validation rows of {self.path} are released by {self.settings.train.release[0]} "
                    "during training only: evaluate a file, or open the test set"
                )
            rows, name = self.folder.read_held_out("valid"), "valid" if log else None
            self._warn_of_unknown(rows, "the validation set")
            evaluation = self._evaluate(rows, name, stride=stride, num_paths=num_paths, **options)
            log_info("no file is named: the scores are those of the run's validation rows")
            return evaluation
        paths, rows = split_paths_and_rows(data)
        found, is_own = self._read(paths, rows, columns=columns, encoding=encoding, skip_bad=skip_bad)
        found = self._without_released(found)
        found = self._open_sealed(found, **options) if all_rows else self._without_sealed(found)
        if is_own:
            log_warning("the model was trained on these rows: the scores do not measure generalization")
        else:
            self._warn_of_validation(found)
        self._warn_of_unknown(found, _names_of(paths) or "the table in memory")
        num_training = self._count_training(found, is_known=is_own)
        evaluation = self._evaluate(found, None, stride=stride, num_paths=num_paths, **options)
        if log:
            more = {} if stride is None else {"stride": stride}
            self._log_file(paths, evaluation, num_training, **options, **more)
        if all_rows:
            self._update_report()
        return evaluation

    def evaluate_rows(self, rows: list[tuple[str, ...]], **options: Unpack[GenerationOptions]) -> Evaluation:
        """Score the model on rows as a run folder stores them, without recording it in the ledger."""
        return self._evaluate(rows, None, **options)

    def evaluate_base(self, rows: list[tuple[str, ...]]) -> Examples:
        """What scores are computed from for the model that training started from, of a task without predictions."""
        tuned, task = self.settings.finetune, self._with_rewards(self.task)
        assert tuned is not None, "such a task continues the training of a base"
        model = task.build(self.settings.model, self.settings.head)
        load_base(model, base_weights(tuned, self.path))
        likelihoods = task.likelihoods(model.to(self.device).eval(), task.row_batches(rows), self.device)
        return task.examples(EvaluationData(rows, [], likelihoods))

    def test(self, *, reason: str = "test", **options: Unpack[GenerationOptions]) -> Evaluation:
        """Open the sealed test set and score the model on it; both are recorded in the ledger."""
        before, others = len(openings_in(self.folder.read_ledger())), read_ledgers(self.path).opened_by
        rows = self.folder.open_test(reason, self.candidate(**options))
        if before:
            log_warning(
                f"the test set has been opened {format_count(before, 'time')} before: if anything was selected by its "
                "score since, the score is too high on average, and the certificate states that"
            )
        elif others:
            log_warning(
                f"{others[0]} has opened the same test rows: selecting the better of the two runs by them makes its "
                "score too high on average, and the certificate states that"
            )
        self._warn_of_unknown(rows, "the test set")
        evaluation = self._evaluate(rows, "test", **options)
        self._update_report()
        return evaluation

    def _update_report(self) -> None:
        """Bring the certificate and the commands in the report up to date with the ledger."""
        update_report(
            self.folder.report_path, certificate=certificate_summary(self.certificate()), commands=next_commands(self)
        )

    def certificate(self, metric: str | None = None, *, delta: float = DELTA) -> Certificate:
        """Confidence bounds on the headline score or another, and whether the test set is sealed."""
        return self.folder.certificate(metric, delta=delta)

    def record(
        self, role: str, event: str, evaluation: Evaluation, *, about: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Record an evaluation in the ledger; `about` is what else is recorded about the set."""
        found, more = evaluation.to_json(), {"rows": len(evaluation.rows), "headline": evaluation.headline}
        self.folder.ledger.add(role, event, self.candidate(**options), found, **more, **(about or {}))

    def _log_file(self, paths: Sequence[str], evaluation: Evaluation, num_training: int, **options: Any) -> None:
        """Record an evaluation on other rows, and report how many candidates these rows have evaluated."""
        name, digest = _names_of(paths) or "memory", rows_digest(evaluation.rows)
        about = {"name": name, "hash": digest, **({"training_rows": num_training} if num_training else {})}
        try:
            self.record(FILE, "evaluation", evaluation, about=about, **options)
        except DeviceError as error:
            log_warning(f"the evaluation is not recorded in the ledger: {error}")
            return
        if (count := read_ledgers(self.path).num_by_file[digest]) > 1:
            log_info(
                f"{count:,} candidates have been evaluated on these rows: the score of the best of them is too high on "
                "average, and regard certificate has its bound"
            )

    def candidate(self, **options: Any) -> str:
        """What is evaluated: the weights, by their step, and generation options that differ from the settings."""
        note = note_of(self.folder.model_path)
        name = weights_name(note.get("step", 0), note.get("rollbacks", 0))
        return ", ".join([name, *(f"{name} {value}" for name, value in sorted(options.items()))])

    def highlights(self, text: str, *, aspect: str | None = None) -> Highlights:
        """For aspect sentiment: the weight of each word of `text` for `aspect`, or for each aspect."""
        task, found = capability(self.task, AspectPredictor), self.predict_full([text], aspect=aspect)
        return Highlights(found[0].input, [task.attribution(each) for each in found])

    def attention(self, text: str, **options: Unpack[GenerationOptions]) -> AttentionMaps:
        """The attention maps of the model for `text` and its output."""
        if self.task.attention_kind in ("encoder", "causal"):  # others predict first, which checks the input
            self._check_inputs([text])
        return attention_of(self.task, self.model, text, lambda: str(self.predict(text, **options)))

    def image_maps(self, path: str | os.PathLike[str]) -> ImageMaps:
        """Maps over an image: attention and rollout of a Vision Transformer, Grad-CAM of a convolutional network."""
        task = capability(self.task, ImageExplainer)
        output = str(self.predict(str(path)))
        image, label = task.image_output(output)
        return image_maps(self.model, str(path), image, prediction=output, label=label)

    def generate(self, prompt: str = "", **options: Unpack[GenerationOptions]) -> str:
        """The continuation of `prompt`, for a seed always the same; with `beam_size`, the best one of beam search."""
        if self.generation(**options).beam_size == 1:
            return "".join(self.stream(prompt, **options))
        if prompt:
            self._check_inputs([prompt])
        predictor = self._generator("generate", self.generation(**options))
        with threads(1):
            return "".join(predictor.stream(prompt))

    def stream(self, prompt: str = "", **options: Unpack[GenerationOptions]) -> Iterator[str]:
        """What `generate` returns, piece by piece."""
        if prompt:
            self._check_inputs([prompt])
        predictor = self._streaming_predictor("generate", options)
        with threads(1):
            yield from predictor.stream(prompt)

    def best_of(
        self, prompt: str, number: int, *, reward: str | os.PathLike[str], **options: Unpack[GenerationOptions]
    ) -> "BestOf":
        """The continuation of `prompt` with the highest reward of `number` sampled ones.

        Its KL divergence from the model is at most log(n) - (n - 1) / n nats (Hilton & Gao, 2022).

        Args:
            prompt: The prompt.
            number: How many continuations are sampled; continuation i has the seed `seed` + i.
            reward: The run of a reward model, or a function `module:function` of a prompt and an answer.
            options: Options of generation; unset, the temperature is 1.
        """
        from regard.runs.rewards import load_reward

        if number < 1:
            raise ConfigError(f"the number of texts must be at least 1, got {number}")
        sampled: dict[str, Any] = {"temperature": 1.0, "seed": 0, **options}
        score = load_reward(os.fspath(reward), device=str(self.device))
        texts = [self.generate(prompt, **{**sampled, "seed": sampled["seed"] + place}) for place in range(number)]
        rewards = score([prompt] * number, texts)
        best = max(range(number), key=lambda place: rewards[place])
        return BestOf(texts[best], rewards[best], sum(rewards) / number)

    def score_samples(self, texts: Sequence[str]) -> list[Score]:
        """Metrics of generated texts as a whole: for molecules validity, uniqueness and novelty.

        The data that the run was trained on is read again.
        """
        scorer = capability(self.task, SampleScorer)
        rows, _ = self.task.read(self.settings.data)
        return scorer.score_samples(texts, [row[0] for row in rows])

    def chat(self, messages: str | Sequence[Mapping[str, str]], **options: Unpack[GenerationOptions]) -> Iterator[str]:
        """The model's answer to a conversation, or to one question, piece by piece.

        Messages have a `role`, such as system, user or assistant, and `content`; they are formatted by the model's
        chat template. A model for pairs answers the last message.
        """
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        if not conversation:
            raise DataError("a conversation must have at least one message, got none")
        self._require_one_beam(options)
        pieces = capability(self.task, MessageAnswerer).answer_messages(
            self.predictor(self.generation(**options)), conversation, self.chat_template
        )
        with threads(1):
            yield from pieces

    def conversation(self, *, system: str | None = None, **options: Unpack[GenerationOptions]) -> Conversation:
        """A conversation with the model, which keeps its messages: see `Conversation`."""
        return Conversation(self, system=system, **options)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the chat template; None where the model was not trained on conversations."""
        return self.task.chat_template or self.folder.read_chat_template()

    def _require_one_beam(self, options: GenerationOptions) -> None:
        config = self.generation(**options)
        if config.beam_size > 1 and self.task.server_schema([]).streams:
            raise ConfigError(
                f"beam search cannot stream: its output is known only at the end, got beam_size={config.beam_size!r}"
            )

    def _streaming_predictor(self, verb: str, options: GenerationOptions) -> Any:
        self._require_one_beam(options)
        return self._generator(verb, self.generation(**options))

    def _generator(self, verb: str, config: GenerationConfig) -> Any:
        """The predictor of a language model."""
        if not self.task.server_schema([]).streams:
            raise RunError(f"{verb} is for language models, and {self.path} is for {self.task.description}")
        return self.predictor(config)

    def forecast(
        self,
        data: str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any],
        *,
        horizon: int | None = None,
        encoding: str | None = None,
        out: str | os.PathLike[str] | None = None,
        plot: str | os.PathLike[str] | None = None,
    ) -> list[SeriesForecast]:
        """The steps after the last one with values of each series, with intervals.

        Args:
            data: A table with the columns of training, rows in memory, or columns in memory: a dictionary of arrays.
                Covariates that are known in advance are read from the rows after the last one with values.
            horizon: Steps to forecast; unset, as many as in training.
            encoding: The encoding of a text file; unset, as in training, or detected.
            out: A CSV, TSV, JSON-lines or Parquet file to write, with a row for each series, step and column.
            plot: A PNG or SVG file to draw.
        """
        check_out(data, out)
        if plot is not None:
            from regard.explanation.panels import require_plot_path

            require_plot_path(plot)
        task, encoding = capability(self.task, Forecaster), self._encoding_of_table(data, encoding)
        found = task.forecast(self.model, data, horizon=horizon, encoding=encoding)
        if out is not None:
            write_table(out, [row for each in found for row in each.to_records()], SeriesForecast.names)
        if plot is not None:
            from regard.explanation.panels import save_plot

            save_plot(forecast_plot(found), plot)
        return found

    def rollout(
        self,
        env: str,
        *,
        episodes: int = 100,
        target_return: float | None = None,
        temperature: float = 0.0,
        epsilon: float = 0.0,
        seed: int = 0,
        record: str | os.PathLike[str] | None = None,
        gif: str | os.PathLike[str] | None = None,
    ) -> "Rollout":
        """Act in an environment of gymnasium, for models of control: see `regard.rollout`."""
        from regard.runs.rollout import rollout

        return rollout(
            self, env=env, episodes=episodes, target_return=target_return, temperature=temperature,
            epsilon=epsilon, seed=seed, record=record, gif=gif,
        )  # fmt: skip

    def draw(
        self,
        count: int = 16,
        *,
        label: str | None = None,
        out: str | os.PathLike[str] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[DrawnImage]:
        """Images that the model generates, sampled from its distribution unless `temperature` is set.

        Each has the training images that are nearest to it, unless a grid is written or the training data is gone.

        Args:
            count: The number of images; image i has the seed `seed` + i.
            label: The class of the images; unset, all of them.
            out: A grid (.png), or a page with the nearest training images of each (.html), to write.
            options: Options of generation.
        """
        from regard.explanation.pictures import require_drawn_path, save_drawn

        if out is not None:
            require_drawn_path(os.fspath(out))
        is_grid = out is not None and os.fspath(out).lower().endswith(".png")
        task = capability(self.task, ImageGenerator)
        training = None if is_grid else self._training_data()
        config = self.generation(**{"temperature": 1.0, **options})
        with threads(1):  # as for text
            found = task.draw(self.model, config, count=count, label=label, training=training)
        if out is not None:
            of_class = f" of class {label}" if label is not None else ""
            save_drawn(found, os.fspath(out), title=f"{self.path.name}: images{of_class}")
        return found

    def _training_data(self) -> Prepared | None:
        """The prepared training data, or None with a warning where it is gone."""
        try:
            with quiet_logs():
                return self.task.prepare(self.settings.data)
        except RegardError as error:
            log_warning(f"images are not compared with the training images: {error}")
            return None

    def embed(self, inputs: str | Sequence[str]) -> NDArray[np.float32]:
        """A vector of length 1 for an input, or a row for each of several: products are cosines.

        Inputs of a model for images are paths.
        """
        if isinstance(inputs, str):
            return self.embed([inputs])[0]
        self._check_inputs(inputs)
        with self._free_threads(len(inputs)):
            return capability(self.task, Embedder).embed(self.model, inputs)

    @overload
    def score(self, texts: str) -> TextScore: ...  # pyright: ignore[reportOverlappingOverload]  as above

    @overload
    def score(self, texts: Sequence[str]) -> list[TextScore]: ...

    def score(self, texts: str | Sequence[str]) -> TextScore | list[TextScore]:
        """The log-probability of a text, or of each of several, token by token."""
        if isinstance(texts, str):
            return self.score([texts])[0]
        self._check_inputs(texts)
        scorer = capability(self.task, TextScorer)
        return [scorer.score_text(self.model, text) for text in texts]

    def predictor(self, config: GenerationConfig) -> Predictor:
        """The predictor for these generation settings; it is kept for the next call."""
        predictor = self._predictors.pop(config, None)
        if predictor is None:
            predictor = self.task.predictor(self.inference_model, config)
        for oldest in list(self._predictors)[: 1 - _MOST_PREDICTORS]:
            del self._predictors[oldest]
        self._predictors[config] = predictor
        return predictor

    @cached_property
    def inference_model(self) -> Any:
        """The model prepared for inference: on a GPU in the precision of training."""
        return prepare_for_inference(self.model, self._hardware.precision if self.device.type == "cuda" else "float32")

    @property
    def _hardware(self) -> Hardware:
        return choose_hardware(str(self.device), self.settings.train.precision, self.settings.model.model_dim)

    def _free_threads(self, num_inputs: int) -> AbstractContextManager:
        """The cores that other programs leave free, for many inputs."""
        return self._hardware.free_threads() if num_inputs >= _MANY_INPUTS else nullcontext()

    def _check_inputs(self, inputs: Sequence[str]) -> None:
        for number, text in enumerate(inputs, start=1):
            if not isinstance(text, str):
                raise DataError(f"input {number} must be a text, got {type(text).__name__}")
            if not text.strip():
                raise DataError(f"input {number} is empty")
            if _LONE_SURROGATE.search(text):
                raise DataError(f"input {number} is not UTF-8: {text!r}")
        if self.task.tokenizer_kind in ("", "words", "wordpunct"):  # a vocabulary of words never has all of them
            return
        if count := self.tokenizer.count_unknown(self.tokenizer.encode(inputs)):
            verb = "is" if count == 1 else "are"
            log_warning(f"{format_count(count, 'token')} of the input {verb} not in the vocabulary")

    def _evaluate(
        self,
        rows: list[tuple[str, ...]],
        role: str | None,
        *,
        stride: int | None = None,
        num_paths: int | None = None,
        **options: Any,
    ) -> Evaluation:
        if not rows:
            raise DataError("there are no rows to evaluate on")
        task = self.task if stride is None else capability(self.task, StridedEvaluator).with_stride(stride)
        task = task if num_paths is None else capability(task, SubjectPredictor).with_paths(num_paths)
        task = self._with_rewards(task)
        inputs = [task.input_of(row) for row in rows] if task.has_targets else []
        predictions = self.predict_full(inputs, **options) if inputs else []
        with self._free_threads(len(rows)):
            likelihoods = task.likelihoods(self.model, task.row_batches(rows), self.device)
        data = EvaluationData(rows, predictions, likelihoods)
        scores = {score.name: score for score in task.scores(data)}
        examples = task.examples(data)
        counts = task.label_counts(examples) if task.has_targets else None
        result = Evaluation(
            scores, task.headline(rows), rows, predictions, likelihoods, examples, counts, task.has_rows
        )
        if role is not None:
            self.record(role, "evaluation", result, **options)
        return result

    def _with_rewards(self, task: Any) -> Any:
        """The task with the functions by which it scores what the model samples, where it needs some."""
        sources = task.evaluation_rewards() if isinstance(task, RolloutTask) else {}
        if not sources:
            return task
        from regard.runs.rewards import load_reward

        device, seconds = str(self.device), task.reward_seconds()
        return task.with_rewards(
            {
                name: load_reward(source, folder=self.path, seconds=seconds, device=device, is_named=False)
                for name, source in sources.items()
            }
        )

    def _read(
        self,
        paths: list[str],
        rows: Rows | None,
        *,
        columns: Sequence[str] | None,
        encoding: str | None,
        skip_bad: bool | None,
    ) -> tuple[list[tuple[str, ...]], bool]:
        """The rows to evaluate on, and whether they are those of the file that the run was trained on."""
        own, is_alike = self.settings.data, self._is_like_training(paths)
        config = DataConfig(
            train=paths,
            columns=own.columns if columns is None else list(columns),
            format=own.format if is_alike else None,
            header=own.header if is_alike else None,
            encoding=self._encoding_of(paths, encoding),
            skip_bad=skip_bad,
            split_seed=own.split_seed + 1,  # of a built-in data set, rows that were not trained on
        )
        found, content_hash = self.task.read(config, rows)
        return found, rows is None and content_hash == self.folder.read_provenance().data_hash.partition("+")[0]

    def _warn_of_validation(self, rows: Sequence[Sequence[str]]) -> None:
        valid = set(self.folder.read_held_out("valid"))
        if number := sum(tuple(row) in valid for row in rows):
            are = "is a validation row" if number == 1 else "are validation rows"
            log_warning(
                f"{number:,} of {len(rows):,} rows {are} of this run, by which its weights were selected: the score is "
                "better than on new rows"
            )

    def _is_like_training(self, paths: Sequence[str]) -> bool:
        """Whether files have the suffix of the training file."""
        own = self.settings.data.train
        suffixes = {Path(uncompressed_name(Path(name))).suffix for name in (*paths[:1], *own[:1])}
        return bool(paths and own) and len(suffixes) == 1

    def _encoding_of(self, paths: Sequence[str], given: str | None) -> str | None:
        """The encoding of files: the given one, or that of training for files of its kind; None to detect it."""
        if given is not None:
            return check_encoding(given)
        return self.settings.data.encoding if self._is_like_training(paths) else None

    def _encoding_of_table(self, data: Any, given: str | None) -> str | None:
        """The encoding of a table that may be in memory."""
        return self._encoding_of([str(data)], given) if isinstance(data, str | os.PathLike) else given

    def _warn_of_unknown(self, rows: Sequence[Sequence[str]], where: str) -> None:
        if (warning := self.task.unknown_labels(rows, where)) is not None:
            log_warning(warning)

    def _without_released(self, rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The rows that are not validation rows whose scores a mechanism releases."""
        if self.settings.train.release is None:
            return rows
        valid = set(self.folder.read_held_out("valid"))
        kept = [row for row in rows if tuple(row) not in valid]
        if rows and not kept:
            raise RunError("these rows are validation rows, whose scores are released during training only")
        if len(kept) < len(rows):
            log_warning(f"{len(rows) - len(kept):,} of {len(rows):,} rows are validation rows, and are left out")
        return kept

    def _without_sealed(self, rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The rows that are not of the sealed test set, which only `test` opens."""
        fingerprints = self.folder.test_fingerprints()
        kept = [tuple(row) for row in without_sealed(rows, fingerprints)]
        if rows and not kept:
            raise RunError("these rows are the sealed test set of the run: its test opens them, and records that")
        if len(kept) < len(rows):
            left_out = len(rows) - len(kept)
            verb = "is" if left_out == 1 else "are"
            log_warning(
                f"{left_out:,} of {len(rows):,} rows {verb} of the sealed test set, and {verb} left out: the "
                f"scores are on {len(kept):,} rows. The option to score all rows records in the ledger that the test "
                "set was opened"
            )
        return kept

    def _count_training(self, rows: list[tuple[str, ...]], *, is_known: bool) -> int:
        """The number of rows that are training rows, which is reported unless it `is_known` that they are not new."""
        number = sum(self.folder.training_fingerprints().match(rows))
        if number and not is_known:
            are = "is a training row" if number == 1 else "are training rows"
            log_warning(
                f"{number:,} of {len(rows):,} rows {are}: the scores are too high on average, and no bound holds for "
                "them"
            )
        return number

    def _open_sealed(self, rows: list[tuple[str, ...]], **options: Any) -> list[tuple[str, ...]]:
        """All rows; that some of them are of the sealed test set is recorded before they are scored."""
        fingerprints = self.folder.test_fingerprints()
        number = sum(fingerprints.match(rows))
        if number or fingerprints.share_within(rows):
            self.folder.record_opening(f"evaluated on {number:,} of its rows", self.candidate(**options))
            log_warning(
                f"{number:,} of {len(rows):,} rows are of the sealed test set: the ledger records that it was opened"
            )
        return rows

    def _num_bytes(self) -> int:
        """The size of all files that the weights of the run are in."""
        saved = [file for path in checkpoint_paths(self.folder.checkpoints) for file in files_of(path)]
        paths = [self.folder.model_path, *saved]
        if self.settings.finetune is not None:
            paths.append(base_folder(self.settings.finetune, self.path) / "model.safetensors")
        return sum(path.stat().st_size for path in paths if path.is_file())

    def _weights(self) -> dict[str, torch.Tensor]:
        try:
            return read_tensors(self.folder.model_path)[0]
        except CheckpointError as error:
            found = load_checkpoint(self.folder.checkpoints)
            if found is None:
                raise
            log_warning(f"{error}; using the newest complete checkpoint, of step {found[1]['step']}")
            # What is not averaged, such as buffers, is as in the model.
            return {
                name.removeprefix(part): tensor
                for part in ("model:", "ema:")
                for name, tensor in found[0].items()
                if name.startswith(part)
            }


def load(path: str | os.PathLike[str], *, device: str = "auto") -> Run:
    """Load the run in a folder."""
    return Run(path, device=device)


def attention_maps(
    run_or_model: "Run | str | os.PathLike[str] | nn.Module",
    text: str,
    *,
    tokenizer: Tokenizer | None = None,
    target: str | None = None,
    **options: Unpack[GenerationOptions],
) -> AttentionMaps:
    """The attention maps of a run, of the run in a folder, or of a model, for `text`.

    Args:
        run_or_model: A run or its folder; or an encoder-decoder, a decoder or an encoder.
        text: An input; for a decoder alone, the text that it reads.
        tokenizer: For a model: the one that it was trained with.
        target: For an encoder-decoder without a run: the output whose attention is recorded.
        options: For a run: how the output is generated.

    Example:
        regard.attention_maps("runs/dates", "4 March 2025").save("attention.html")
    """
    if isinstance(run_or_model, nn.Module):
        if tokenizer is None or options:
            raise ConfigError("the attention maps of a model need its tokenizer, and no options of generation")
        return model_attention_maps(run_or_model, text, tokenizer=tokenizer, target=target)
    if tokenizer is not None or target is not None:
        raise ConfigError("a run has a tokenizer and generates the target: tokenizer and target are for models")
    run = run_or_model if isinstance(run_or_model, Run) else Run(run_or_model)
    return run.attention(text, **options)


def _warn_of_unseen(aspects: Sequence[str]) -> None:
    if aspects:
        log_warning(
            f"no training row has {format_count(len(aspects), 'aspect')} of the input: {format_names(aspects)}; only "
            "the words of such an aspect are read, and predictions for it are less reliable"
        )


def _names_of(paths: Sequence[str]) -> str:
    return ", ".join(Path(path).name for path in paths)


def split_paths_and_rows(data: Any) -> tuple[list[str], Rows | None]:
    """Data as paths, or as rows in memory."""
    if data is None:
        return [], None
    if isinstance(data, str | os.PathLike):
        return [str(data)], None
    if isinstance(data, Mapping):
        raise DataError("rows must be in a list, each a dictionary or a list of values, got one dictionary")
    items = data.tolist() if isinstance(data, np.ndarray) else list(data)
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        if len(items) > _MOST_FILES and not any(map(os.path.exists, items)):
            raise DataError(
                f"none of {len(items):,} strings is the name of a file, such as {str(items[0])[:_SHOWN]!r}: a text in "
                "memory is a row with one value"
            )
        return [str(item) for item in items], None
    if items and all(isinstance(item, Mapping) for item in items):
        return [], NamedRows(items)
    if other := next((place for place, item in enumerate(items, 1) if isinstance(item, Mapping)), None):
        raise DataError(
            f"rows must be all dictionaries or all lists of values, but only some are, such as row {other:,}"
        )
    for place, item in enumerate(items, 1):
        if item is None or isinstance(item, int | float | bytes):
            raise DataError(f"row {place:,} must be a dictionary or a list of values, got {type(item).__name__}")
    return [], items
