"""Properties of molecules: one or several numbers or binary labels for SMILES or SELFIES, any of which may be missing.

The network reads a spelling of a molecule, which has many: training reads another random one in each epoch, and an
evaluated molecule has the mean of several (Bjerrum, 2017). Beside it is a Gaussian process of fingerprints and
descriptors, see `regard.models.gaussian_process`. Missing properties have no loss.

Wu et al., "MoleculeNet: a benchmark for molecular machine learning" (2018). https://arxiv.org/abs/1703.00564

Dimensions: `batch` molecules, `outputs` properties.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.graphs import fit_forests
from regard.data.batches import batches_by_length
from regard.data.chemistry import fault_of, is_molecule, require_rdkit, spellings
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.properties import MoleculeCodec, PropertyCodec
from regard.data.codecs.text import TextCodec
from regard.data.formats.messages import format_column
from regard.data.formats.summary import ColumnSummary
from regard.data.prepare import FitData, Prepared, prepare_rows
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, is_builtin, open_source
from regard.data.splits.by_structure import has_scaffolds
from regard.data.splits.plan import split_settings
from regard.errors import ConfigError
from regard.logging import log_info
from regard.models.family import ModelConfig
from regard.models.gaussian_process import property_losses
from regard.models.heads import HeadConfig, default_pooling
from regard.tasks.capabilities import ExportGraph
from regard.tasks.choices import ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import ServerSchema
from regard.tasks.detection import DetectionSummary, readable_rows
from regard.tasks.molecules.model import (
    ExportedMolecules,
    MoleculeBatch,
    MoleculeBatches,
    MoleculeModel,
    SpellingStore,
    make_molecule_batch,
    pad_molecule_batch,
    split_spellings,
)
from regard.tasks.properties import (
    PropertyColumns,
    PropertyTask,
    choose_property_columns,
    find_properties,
    known_cells,
    read_properties,
    without_none,
)
from regard.tasks.task import (
    EVALUATION_TOKENS,
    PLAIN,
    BatchPredictor,
    Detection,
    Likelihoods,
    Objective,
    to_device,
)
from regard.tasks.text import TextSettings, TextTask, fit_tokenizer
from regard.text.alphabets import is_selfies, is_smiles, sequence_kind
from regard.text.tokenizer import Tokenizer

BUILTIN_COLUMNS = ("smiles", "solubility")
"""The columns of the built-in data set."""
_MOLECULE_NAMES = ("smiles", "selfies", "mol", "molecule")
_NUM_VALIDATED = 50
"""Texts that are read to recognize molecules."""
_TUNED_SPELLINGS = 4
"""Spellings of each molecule that a tokenizer is trained on, since some atoms and bonds have several tokens."""
_SELFIES_ONLY = "[=Branch1][Ring1]"
_SAMPLE_ROWS = 1_000
"""Rows by which the split is chosen."""


class MoleculeSettings(TextSettings):
    """Settings of properties of molecules."""

    name: str = "molecule-properties"
    spellings: int = Field(default=16, ge=0)
    """Random spellings of each molecule beside its canonical SMILES: training reads another one in each epoch. 0 for
    none."""
    averaged: int = Field(default=8, ge=0)
    """Random spellings, at most `spellings`, over which outputs are averaged in evaluation and prediction, with the
    canonical one."""
    gaussian_process: bool
    """Whether a Gaussian process of fingerprints and descriptors is beside the network, which is solved before training
    and whose outputs are added to those of the trained network. Unset: true, but false where only a part of a
    pretrained model is fine-tuned."""


class MoleculeProperties(PropertyTask[MoleculeSettings], TextTask[MoleculeSettings]):
    """Molecules and their properties, by an encoder of spellings."""

    name = "molecule-properties"
    description = "properties of molecules"
    output_description = "the predicted properties"
    other_names = ("molecules", "molecule", "smiles", "qsar", "chemistry")
    Settings = MoleculeSettings
    roles = ("molecule", "properties")
    codec_types: Mapping[str, type[Codec]] = {
        "text": TextCodec,
        "properties": PropertyCodec,
        "features": MoleculeCodec,
    }
    store_columns = ("spellings", "properties", "features")
    default_preset = "lstm"
    unit = "molecule"
    objectives = frozenset()

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.names == BUILTIN_COLUMNS and not summary.columns:
            return Detection("molecules and their solubility", confidence=0.95)
        molecules = find_molecules(summary.columns)
        if molecules is None:
            return None
        if summary.columns_given:
            others = [column for column in summary.columns if column is not molecules]
            is_fitting = summary.columns[0] is molecules and len(find_properties(others)) == len(others) > 0
            return Detection(f"molecules in {format_column(molecules.name)}", confidence=0.85) if is_fitting else None
        if not find_properties([column for column in summary.columns if column is not molecules]):
            return None
        return Detection(f"molecules in {format_column(molecules.name)}, and properties of them", confidence=0.85)

    @property
    def molecule_codec(self) -> MoleculeCodec:
        return codec_of(self.codecs, "features", MoleculeCodec)

    @property
    def tokenizer_kind(self) -> str:
        """None: what is tokenized is not the input but other spellings of it."""
        return ""

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        require_rdkit()
        rows = None if rows is None else without_none(rows)
        columns = self._columns(config, rows)
        if rows is None or isinstance(rows, NamedRows):
            config = config.changed(columns=columns.names)
        is_generated = rows is None and is_builtin(config)
        source = open_source(config, columns.names if is_generated else ("molecule", *columns.properties), rows)
        tables = {
            split: None if table is None else read_properties(table, columns, "molecule", fault_of)
            for split, table in (("train", source.train), ("valid", source.valid), ("test", source.test))
        }
        return replace(source, **tables)

    def _columns(self, config: DataConfig, rows: Rows | None) -> PropertyColumns:
        """Those of training, where the task has codecs and the user has named none."""
        codec = self.codecs.get("properties")
        if isinstance(codec, PropertyCodec) and not config.columns:
            return PropertyColumns.of_codec(codec)
        if rows is None and is_builtin(config):
            return PropertyColumns(BUILTIN_COLUMNS[0], BUILTIN_COLUMNS[1:], (True,))
        objects = "molecules in SMILES or SELFIES"
        return choose_property_columns(config, rows, find_molecules, objects=objects, role="molecule")

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        source = self.open(config, rows)
        is_free = config.split is None and split_settings(config) is None and config.shots is None
        if is_free and source.valid is None:
            config = config.changed(split=_choose_split(source, config))
        columns = self._columns(config, rows)
        named = PropertyCodec(columns.properties, source=columns.source)
        return prepare_rows(source, config, self.with_codecs({**self.codecs, "properties": named}))

    def cache_key(self) -> dict[str, Any]:
        settings, codec = self.settings, self.codecs.get("properties")
        return {
            **super().cache_key(),
            "spellings": settings.spellings,
            "features": settings.gaussian_process is not False,
            "properties": list(codec.names) if isinstance(codec, PropertyCodec) else [],
        }

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        named = self.property_codec
        is_selfies, number = self.settings.tokenizer == "selfies", min(_TUNED_SPELLINGS, self.settings.spellings)
        texts = (text for row in data.whole_sample() for text in spellings(row[0], number, as_selfies=is_selfies))
        return {
            "text": fit_tokenizer(texts, self.settings, data),
            "properties": PropertyCodec.fit((row[-1] for row in data.rows()), named.names, named.source),
            "features": MoleculeCodec() if self.settings.gaussian_process is False else MoleculeCodec.fit(),
        }

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        molecules = [row[0].strip() for row in rows]
        return [
            self._encode_spellings(molecules),
            self.property_codec.encode([row[-1] for row in rows]),
            self.molecule_codec.encode(molecules),
        ]

    def _encode_spellings(self, molecules: Sequence[str]) -> list[list[int]]:
        """The ids of all spellings of each molecule, one after the other."""
        tokenizer, width = self.tokenizer, 1 + self.settings.spellings
        as_selfies, limit = _reads_selfies(tokenizer), self.settings.max_length - 2
        texts = [text for each in molecules for text in spellings(each, width - 1, as_selfies=as_selfies)]
        spelled = [[tokenizer.start, *ids[:limit], tokenizer.end] for ids in tokenizer.encode(texts)]
        parts = (spelled[place : place + width] for place in range(0, len(spelled), width))
        return [[token for ids in part for token in ids] for part in parts]

    def notes(self) -> list[str]:
        number = self.settings.spellings
        spelled = [f"{number} random spellings of each molecule: another one in each epoch"] if number else []
        return [*super().notes(), self.property_codec.describe(), *spelled]

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "properties": ", ".join(self.property_codec.names)}

    # Settings

    def choose(self, context: ChoiceContext) -> Choices:
        reasons = {"model": "lstm: it learns from few molecules fastest"}
        if self.settings.tokenizer is not None:
            return Choices(preset="lstm", reasons=reasons)
        why = "one token for each atom, bond and ring"
        return Choices({"tokenizer": "smiles"}, "lstm", {**reasons, "tokenizer": f"smiles: {why}"})

    def defaults(self, context: DefaultsContext) -> Defaults:
        is_partial = context.is_finetuned and context.method != "all"
        if is_partial and self.settings.gaussian_process:
            raise ConfigError(
                "task.gaussian_process needs a run that stores all weights: finetune.method must be all, got "
                f"{context.method}"
            )
        values = {"gaussian_process": not is_partial}
        return Defaults(super().defaults(context).train, values, {"pooling": default_pooling(context.model)})

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Mapping[str, Sequence[Sequence[str]]]) -> None:
        if self.settings.lowercase:
            raise ConfigError("task.lowercase would make other molecules of SMILES, in which c and C differ")
        if self.settings.averaged > self.settings.spellings:
            raise ConfigError(
                f"task.averaged must be at most task.spellings, got {self.settings.averaged} and "
                f"{self.settings.spellings}"
            )

    def num_positions(self, data: Prepared) -> int:
        codec = data.codecs["text"]
        assert isinstance(codec, TextCodec)
        stores = (SpellingStore(store, codec.tokenizer.start) for store in (data.train, data.valid))
        return max(int(store.lengths().max()) for store in stores)

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> MoleculeModel:
        num_descriptors = len(self.molecule_codec.descriptors) if self.settings.gaussian_process else 0
        return MoleculeModel(
            model, head, self.tokenizer.vocab_size, len(self.property_codec), num_descriptors=num_descriptors
        )

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> MoleculeBatches:
        task = self.with_codecs(data.codecs)  # batches are also counted before the task has codecs
        store = SpellingStore(data.train, task.tokenizer.start)
        return MoleculeBatches(task, store, batch_tokens=batch_tokens, seed=seed, has_fixed_shapes=has_fixed_shapes)

    def validation_batches(self, data: Prepared) -> Iterator[MoleculeBatch]:
        rows = np.arange(len(data.valid))
        columns: Any = [data.valid.sequences(column, rows) for column in range(len(self.store_columns))]
        return (batch for _, batch in self.indexed_batches(columns))

    def indexed_batches(self, columns: Sequence[Sequence[Sequence[int]]]) -> Iterator[tuple[list[int], MoleculeBatch]]:
        """Encoded rows in batches of similar length, each row with the spellings that are averaged."""
        start, number = self.tokenizer.start, 1 + self.settings.averaged
        spelled = [split_spellings(np.asarray(row, np.int64), start)[:number] for row in columns[0]]
        lengths = [max(map(len, some)) for some in spelled]
        for rows in batches_by_length(lengths, batch_tokens=max(1, EVALUATION_TOKENS // number)):
            targets = self.targets([np.asarray(columns[1][row], np.int64) for row in rows])
            features = np.array([columns[2][row] for row in rows], np.uint8).reshape(len(rows), -1)
            texts = [text for row in rows for text in spelled[row]]
            yield rows.tolist(), make_molecule_batch(texts, features, targets, self.tokenizer.pad)

    def targets(self, stored: Sequence[NDArray[np.int64]]) -> Float[np.ndarray, "batch outputs"]:
        """Stored properties as the model is trained on them; NaN where one is missing."""
        codec = self.property_codec
        return codec.standardize(codec.numbers(stored))

    def pad_batch(self, batch: MoleculeBatch, num_rows: int, length: int) -> MoleculeBatch:
        return pad_molecule_batch(batch, num_rows, length, self.tokenizer.pad)

    def loss(self, model: MoleculeModel, batch: MoleculeBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The cross-entropy, or half of the squared error, summed over the known properties."""
        return (self._losses(model, batch) * batch.known).sum()

    def _losses(self, model: MoleculeModel, batch: MoleculeBatch) -> Float[Tensor, "batch outputs"]:
        outputs = model(batch.source, batch.lengths, batch.features).float()
        return property_losses(outputs, batch.targets, are_labels=self.property_codec.are_labels)

    def solve(self, model: MoleculeModel, data: Prepared, *, seconds: float | None = None) -> bool:
        if model.process is None:
            return False
        (features, _), (ids, _) = data.train.column(2), data.train.column(1)
        num_rows = len(data.train)
        targets = self.targets(list(np.asarray(ids).astype(np.int64).reshape(num_rows, -1)))
        packed = np.asarray(features).astype(np.uint8).reshape(num_rows, -1)
        return model.process.solve(packed, targets, are_labels=self.property_codec.are_labels, seconds=seconds)

    @torch.no_grad()
    def blend(self, model: MoleculeModel, batches: Iterator[MoleculeBatch], device: torch.device) -> None:
        if model.process is None or not model.process.is_solved:
            return
        found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for batch in batches:
            batch = to_device(batch, device)
            network, own = model.parts(batch.source, batch.lengths, batch.features)
            assert own is not None, "a model in evaluation mode has both"
            found.append((network.float(), own.float(), batch.targets, batch.known))
        network, own, targets, known = (torch.cat(part) for part in zip(*found, strict=True))
        model.process.fit_scales(network, own, targets, known, are_labels=self.property_codec.are_labels)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[MoleculeBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each molecule's known properties; that of numbers up to a constant."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += (self._losses(model, batch) * batch.known).sum(dim=1).tolist()
            counts += batch.known.sum(dim=1).tolist()
        return Likelihoods(losses, counts)

    def has_linear_head(self, head: HeadConfig) -> bool:
        return False  # the loss of a solved head has no missing targets

    # Use

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        nothing = self.property_codec.write([math.nan] * len(self.property_codec))
        return self.encode_rows([(text, nothing) for text in inputs])

    def outputs(self, model: Any, batch: MoleculeBatch) -> list[list[float]]:
        return self.property_outputs(model(batch.source, batch.lengths, batch.features))

    def output_for(self, model: Any, text: str) -> str:
        """By the canonical spelling alone, whose attention is drawn."""
        alone = type(self)(self.settings.changed(averaged=0), self.codecs)
        return BatchPredictor(alone, model)([text])[0].output

    def fit_baseline(self, texts: Sequence[str], targets: Float[np.ndarray, "batch outputs"]) -> Baseline:
        """Random forests of Morgan fingerprints and descriptors."""
        return fit_forests(texts, targets, MoleculeCodec.fit().descriptors, are_labels=self.property_codec.are_labels)

    def export_graph(self, model: MoleculeModel, rows: Sequence[Sequence[str]]) -> ExportGraph:
        """The spellings of a molecule in, its properties out; without the Gaussian process."""
        codec = self.property_codec
        if model.process is not None and model.process.is_solved:
            raise ConfigError(
                "task.gaussian_process must be false to export a model of molecules, got true: it reads fingerprints "
                "that RDKit computes"
            )
        examples = []
        for some in (rows[:3], rows[-1:], rows[:8]):
            (_, batch), *_ = self.indexed_batches(self.encode_inputs([row[0] for row in some]))
            number = len(batch.source) // len(batch.features)
            mask = (torch.arange(batch.source.size(1)) < batch.lengths[:, None]).long()
            inputs = {"input_ids": batch.source, "attention_mask": mask}
            with torch.inference_mode():
                predicted = torch.tensor(self.outputs(model, batch))
            examples.append(({name: each.unflatten(0, (-1, number)) for name, each in inputs.items()}, (predicted,)))
        return ExportGraph(
            module=ExportedMolecules(model, codec.means, codec.stds),
            axes={name: {0: "batch", 2: "time"} for name in ("input_ids", "attention_mask")},
            outputs=("probabilities" if codec.are_labels else "numbers",),
            examples=examples,
            limits={"time": self.settings.max_length},
            config={"properties": list(codec.names), "labels": [list(each) for each in codec.labels],
                    "tokenizer": json.loads(self.tokenizer.to_json())},
        )  # fmt: skip

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        labels = self.property_codec.labels[0] if len(self.property_codec.labels) == 1 else ()
        return ServerSchema(("SMILES",), placeholder="CC(=O)Oc1ccccc1C(=O)O", labels=labels, output="label")

    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        """Returns the embedding of each molecule's canonical SMILES."""
        from regard.tasks.sentence_embedding import embed_texts

        as_selfies = _reads_selfies(self.tokenizer)
        texts = [spellings(text, 0, as_selfies=as_selfies)[0] for text in inputs]
        return embed_texts(model, self.tokenizer, texts, max_length=self.settings.max_length)


def _choose_split(source: Source, config: DataConfig) -> Literal["scaffold", "random"]:
    """By scaffold, unless the first molecules have too few; the reason is logged."""
    sample = list(dict.fromkeys(row[0] for row in islice(readable_rows(source.train), _SAMPLE_ROWS)))
    if has_scaffolds(sample, config):
        log_info(
            "data.split scaffold: molecules of the test have ring systems that training does not, as new ones have; "
            "random would measure how well a model interpolates"
        )
        return "scaffold"
    log_info("data.split random: the molecules have too few ring systems for a split by scaffold")
    return "random"


def _reads_selfies(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has symbols that only SELFIES have."""
    (ids,) = tokenizer.encode([_SELFIES_ONLY])
    return len(ids) == _SELFIES_ONLY.count("[") and not tokenizer.count_unknown([ids])


def find_molecules(columns: Sequence[ColumnSummary]) -> ColumnSummary | None:
    """The column of molecules, by its content: one with a usual name before others."""
    named = [column for column in columns if column.plain_name in _MOLECULE_NAMES and _are_mostly_molecules(column)]
    kinds = ((column, sequence_kind(known_cells(column))) for column in columns)
    others = (column for column, kind in kinds if kind in ("smiles", "selfies"))
    return next((column for column in (*named, *others) if _are_valid(column)), None)


def _are_mostly_molecules(column: ColumnSummary) -> bool:
    cells = known_cells(column)
    return 2 * sum(is_smiles(cell.strip()) or is_selfies(cell.strip()) for cell in cells) > len(cells)


def _are_valid(column: ColumnSummary) -> bool:
    """Whether most of the first texts are molecules; without rdkit, only their tokens are known."""
    sample = known_cells(column)[:_NUM_VALIDATED]
    return find_spec("rdkit") is None or 2 * sum(map(is_molecule, sample)) > len(sample)
