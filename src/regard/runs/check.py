"""Whether a run's model computes the same in every way that it can be used: five equalities, and its exports.

Resuming, accumulating, caching, batching and merging are meant to change how something is computed, and not what.
Each is compared here with its plain form, on the weights of the run and on its data.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.data.prepare import Prepared
from regard.errors import CheckpointError, ConfigError, DataError, DeviceError, ProcessError, RegardError, RunError
from regard.interop import EXPORTERS
from regard.logging import log_info, quiet_logs
from regard.models.protocols import Decoder, EncoderOutput
from regard.runs.export import export_model
from regard.runs.launch import launch
from regard.runs.run import Run
from regard.runs.train import make_trainer
from regard.tasks.task import Batch
from regard.training.checkpoints import (
    copy_weights,
    load_checkpoint,
    read_tensors,
    resize_buffers,
    save_checkpoint,
    trained_weights,
    weights_of,
    write_tensors,
)
from regard.training.distributed import joined
from regard.training.loop import Trainer, why_not_shared

Verdict = Literal["holds", "fails", "not applicable"]

_STEPS = 6
_SECONDS = 20.0
"""What the steps of one training may take; a large model takes fewer of them, at least two."""
_NUM_ROWS = 8
"""Validation rows that are read in a batch and one by one."""
_NUM_CANDIDATES = 64
_TOKENS, _SEQUENCES = 12, 3
"""Tokens that are decoded, of each of so many sequences."""
_PROCESSES = "two processes"
_SHARED_GRADIENTS = "regard.runs.check:write_shared_gradients"
_TOLERANCE, _DOUBLE_TOLERANCE = 1e-4, 1e-6
"""The largest relative difference between sums in another order, of float32 and of float64 numbers; some losses are
computed in float32 from the logits on."""


@dataclass(frozen=True)
class Equality:
    """Two ways to compute the same, and how much their results differ."""

    name: str
    compared: str
    """What was compared with what, or why nothing could be."""
    verdict: Verdict
    difference: float | None = None
    """The largest difference, relative to the largest value."""
    tolerance: float | None = None
    where: str = ""
    """The first tensor, layer or input that differs by more than the tolerance."""


@dataclass(frozen=True)
class CheckResult:
    """The equalities of a run."""

    run: str
    equalities: tuple[Equality, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether none fails."""
        return all(each.verdict != "fails" for each in self.equalities)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def check(run: str | os.PathLike[str] | Run, *, device: str = "cpu") -> CheckResult:
    """Compare ways to compute the same with the model of a run; nothing is written to its folder.

    Args:
        run: A run folder, or a run.
        device: auto, cpu, cuda or cuda:N.
    """
    started = time.perf_counter()
    found = Run(run.path if isinstance(run, Run) else run, device=device)
    checks: list[Callable[[Run], Iterator[Equality]]] = [
        _check_training, _check_caches, _check_batches, _check_adapter, _check_exports,
    ]  # fmt: skip
    equalities: list[Equality] = []
    for each in checks:
        for equality in each(found):
            log_info(f"{equality.name}: {equality.verdict}")
            equalities.append(equality)
    return CheckResult(str(found.path), tuple(equalities), time.perf_counter() - started)


# Training


def _check_training(run: Run) -> Iterator[Equality]:
    """Resumed training, and accumulated batches."""
    names = ("resumed training", "accumulated batches", _PROCESSES)
    try:
        data = _training_data(run)
    except RegardError as error:
        for name in names:
            yield Equality(name, f"the training data is needed: {error}", "not applicable")
        return
    yield _check_resuming(run, data)
    yield from _check_accumulation(run, data)
    yield from _check_processes(run, data)


def _training_data(run: Run) -> Prepared:
    if not run.settings.data.train:
        raise RunError("the run was imported")
    data = run.task.prepare(run.settings.data)
    if data.content_hash != run.folder.read_provenance().data_hash:
        raise DataError("its content has changed since the run was trained")
    return data


def _trainer(run: Run, data: Prepared) -> Trainer:
    """A trainer with the weights of the run, a new optimizer, and a budget of steps."""
    changes = {"max_steps": _STEPS, "minutes": None, "max_epochs": None, "compile": "never", "device": str(run.device),
               "sharding": "none", "tensor_parallel": 1}  # fmt: skip
    settings = run.settings.changed(train=run.settings.train.changed(**changes))
    trainer = make_trainer(settings, data, folder=run.path, is_new=False)
    stored = weights_of(run.unmerged())
    resize_buffers(trainer.model, stored)
    trained = trained_weights(trainer.model)
    copy_weights(trained, {name: stored[name] for name in trained})
    trainer.ema.restore(trained)
    return trainer


def _check_resuming(run: Run, data: Prepared) -> Equality:
    whole = _trainer(run, data)
    before = time.perf_counter()
    whole.advance()
    seconds = time.perf_counter() - before
    steps = max(2, min(_STEPS, int(_SECONDS / max(seconds, 1e-6)))) // 2 * 2
    for _ in range(steps - 1):
        whole.advance()
    half = _trainer(run, data)
    for _ in range(steps // 2):
        half.advance()
    with TemporaryDirectory(prefix="regard-check-") as folder:
        save_checkpoint(Path(folder), half.progress.step, half.tensors(), half.progress_note())
        resumed = _trainer(run, data)
        found = load_checkpoint(Path(folder))
    assert found is not None, "the checkpoint was just written"
    resumed.restore(*found)
    for _ in range(steps - steps // 2):
        resumed.advance()
    is_exact = run.device.type == "cpu"
    one, other = whole.tensors(), resumed.tensors()
    compared = f"{steps} steps, stopped after {steps // 2} and resumed: {len(one)} tensors of the training state"
    if not is_exact:
        compared += "; kernels of a GPU add in any order, so that bits may differ"
    return _compare("resumed training", compared, one, other, tolerance=0.0 if is_exact else _TOLERANCE)


def _check_accumulation(run: Run, data: Prepared) -> Iterator[Equality]:
    """A batch in several parts, and several batches with one update.

    In float64, since gradients of single rows can cancel; without dropout, and with the
    stored statistics of batch normalization, which in training depend on the batch.
    """
    name = "accumulated batches"
    if run.task.uses_whole_batch:
        reason = "rows of a batch are examples for each other: its loss is not a sum over them"
        yield Equality(name, reason, "not applicable")
        return
    trainer = _trainer(run, data)
    batches = [trainer.training_batch(number) for number in range(3)]
    trainer.model.double().eval()
    with _default_dtype(torch.float64):
        batches = [batch.with_tensors([_to_double(each) for each in batch.tensors()]) for batch in batches]
        largest = max(batches, key=_num_rows)
        num_parts = min(4, _num_rows(largest))
        if num_parts > 1:
            compared = f"{_num_rows(largest)} rows in one batch and in {num_parts} parts: the loss and all gradients"
            pair = (_gradients(trainer, [largest], parts) for parts in (1, num_parts))
            yield _compare("split batch", compared, *pair, tolerance=_DOUBLE_TOLERANCE, is_joint=True)
        total = sum(batch.num_targets for batch in batches)
        singles = [(batch.num_targets / total, _gradients(trainer, [batch])) for batch in batches]
        # Losses are sums over targets; gradients are those of the mean.
        summed: dict[str, Tensor] = {}
        for share, each in singles:
            for key, value in each.items():
                part = value if key == "loss" else share * value
                summed[key] = summed[key] + part if key in summed else part
        compared = f"{len(batches)} batches with {total:,} targets, in one update and weighted one by one, in float64"
        found = _gradients(trainer, batches)
        yield _compare(name, compared, summed, found, tolerance=_DOUBLE_TOLERANCE, is_joint=True)


def _gradients(trainer: Trainer, batches: Sequence[Batch], num_parts: int = 1) -> dict[str, Tensor]:
    """The summed loss, and the gradients of its mean over targets."""
    torch.manual_seed(0)
    trainer.updater.num_pieces = num_parts
    trainer.updater.carried.clear()
    loss = trainer.updater.gradients(batches)
    named = {f"gradient of {key}": each.grad for key, each in trainer.model.named_parameters()}
    found = {"loss": loss} | {key: grad.clone() for key, grad in named.items() if grad is not None}
    trainer.optimizer.zero_grad(set_to_none=True)
    return found


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _to_double(tensor: Tensor | None) -> Tensor | None:
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor


def _num_rows(batch: Batch) -> int:
    return next(tensor.size(0) for tensor in batch.tensors() if tensor is not None)


def _check_processes(run: Run, data: Prepared) -> Iterator[Equality]:
    """The rows of a batch in one process, and spread over two."""
    if (reason := why_not_shared(run.task)) is not None:
        yield Equality(_PROCESSES, reason, "not applicable")
        return
    # The processes use the CPU, whose batches are not padded to few shapes as those of CUDA graphs are.
    one = _shared_gradients(_trainer(run if run.device.type == "cpu" else Run(run.path, device="cpu"), data))
    with TemporaryDirectory(prefix="regard-check-") as folder:
        path = Path(folder) / "gradients.safetensors"
        try:
            with quiet_logs():
                launch(_SHARED_GRADIENTS, {"run": str(run.path), "path": str(path)}, 2)
        except (RunError, ProcessError, DeviceError) as error:
            yield Equality(_PROCESSES, "two processes compute the gradients together", "fails", where=str(error))
            return
        two, _ = read_tensors(path)
    compared = "the loss and all gradients of two batches, by one process and by two, in float64"
    yield _compare(_PROCESSES, compared, one, two, tolerance=_DOUBLE_TOLERANCE, is_joint=True)


def write_shared_gradients(run: str, path: str) -> None:
    """What each of the processes of `_check_processes` computes; rank 0 writes the sum."""
    with joined("cpu") as group:
        found = Run(run, device="cpu")
        gradients = _shared_gradients(_trainer(found, _training_data(found)))
        if group.is_first:
            write_tensors(Path(path), gradients, {})


def _shared_gradients(trainer: Trainer) -> dict[str, Tensor]:
    torch.manual_seed(0)
    batches = [trainer.training_batch(number) for number in range(2)]
    trainer.model.double().eval()
    with _default_dtype(torch.float64):
        return _gradients(
            trainer, [batch.with_tensors([_to_double(each) for each in batch.tensors()]) for batch in batches]
        )


# Inference


def _check_caches(run: Run) -> Iterator[Equality]:
    """Decoding from a cache, in each of its forms, and from the whole prefix."""
    decoder = next((each for each in run.model.modules() if isinstance(each, Decoder) and _generates(each)), None)
    if decoder is None:
        yield Equality("cached decoding", "the model does not generate tokens", "not applicable")
        return
    tokens, encoded, alone = _decoder_inputs(decoder)
    with torch.no_grad():
        expected = decoder.decode(tokens, encoded)
        for backend, fast in (("", decoder), (", packed weights", decoder.for_inference())):
            forms = {
                f"cached decoding: {form}{backend}": logits for form, logits in _cached_logits(fast, tokens, encoded)
            }
            forms[f"batched decoding{backend}"] = _slot_logits(fast, tokens, alone)
            for name, logits in forms.items():
                read = logits.size(1)
                yield _compare(
                    name,
                    f"the logits of {_SEQUENCES} sequences: {read} tokens one by one, and all at once",
                    *({f"logits of token {place + 1}": each[:, place] for place in range(read)}
                      for each in (expected, logits)),
                    tolerance=_TOLERANCE,
                )  # fmt: skip


def _slot_logits(decoder: Any, tokens: Tensor, sources: Sequence[EncoderOutput | None]) -> Tensor:
    """The logits after each token where sequences that have read 1, 3 and 5 tokens share a batch, as in a server."""
    counts = [2 * row + 1 for row in range(len(tokens))]
    longest = max(map(_length_of, sources))
    static = decoder.static_state(len(tokens), tokens.size(1), source_length=longest)
    logits = torch.zeros(*tokens.shape, decoder.vocab_size, device=tokens.device, dtype=decoder.dtype)
    for row, count in enumerate(counts):
        before = decoder.initial_state(sources[row])
        logits[row, :count], state = decoder.step(tokens[row : row + 1, :count], before)
        static.put(torch.tensor([row], device=tokens.device), state)
    num_steps = tokens.size(1) - counts[-1]
    for step in range(num_steps):
        new = torch.stack([tokens[row, count + step] for row, count in enumerate(counts)])
        found, static = decoder.step(new[:, None], static)
        for row, count in enumerate(counts):
            logits[row, count + step] = found[row, 0]
    return logits[:, : counts[0] + num_steps]


def _generates(decoder: Any) -> bool:
    return getattr(decoder, "output", None) is not None and bool(decoder.config.decoder_depth)


@torch.no_grad()
def _decoder_inputs(decoder: Any) -> tuple[Tensor, EncoderOutput | None, Sequence[EncoderOutput | None]]:
    """Tokens of the vocabulary; where the decoder attends to sources, their encoder output, with padding and alone."""
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(decoder.vocab_size, (_SEQUENCES, _TOKENS), generator=rng).to(decoder.device)
    if not decoder.config.encoder_depth:
        return tokens, None, [None] * _SEQUENCES
    lengths = [7, 4, 5]
    try:
        source = torch.randint(decoder.source_vocab_size, (_SEQUENCES, 7), generator=rng).to(decoder.device)
        together = decoder.encode(source, torch.tensor(lengths).to(decoder.device))
        alone = [decoder.encode(row[None, :length]) for row, length in zip(source, lengths, strict=True)]
    except ConfigError:  # it reads the hidden states of another model, such as one of images
        states = torch.randn(_SEQUENCES, 7, decoder.config.model_dim, generator=rng).to(decoder.device, decoder.dtype)
        mask = (torch.arange(7) < torch.tensor(lengths)[:, None])[:, None, None].to(decoder.device)
        together = EncoderOutput(states, mask)
        alone = [EncoderOutput(row[None, :length], None) for row, length in zip(states, lengths, strict=True)]
    return tokens, together, alone


def _cached_logits(decoder: Any, tokens: Tensor, encoded: EncoderOutput | None) -> Iterator[tuple[str, Tensor]]:
    """The logits after each token, from each form of a state."""

    def start() -> Any:
        return decoder.initial_state(encoded, batch_size=len(tokens))

    static = decoder.static_state(len(tokens), tokens.size(1), source_length=_length_of(encoded))
    static.put(torch.arange(len(tokens), device=tokens.device), start())
    rows = torch.arange(len(tokens), device=tokens.device).flip(0)
    for form, state, order in (
        ("state that grows", start(), None),
        ("state of fixed size", static, None),
        ("state of a beam, reordered", decoder.beam_state(start()), rows),
    ):
        steps, current = [], tokens
        for place in range(tokens.size(1)):
            if order is not None and place:  # reversed before each step, and with it the sequences
                state, current = state.select(order), current[order]
            logits, state = decoder.step(current[:, place : place + 1], state)
            is_reversed = order is not None and place % 2
            steps.append(logits[order] if is_reversed else logits)
        yield form, torch.cat(steps, dim=1)


def _length_of(encoded: EncoderOutput | None) -> int:
    """The positions of an encoder output; 0 for none."""
    return 0 if encoded is None else encoded.hidden_states.size(1)


def _check_batches(run: Run) -> Iterator[Equality]:
    """Rows in one batch and one by one: likelihoods, and predictions."""
    rows = _rows_of_different_lengths(run)
    if len(rows) < 2:
        yield Equality("batched inputs", "there are fewer than two validation rows", "not applicable")
        return
    yield _check_likelihoods(run, rows)
    if run.task.has_targets:
        yield _check_predictions(run, rows)


def _rows_of_different_lengths(run: Run) -> list[tuple[str, ...]]:
    """A few validation rows, from the shortest to the longest."""
    rows = run.folder.read_held_out("valid")[:_NUM_CANDIDATES]
    ordered = sorted(rows, key=lambda row: sum(map(len, row)))
    places = torch.linspace(0, len(ordered) - 1, min(_NUM_ROWS, len(ordered))).long().unique().tolist()
    return [ordered[place] for place in places]


def _check_likelihoods(run: Run, rows: list[tuple[str, ...]]) -> Equality:
    def losses(some: Sequence[tuple[str, ...]]) -> list[float]:
        return sorted(run.task.likelihoods(run.model, run.task.row_batches(some), run.device).losses)

    compared = f"the log-likelihoods of {len(rows)} validation rows, together and one by one"
    together = losses(rows)
    alone = [losses([row]) for row in rows]
    if run.task.uses_whole_batch or len(together) != sum(map(len, alone)):
        return Equality("batched inputs", "rows are read as one text, or compared with each other", "not applicable")
    # Batches are ordered by length: the values are compared in their own order.
    pairs = (together, sorted(loss for some in alone for loss in some))
    tensors = ({f"loss {number}": torch.tensor(each) for number, each in enumerate(some, 1)} for some in pairs)
    equality = _compare("batched inputs", compared, *tensors, tolerance=_TOLERANCE)
    if equality.verdict == "fails":
        return Equality(**{**asdict(equality), "where": f"{equality.where}; {_first_layer(run, rows)}"})
    return equality


def _check_predictions(run: Run, rows: list[tuple[str, ...]]) -> Equality:
    name, inputs = "batched predictions", [run.task.input_of(row) for row in rows]
    try:
        together = [each.to_json() for each in run.predict_full(inputs)]
        alone = [run.predict_full([text])[0].to_json() for text in inputs]
    except (ConfigError, RunError) as error:
        return Equality(name, str(error), "not applicable")
    compared = f"the predictions of {len(rows)} validation rows, together and one by one"
    largest, where = 0.0, ""
    for number, (one, other) in enumerate(zip(together, alone, strict=True), 1):
        difference = _value_difference(one, other)
        if difference > _TOLERANCE and not where:
            where = f"input {number}: {one.get('output')!r} together, {other.get('output')!r} alone"
        largest = max(largest, difference)
    return Equality(name, compared, "fails" if where else "holds", largest, _TOLERANCE, where)


def _value_difference(one: Any, other: Any) -> float:
    """The largest difference between numbers at the same place; infinite where anything else differs."""
    match one, other:
        case (Mapping(), Mapping()) if one.keys() == other.keys():
            return max((_value_difference(one[key], other[key]) for key in one), default=0.0)
        case (list(), list()) if len(one) == len(other):
            return max((_value_difference(*pair) for pair in zip(one, other, strict=True)), default=0.0)
        case (int() | float(), int() | float()):
            return abs(one - other) / max(1.0, abs(one), abs(other))
        case (str(), str()) if one != other:
            try:
                return _value_difference(float(one), float(other))
            except ValueError:
                return math.inf
        case _:
            return 0.0 if one == other else math.inf


def _first_layer(run: Run, rows: list[tuple[str, ...]]) -> str:
    """The first layer whose output for a row differs in a batch."""
    shortest, longest = rows[0], rows[-1]
    together = _layer_outputs(run, [shortest, longest])
    for row in (shortest, longest):
        for name, (single, *_) in _layer_outputs(run, [row]).items():
            if name in together and not any(_is_row(single, batched) for batched in together[name]):
                return f"the first layer that differs is {name}"
    return "no single layer differs by itself"


def _is_row(single: Tensor, batched: Tensor) -> bool:
    """Whether some row of a batch begins with the output for a single row; True where shapes cannot be compared."""
    if single.ndim != batched.ndim or single.ndim < 2 or single.size(0) != 1 or single.shape[2:] != batched.shape[2:]:
        return True
    length = min(single.size(1), batched.size(1))
    scale = max(1e-6, float(single.abs().max()))
    return any(float((row[:length] - single[0, :length]).abs().max()) <= 10 * _TOLERANCE * scale for row in batched)


def _layer_outputs(run: Run, rows: Sequence[tuple[str, ...]]) -> dict[str, list[Tensor]]:
    """The outputs of each module in the first forward pass over the rows, by the order of the calls."""
    found: dict[str, list[Tensor]] = {}

    def remember(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                found.setdefault(name, []).append(output.detach().clone())

        return hook

    handles = [each.register_forward_hook(remember(name)) for name, each in run.model.named_modules() if name]
    try:
        run.task.likelihoods(run.model, run.task.row_batches(list(rows)), run.device)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _check_adapter(run: Run) -> Iterator[Equality]:
    """The model with its LoRA updates merged, and with them beside its weights."""
    name, tuned = "merged adapter", run.settings.finetune
    if tuned is None or not tuned.is_adapter:
        yield Equality(name, "the run has no LoRA adapter", "not applicable")
        return
    rows = _rows_of_different_lengths(run)
    if not rows:
        yield Equality(name, "there are no validation rows", "not applicable")
        return
    found = [
        run.task.likelihoods(model, run.task.row_batches(rows), run.device).losses
        for model in (run.unmerged(), run.model)
    ]
    tensors = ({f"row {number}": torch.tensor(each) for number, each in enumerate(some, 1)} for some in found)
    compared = f"the log-likelihoods of {len(rows)} validation rows, with the updates merged and beside the weights"
    equality = _compare(name, compared, *tensors, tolerance=_TOLERANCE)
    if equality.verdict == "fails":
        equality = Equality(**{**asdict(equality), "where": f"{equality.where}; {_first_merged(run)}"})
    yield equality


def _first_merged(run: Run) -> str:
    """The first adapted layer whose merged weight is not the sum of its weight and its update."""
    from regard.adapters.lora import adapted_layers, linear_layers

    plain = linear_layers(run.model)
    for name, layer in adapted_layers(run.unmerged()).items():
        example = torch.randn(3, plain[name].in_features, device=run.device)
        with torch.no_grad():
            one, other = layer(example), plain[name](example)
        if float((one - other).abs().max()) > _TOLERANCE * float(one.abs().max()):
            return f"the first layer that differs is {name}"
    return "no single layer differs by itself"


def _check_exports(run: Run) -> Iterator[Equality]:
    """Each export that the run supports, read back."""
    for exporter in EXPORTERS:
        name = f"export to {exporter.name}"
        with TemporaryDirectory(prefix="regard-check-") as folder:
            try:
                made = export_model(run, Path(folder) / f"export{exporter.suffix}", to=exporter.name)
            except CheckpointError as error:
                yield Equality(name, "what was written is read back", "fails", where=str(error))
                continue
            except (ConfigError, RunError, DeviceError) as error:
                yield Equality(name, str(error), "not applicable")
                continue
        yield Equality(name, str(made), "holds", made.difference)


def _compare(
    name: str,
    compared: str,
    one: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    *,
    tolerance: float,
    is_joint: bool = False,
) -> Equality:
    """Compare tensors of the same names; the difference of each is relative to its largest value.

    With `is_joint` it is relative to the largest value of all: a gradient that is 0 but for rounding has no scale.
    """
    if one.keys() != other.keys():
        missing = sorted(one.keys() ^ other.keys())[0]
        return Equality(name, compared, "fails", math.inf, tolerance, f"only one of them has {missing}")
    one, other = ({key: each.detach().double().cpu() for key, each in some.items()} for some in (one, other))
    scales = {key: float(each.abs().max()) if each.numel() else 0.0 for key, each in one.items()}
    common = max((scale for key, scale in scales.items() if key != "loss"), default=0.0)
    largest, where = 0.0, ""
    for key, each in one.items():
        if not each.numel():
            continue
        apart = torch.where(each == other[key], 0.0, (each - other[key]).abs()).max()  # infinite values can be equal
        scale = common if is_joint and key != "loss" else scales[key]
        difference = 0.0 if float(apart) == 0 else float(apart) / max(scale, 1e-12)
        if not difference <= tolerance and not where:
            where = f"the first that differs is {key}"
        largest = max(largest, difference) if math.isfinite(difference) else math.inf
    return Equality(name, compared, "fails" if where else "holds", largest, tolerance, where)
