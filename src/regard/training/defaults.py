"""From what the user has set to settings in which every field has a value.

`draft` lays the user's values over a preset, so that a misspelled setting is an
error before the data is read. `resolve` fills in what depends on the data, the
model and the device; each default is declared once, here or by the task, with
its reason.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from regard.data.builtin import find_builtin
from regard.data.codecs.text import TextCodec
from regard.data.formats.messages import format_count
from regard.data.prepare import Prepared
from regard.data.sources import is_builtin
from regard.data.stores.tokens import TokenStream
from regard.errors import ConfigError
from regard.logging import log_info, log_warning
from regard.models.family import ModelConfig, find_family
from regard.models.heads import HeadConfig
from regard.models.presets import Size, find_preset, has_size, preset_names
from regard.nn.precision import fits_float8, has_float8
from regard.selection.releases import AUTO, default_parameter
from regard.settings import merge_tables, require_table
from regard.tasks.capabilities import LinearProber
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.registry import find_task, make_task
from regard.tasks.task import Task
from regard.tasks.text import TextSettings
from regard.training.finetuning import FinetuneConfig, default_learning_rate
from regard.training.optimizers import OPTIMIZER_TRAITS
from regard.training.precision import Hardware, choose_hardware, choose_threads
from regard.training.settings import DraftSettings, ResolvedSettings, TrainConfig, num_released_rows

_FEW_ROWS, _MANY_ROWS = 20_000, 500_000
_FEW_TOKENS, _MANY_TOKENS = 200_000, 200_000_000
"""Fewer rows, or tokens of running text, are overfitted by a small model; more are underfitted by one."""
_MIN_STEPS, _EPOCHS = 2_000, 20
"""Without a budget: enough steps for small data, enough passes for large data; early stopping ends most runs before."""
_COMPILED_MINUTES = 4.0
"""A run of this length gains more from torch.compile than the compilation takes."""

_FINETUNING: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "linear",
    "label_smoothing": 0.0,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "ema_decay": 0.0,
    "patience": 0,
}
"""Small steps and few passes, for a model that is pretrained."""
_FINETUNING_STEPS, _MOST_EPOCHS, _FEWEST_EPOCHS = 300, 30.0, 3.0
_FINETUNING_WARMUP = 0.06
_FEW_LABELS, _RATE_FOR_FEW = 1_000, 1 / 3
"""A run on fewer rows has few steps, in which the usual peak forgets more than it learns: a third of it."""
_EVALUATIONS, _FEWEST_VALIDATION_ROWS = 12, 100
"""Fewer validation rows cannot select a checkpoint: such a run is evaluated once, at its end."""


def draft(values: Mapping[str, Any], *, size: Size = "tiny") -> DraftSettings:
    """The user's values over those of a preset; `size` where its name has none.

    `values["task"]["name"]` is the task.
    """
    task = find_task(values["task"]["name"])
    full_name, model = find_preset(preset_of(values, task), size)
    model = merge_tables(_fitted(model, task), require_table(values.get("model", {}), "model"))
    sections = {name: values.get(name, {}) for name in ("head", "data", "train", "generate")}
    given = {**sections, "task": values["task"], "model": model, "preset": full_name}
    if values.get("finetune"):
        given["finetune"] = values["finetune"]
    unknown = {name: value for name, value in values.items() if name not in (*given, "finetune")}
    settings = DraftSettings.read({**given, **unknown})
    return _with_tokenizer(settings)


def preset_of(values: Mapping[str, Any], task: type[Task[Any]]) -> str:
    """The preset that is set, the first of the family that is set, or the task's own."""
    if values.get("preset"):
        return str(values["preset"])
    family = require_table(values.get("model", {}), "model").get("family")
    default = task.default_preset
    if family is None or find_preset(default)[1]["family"] == family:
        return default
    return next((kind for kind in find_family(family).presets), default)


def _fitted(model: dict[str, Any], task: type[Task[Any]]) -> dict[str, Any]:
    """The shape with the stacks that the task needs."""
    family = find_family(model["family"])
    if task.architecture == "decoder":
        return family.decoder_only(model)
    return model if task.architecture == "encoder-decoder" else family.encoder_only(model)


def _with_tokenizer(settings: DraftSettings) -> DraftSettings:
    """The settings with the kind of tokenizer: that of given embeddings, of a built-in data set, or byte-level BPE."""
    task = settings.task
    if not isinstance(task, TextSettings) or task.tokenizer is not None:
        return settings
    if task.embeddings is not None:
        kind = str(Path(task.embeddings) / "codecs" / "text.json")
    else:
        kind = find_builtin(settings.data.train[0]).tokenizer if is_builtin(settings.data) else "bpe"
    return settings.model_copy(update={"task": task.model_copy(update={"tokenizer": kind})})


def choose_size(data: Prepared, *, has_gpu: bool) -> Size:
    """The size of model for this many training rows, or tokens of text, on such a machine."""
    few, many = (_FEW_TOKENS, _MANY_TOKENS) if isinstance(data.train, TokenStream) else (_FEW_ROWS, _MANY_ROWS)
    if len(data.train) < few or not has_gpu:
        return "tiny"
    return "small" if len(data.train) < many else "base"


def with_model_defaults(values: Mapping[str, Any], data: Prepared, *, size: Size = "tiny") -> dict[str, Any]:
    """The user's values, with what the task changes of the preset for this data and budget."""
    settings = draft(values, size=size)
    task = make_task(settings.task)
    device = "cuda" if find_hardware(settings).device.type == "cuda" else "cpu"
    chosen = dict(task.defaults(_context(settings, data, device)).model)
    preset = preset_of(values, type(task))
    kept = find_preset(preset)[1] if has_size(preset) else {}
    known = type(settings.model).model_fields.keys() - kept.keys()
    if any(map(_is_shape, values.get("model", {}))):  # widths and numbers must fit together
        known = {name for name in known if not _is_shape(name)}
    chosen = {name: value for name, value in chosen.items() if name in known}
    return merge_tables({"model": chosen}, values) if chosen else dict(values)


def _is_shape(name: str) -> bool:
    return name.startswith("num_") or name.endswith("_dim")


def _context(settings: DraftSettings, data: Prepared, device: Literal["cpu", "cuda"]) -> DefaultsContext:
    train, tuned = settings.train, settings.finetune
    return DefaultsContext(
        data,
        settings.model,
        device,
        is_finetuned=tuned is not None,
        method=None if tuned is None else tuned.method,
        minutes=train.minutes,
        max_steps=train.max_steps,
        max_epochs=train.max_epochs,
    )


def _explain(settings: DraftSettings, defaults: Defaults) -> None:
    """Log why defaults have been chosen, except where the user has set something else."""
    for name, reason in defaults.reasons.items():
        section, _, field = name.partition(".")
        values = getattr(settings, section)
        if section == "model":  # has the values of the preset, and those that were chosen
            is_used = getattr(values, field, None) == defaults.model[field]
        else:
            is_used = field not in values.model_fields_set
        if is_used:
            log_info(f"{name} {reason}")


def find_hardware(settings: DraftSettings | ResolvedSettings) -> Hardware:
    """The device and precision of a run; bfloat16 on a CPU only where the model is known to gain from it."""
    width = settings.model.model_dim if settings.model.gains_from_bf16_on_cpu else 0
    train = settings.train
    return choose_hardware(train.device, train.precision, width, threads=train.threads)


def resolve(settings: DraftSettings, data: Prepared) -> ResolvedSettings:
    """Fill in what depends on the data, the model and the device."""
    hardware, tuned = find_hardware(settings), settings.finetune
    device = "cuda" if hardware.device.type == "cuda" else "cpu"
    unbound = make_task(settings.task)
    defaults = unbound.defaults(_context(settings, data, device))
    _explain(settings, defaults)
    task_settings = type(unbound).Settings.read(_filled(settings.task, defaults.task), section="task")
    task = make_task(task_settings, data.codecs)
    task.check(model=settings.model, is_finetuned=tuned is not None, held_out=data.held_out)
    given = {name: value for name, value in settings.train.model_dump().items() if value is not None}
    is_set = settings.train.model_fields_set
    values = {**defaults.train, **({**_FINETUNING, **defaults.finetune_train} if tuned else {})}
    train = {
        **given,
        **{name: value for name, value in values.items() if name not in is_set or given.get(name) is None},
    }
    head = HeadConfig.read(_filled(settings.head, {"pooling": "mean", **defaults.head}), section="head")
    if tuned is not None:
        has_linear_head = isinstance(task, LinearProber) and task.has_linear_head(head)
        rates = defaults.finetune if train["optimizer"] != "muon" else {}
        tuned = tuned.changed(**{**_filled(tuned, rates), "probe": tuned.probe and has_linear_head})
    if train["optimizer"] != values["optimizer"] and "learning_rate" not in is_set:
        train.pop("learning_rate", None)  # that of the task is for another optimizer
    train = {**train, **_budget(train, task, data, tuned)}
    train = {**train, **_schedule(train, is_set, settings.model, data, tuned, task)}
    if train["compile"] == "auto":
        is_long = (train.get("minutes") or 0.0) >= _COMPILED_MINUTES and isinstance(data.train, TokenStream)
        is_divided = train["sharding"] != "none" or train["tensor_parallel"] > 1
        can_compile = settings.model.can_compile and device == "cuda" and not is_divided
        train["compile"] = "always" if is_long and can_compile else "never"
    if device == "cpu" and train.get("threads") is None and train.get("minutes") is None:
        train["threads"], why = choose_threads()
        if why:
            log_info(f"train.threads {train['threads']}: {why}")
    if settings.train.release is not None:
        train |= _release(settings.train, task, data)
    if train["select_by"] == "auto":
        train["select_by"] = "score" if task.selects_by_score(device) else "loss"
    resolved = ResolvedSettings(
        preset=settings.preset,
        task=task_settings,
        model=settings.model,
        head=head,
        data=settings.data,
        train=TrainConfig.read(train, section="train"),
        generate=settings.generate,
        finetune=tuned,
    )
    _check(resolved, task, data, hardware, is_set=is_set)
    _report(resolved, task.token_unit)
    return resolved


def _filled(settings: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a draft, with defaults in the place of those that the user has not set."""
    values, is_set = settings.model_dump(), settings.model_fields_set
    unset = {name: value for name, value in defaults.items() if name not in is_set or values.get(name) is None}
    return {**values, **unset}


def _budget(train: Mapping[str, Any], task: Task[Any], data: Prepared, tuned: FinetuneConfig | None) -> dict[str, Any]:
    """The number of steps, where no budget is set."""
    if any(train.get(name) is not None for name in ("max_steps", "max_epochs", "minutes")):
        return {}
    if tuned is not None and tuned.probe and tuned.method == "head":
        return {}
    batches = task.batches(data, batch_tokens=train["batch_tokens"], seed=train["seed"])
    if tuned is not None:
        epochs = min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, _FINETUNING_STEPS / batches.per_epoch))
        return {"max_steps": max(1, round(epochs * batches.per_epoch / train["accumulate"]))}
    steps = max(_MIN_STEPS, _EPOCHS * batches.per_epoch // train["accumulate"])
    log_info(
        f"no budget is set: at most {steps:,} steps, with early stopping after {train['patience']} evaluations "
        "without a better score or loss"
    )
    return {"max_steps": steps}


def _release(train: TrainConfig, task: Task[Any], data: Prepared) -> dict[str, Any]:
    """The settings of a run whose scores are released: nothing else that depends on validation targets is shown."""
    assert train.release is not None, "a mechanism is set"
    (name, parameter), rows = train.release, data.held_out["valid"]
    if not task.has_targets or not rows:
        what = "no validation rows" if task.has_targets else "no predictions to score"
        raise ConfigError(f"train.{name} releases a score on validation rows, and {task.description} has {what} here")
    if train.select_by == "loss":
        raise ConfigError(f"train.{name} does not release losses: train.select_by must be score")
    if parameter == AUTO:
        parameter = default_parameter(name, num_released_rows(task, len(rows)))
        log_info(f"{name} {parameter:g}, for {num_released_rows(task, len(rows)):,} validation rows")
    return {name: parameter, "select_by": "score", "baseline": False}


def _schedule(
    train: Mapping[str, Any],
    is_set: set[str],
    model: ModelConfig,
    data: Prepared,
    tuned: FinetuneConfig | None,
    task: Task[Any],
) -> dict[str, Any]:
    """The peak of the learning rate, the warmup, and when the model is evaluated."""
    values: dict[str, Any] = {}
    max_steps, traits = train.get("max_steps"), OPTIMIZER_TRAITS[train["optimizer"]]
    if tuned is None:
        rate = traits.learning_rate(model.model_dim) * model.lr_scale
        warmup = model.default_warmup_steps or train["warmup_steps"]
        warmup = min(warmup, max(1, max_steps // 10)) if max_steps else warmup
    else:
        is_few = not isinstance(data.train, TokenStream) and len(data.train) < _FEW_LABELS
        rate = default_learning_rate(model.model_dim, tuned.method) * (_RATE_FOR_FEW if is_few else 1.0)
        if traits.reason:  # that of adamw, by as much more or less as for training from scratch
            rate *= traits.learning_rate(model.model_dim) / OPTIMIZER_TRAITS["adamw"].learning_rate(model.model_dim)
        steps = max_steps or _MIN_STEPS
        warmup, between = max(1, round(_FINETUNING_WARMUP * steps)), max(10, steps // _EVALUATIONS)
        if tuned.probe and max_steps is None:
            # The number of steps is not known, and may be that of a few epochs; a solved head needs no long warmup.
            epoch = task.batches(data, batch_tokens=train["batch_tokens"], seed=train["seed"]).per_epoch
            warmup, between = min(warmup, max(1, epoch // 2)), min(between, max(10, epoch))
        num_valid = len(data.held_out["valid"])
        is_blind = not isinstance(data.train, TokenStream) and num_valid < _FEWEST_VALIDATION_ROWS
        if "evaluate_every" not in is_set and (is_blind or not train.get("minutes")):
            values["evaluate_every"] = steps if is_blind else between
    if "learning_rate" not in is_set and train.get("learning_rate") is None:
        values["learning_rate"] = float(f"{rate:.2g}")
        if traits.reason:
            log_info(f"train.learning_rate {values['learning_rate']:g} for {train['optimizer']}: {traits.reason}")
    if "warmup_steps" not in is_set:
        values["warmup_steps"] = warmup
    return values


def _check(
    settings: ResolvedSettings, task: Task[Any], data: Prepared, hardware: Hardware, *, is_set: set[str]
) -> None:
    """Raise ConfigError where settings cannot be combined, or would have no effect."""
    train, model, tuned = settings.train, settings.model, settings.finetune
    for name in ("label_smoothing", "rdrop"):
        if getattr(train, name) and name not in task.objective_terms():
            which = f"{task.description} with these [task] settings" if name in task.objectives else task.description
            raise ConfigError(f"train.{name} has no effect for {which}, got {getattr(train, name)}")
    if train.select_by == "score" and not task.has_targets:
        raise ConfigError(f"{task.description} has no predictions to score: train.select_by must be loss")
    if train.compile == "always" and not model.can_compile:
        raise ConfigError(f"models of family {model.family} cannot be compiled: train.compile must be never")
    if train.optimizer == "muon" and not model.can_use_muon:
        log_warning(f"muon is tested with Transformers, and model.family is {model.family}")
    own = OPTIMIZER_TRAITS[train.optimizer].settings
    for name in ("beta1", "beta2", "epsilon", "weight_decay"):
        if name in is_set and name not in own:
            log_warning(f"train.{name} has no effect with train.optimizer={train.optimizer}")
    if tuned is not None and train.optimizer == "muon" and (tuned.layer_decay != 1.0 or tuned.gradual):
        raise ConfigError("finetune.layer_decay and finetune.gradual are not for muon, got train.optimizer=muon")
    if isinstance(settings.task, TextSettings) and settings.task.embeddings is not None and tuned is not None:
        raise ConfigError("task.embeddings is for models that are trained from scratch: a base has embeddings")
    model.check_length(task.num_positions(data))
    if train.float8 and (reason := _why_not_float8(settings, data, hardware)):
        log_warning(f"train.float8 has no effect: {reason}")


def _why_not_float8(settings: ResolvedSettings, data: Prepared, hardware: Hardware) -> str | None:
    width = settings.model.model_dim
    sizes = [codec.tokenizer.vocab_size for codec in data.codecs.values() if isinstance(codec, TextCodec)]
    if settings.train.rdrop:
        return "train.rdrop needs all logits at once"
    if not sizes or not fits_float8(max(sizes), width):
        return f"vocabulary and width must be multiples of 16, got {max(sizes, default=0):,} and {width:,}"
    if not has_float8(hardware.device):
        return "the device has no float8 matrix products"
    return None


def _report(settings: ResolvedSettings, unit: str) -> None:
    train = settings.train
    if settings.is_probe_alone:  # there are no steps
        return
    window = getattr(settings.task, "window", None)
    log_info(
        f"{train.optimizer}, learning rate {train.learning_rate:g} after "
        f"{'at most ' if train.minutes else ''}{format_count(train.warmup_steps, 'warmup step')}, "
        f"{train.batch_tokens:,} {unit} a batch" + (f" in windows of {window:,}" if window else "")
    )


def known_presets() -> list[str]:
    """The names of presets, for help and messages."""
    return preset_names()
