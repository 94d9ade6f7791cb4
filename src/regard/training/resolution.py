"""From what the user said to settings without gaps."""

import math
from collections.abc import Mapping
from typing import Any

from regard.data.aspects import require_known
from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.sources import usual_tokenizer
from regard.data.store import TokenStore
from regard.data.stream import TokenStream
from regard.data.tagged import ignores_case
from regard.errors import ConfigError
from regard.logging import log_info, log_warning
from regard.models.families import longest_sequence
from regard.models.presets import KINDS, Size, preset, without_decoder, without_encoder
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig
from regard.models.vision import require_reader
from regard.nn.float8 import fits_float8, has_float8
from regard.settings import merge
from regard.tasks import find_task
from regard.training.precision import find_device
from regard.training.settings import RunSettings, TrainConfig

_FEW_ROWS, _MANY_ROWS = 20_000, 500_000
_FEW_TOKENS, _MANY_TOKENS = 200_000, 200_000_000
_MIN_STEPS, _EPOCHS = 2_000, 20
_WARMUP, _TEXT_WARMUP, _POST_NORM_WARMUP = 200, 40, 4_000
_RATE, _MUON_RATE = 0.03, 0.2
_BATCH_TOKENS = {"cpu": 1_024, "cuda": 4_096}
"""A CPU gains nothing from larger batches, and many small steps learn more than few large ones."""
_TEXT_BATCH_TOKENS = {"cpu": 1_024, "cuda": 8_192}
_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "label_smoothing": 0.1,
    "schedule": "cosine",
    "beta2": 0.98,
    "weight_decay": 0.01,
    "average": 0.998,
}
_TEXT_DEFAULTS: dict[str, Any] = {
    "optimizer": "muon",
    "label_smoothing": 0.0,
    "schedule": "trapezoid",
    "beta2": 0.95,
    "weight_decay": 0.1,
    "average": 0.98,
}
"""What learns fastest by the experiments in docs/log.md."""
_READING_DEFAULTS = {**_DEFAULTS, "label_smoothing": 0.0, "average": 0.99}
_WINDOW = {"cpu": 128, "cuda": 256}
_WIDE, _WIDE_WINDOW = 512, 1_024
"""From this width on a GPU reads windows of this length."""
_FEWEST_WINDOWS, _LEAST_WINDOW = 8, 8
_LONG_RUN_MINUTES = 4.0
"""A run that lasts so long gains more from being compiled than that takes."""
_PRESETS = {"translation": "transformer", "language": "gpt", "recognition": "vit"}


def choose_size(data: Prepared, *, has_gpu: bool) -> Size:
    """How large a model is right for so many training rows, or tokens of text, on such a machine."""
    few, many = (_FEW_TOKENS, _MANY_TOKENS) if isinstance(data.train, TokenStream) else (_FEW_ROWS, _MANY_ROWS)
    if len(data.train) < few or not has_gpu:
        return "tiny"
    return "small" if len(data.train) < many else "base"


def usual_preset(values: Mapping[str, Any]) -> str:
    """The preset to start from: the one that is set, or the first of the family that is set, or a Transformer."""
    usual = _PRESETS.get(values.get("task", "translation"), "transformer")
    model = values.get("model")
    family = model.get("family", "transformer") if isinstance(model, Mapping) else "transformer"
    if KINDS[usual][1]["family"] == family:
        return values.get("preset") or usual
    first = next((name for name, (_, same) in KINDS.items() if same["family"] == family), usual)
    return values.get("preset") or first


def task_of(name: str) -> str:
    """What a preset is for: a decoder alone for text, an encoder alone for pictures, anything else for pairs."""
    model = preset(name)[1]
    if model.get("decoder_layers") == 0:
        return "recognition"
    return "language" if model.get("encoder_layers") == 0 else "translation"


def with_preset(values: Mapping[str, Any], name: str, size: Size = "tiny") -> RunSettings:
    """The user's settings laid over those of a preset; `size` where its name has none."""
    full_name, model = preset(str(name), size)
    task = values.get("task", "translation")
    if task == "language":
        model = without_encoder(model)
    elif task != "translation":
        model = without_decoder(model)
    settings = RunSettings.read(merge(merge({"model": model}, values), {"preset": full_name}))
    if task == "recognition":
        require_reader(settings.model)
    tokenizer = "bytes" if task == "recognition" else usual_tokenizer(settings.data)
    return settings.changed(data=settings.data.changed(tokenizer=tokenizer))


def resolve(settings: RunSettings, data: Prepared) -> RunSettings:
    """Fill in what depends on the data and the machine: window, batch, budget, optimizer, peak rate and warm-up."""
    _require_sense(settings)
    settings = _with_asking(settings.changed(data=with_learned(settings.data, data)), data)
    settings = _with_capitals(settings, data)
    if isinstance(data.train, TokenStream):
        window = _window_for(settings, data.train)
        settings = settings.changed(data=settings.data.changed(window=window, isolate=data.is_isolated))
        if settings.data.stride is not None and settings.data.stride > window:
            raise ConfigError(f"data.stride must be at most data.window, got {settings.data.stride} and {window}")
        if data.is_isolated and not isinstance(settings.model, TransformerConfig):
            log_warning(f"a {settings.model.family} model cannot keep documents apart: they run on into one another")
    train = with_task_defaults(settings)
    if train.float8 and (reason := why_not_float8(settings, data.tokenizer.vocab_size)):
        log_warning(f"train.float8 has no effect: {reason}")
    if train.max_steps is None and train.max_epochs is None and train.minutes is None:
        train = train.changed(max_steps=_default_steps(settings, train, data))
        log_info(
            f"no budget was given: at most {train.max_steps:,} steps, "
            f"fewer if {train.patience} looks at the validation rows bring nothing"
        )
    _require_context(settings, data)
    is_post_norm = isinstance(settings.model, TransformerConfig) and settings.model.block == "post-norm"
    if train.learning_rate is None:
        is_delicate = is_post_norm or (isinstance(settings.model, RecurrentConfig) and settings.model.cell == "rnn")
        peak = _MUON_RATE if train.optimizer == "muon" else _RATE
        rate = peak / math.sqrt(settings.model.model_dim) / (2 if is_delicate else 1)
        train = train.changed(learning_rate=float(f"{rate:.2g}"))
    if train.warmup_steps is None:
        warmup = _POST_NORM_WARMUP if is_post_norm else _TEXT_WARMUP if settings.data.window else _WARMUP
        train = train.changed(warmup_steps=min(warmup, max(1, train.max_steps // 10)) if train.max_steps else warmup)
    if train.compile == "auto":
        is_long = train.minutes is not None and train.minutes >= _LONG_RUN_MINUTES
        is_gainful = is_long and isinstance(data.train, TokenStream) and settings.model.family != "recurrent"
        is_gainful = is_gainful and find_device(train.device).type == "cuda"
        train = train.changed(compile="always" if is_gainful else "never")
    log_info(
        f"{train.optimizer} with a peak rate of {train.learning_rate:g} after {train.warmup_steps:,} steps, "
        f"{train.batch_tokens:,} tokens a batch"
        + (f" in windows of {settings.data.window:,}" if settings.data.window else "")
        + (", the state carried from one to the next" if train.carry_state else "")
    )
    return settings.changed(train=train)


def with_learned(config: DataConfig, data: Prepared) -> DataConfig:
    """The settings with what the training rows say: their labels, or what their numbers are like."""
    learned = data.learned
    names = {"labels": list(learned.labels), "aspects": list(learned.aspects)}
    return config.changed(**names, center=learned.center, spread=learned.spread)


def _with_asking(settings: RunSettings, data: Prepared) -> RunSettings:
    """The settings with how aspects are asked for; a query for each needs all of them among the training rows."""
    if settings.task != "aspects":
        return settings
    are_open = settings.finetune is not None or settings.data.format == "semeval-terms"
    asking = settings.head.aspect or ("pair" if are_open else "both")
    if asking != "pair":
        require_known([row for rows in data.held_out.values() for row in rows], settings.data.aspects)
    return settings.changed(head=settings.head.changed(aspect=asking))


def _with_capitals(settings: RunSettings, data: Prepared) -> RunSettings:
    """The settings with whether a tagger is told how words are written."""
    head = settings.head
    if settings.task != "tagging":
        return settings
    can_be_told = bool(settings.model.encoder_depth)
    if head.capitals and not can_be_told:
        raise ConfigError("head.capitals is for models with an encoder, and this one reads forwards alone")
    usual = can_be_told and ignores_case(data.tokenizer)
    return settings.changed(head=head.changed(capitals=usual if head.capitals is None else head.capitals))


def with_task_defaults(settings: RunSettings) -> TrainConfig:
    """The training settings with what suits the task and the device where nothing was said."""
    train, is_text = settings.train, settings.task == "language"
    usual = dict(_TEXT_DEFAULTS if is_text else _DEFAULTS if settings.task == "translation" else _READING_DEFAULTS)
    if settings.model.family != "transformer":
        usual["optimizer"] = "adamw"
    given = {name: getattr(train, name) for name in usual}
    changes = {name: value if given[name] is None else given[name] for name, value in usual.items()}
    return train.changed(batch_tokens=batch_tokens_for(settings), **changes)


def _window_for(settings: RunSettings, stream: TokenStream) -> int:
    """What is set; or what suits the device and the model, as long as the text has a few of them."""
    if settings.data.window is not None:
        return settings.data.window
    device = find_device(settings.train.device).type
    window = _WIDE_WINDOW if device == "cuda" and settings.model.model_dim >= _WIDE else _WINDOW[device]
    window = min(window, longest_sequence(settings.model) or window, len(stream) // _FEWEST_WINDOWS)
    return max(_LEAST_WINDOW, window)


def batch_tokens_for(settings: RunSettings) -> int:
    """The size of a batch: what is set, or what suits the device."""
    usual = _TEXT_BATCH_TOKENS if settings.task == "language" else _BATCH_TOKENS
    return settings.train.batch_tokens or usual[find_device(settings.train.device).type]


def _require_context(settings: RunSettings, data: Prepared) -> None:
    """Learned positions end somewhere; better told now than in the middle of an epoch."""
    limit = longest_sequence(settings.model)
    if isinstance(data.train, TokenStore) and isinstance(data.valid, TokenStore):
        # A translation has a start or an end besides its tokens, what is read has all of them already.
        more = settings.task == "translation"
        longest, what = more + max(data.train.max_length, data.valid.max_length), "the longest row"
        if settings.task == "answering":  # a long text is read in parts
            longest = min(longest, settings.data.max_length)
    else:
        longest, what = settings.data.window or 0, "a window"
    if limit is not None and longest > limit:
        raise ConfigError(
            f"learned positions must reach over {what}, got model.context_length={limit} for {longest} positions"
        )


def why_not_float8(settings: RunSettings, vocab_size: int) -> str | None:
    """What keeps products with the vocabulary from being taken in eight bits, or None."""
    width = settings.model.model_dim
    if settings.train.consistency:
        return "with train.consistency all scores are needed at once"
    if not fits_float8(vocab_size, width):
        return f"both must be multiples of 16, got a vocabulary of {vocab_size:,} tokens and a model {width:,} wide"
    if not has_float8(find_device(settings.train.device)):
        return "this device does not multiply in eight bits"
    return None


def _require_sense(settings: RunSettings) -> None:
    """What only some models or tasks have cannot be set for others."""
    train = settings.train
    is_recurrent, is_text = settings.model.family == "recurrent", settings.task == "language"
    if train.carry_state and not (is_recurrent and is_text):
        raise ConfigError(
            "train.carry_state is for recurrent language models, "
            f"got task={settings.task} and model.family={settings.model.family}"
        )
    if (train.activation_penalty or train.change_penalty) and not is_text:
        raise ConfigError(
            f"train.activation_penalty and train.change_penalty are for language models, got task={settings.task}"
        )
    if settings.head.crf and settings.task != "tagging":
        raise ConfigError(f"head.crf is for tags of words, got task={settings.task}")
    if settings.data.vectors is not None and (settings.finetune is not None or settings.task == "recognition"):
        raise ConfigError("data.vectors is for models of text that start from nothing else: a base has its own")
    if train.contrast and (settings.task != "classification" or settings.data.label_separator is not None):
        raise ConfigError(f"train.contrast is for texts with one label each, got task={settings.task}")
    if settings.head.capitals and settings.task != "tagging":
        raise ConfigError(f"head.capitals is for tags of words, got task={settings.task}")
    if settings.head.aspect is not None and settings.task != "aspects":
        raise ConfigError(f"head.aspect is for aspects of texts, got task={settings.task}")
    if train.compile == "always" and is_recurrent:
        raise ConfigError(
            f"the kernels of recurrent networks cannot be compiled: train.compile must be never, got {train.compile=}"
        )


def _default_steps(settings: RunSettings, train: TrainConfig, data: Prepared) -> int:
    assert train.batch_tokens is not None, "the batch is resolved before the budget"
    task = find_task(settings.task)
    batches = task.batches(data, settings.data, batch_tokens=train.batch_tokens, seed=train.seed)
    return max(_MIN_STEPS, _EPOCHS * batches.per_epoch // train.accumulate)
