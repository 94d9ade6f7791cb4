"""From what the user said to settings without gaps."""

import math
from collections.abc import Mapping
from typing import Any

from regard.config import merge
from regard.data.batches import BatchSampler
from regard.data.preparation import Prepared
from regard.data.sources import usual_tokenizer
from regard.errors import ConfigError
from regard.models.families import AnyConfig
from regard.models.presets import KINDS, Size, preset
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig
from regard.progress import say
from regard.training.precision import find_device
from regard.training.settings import RunSettings, TrainConfig

_FEW_ROWS, _MANY_ROWS = 20_000, 500_000
_MIN_STEPS, _EPOCHS = 2_000, 20
_WARMUP, _POST_NORM_WARMUP = 200, 4_000
_RATE = 0.03
_BATCH_TOKENS = {"cpu": 1_024, "cuda": 4_096}
"""A CPU gains nothing from larger batches, and many small steps learn more than few large ones."""


def choose_size(num_rows: int, *, has_gpu: bool) -> Size:
    """How large a model is right for so many training rows on such a machine.

    Example:
        >>> choose_size(5_000, has_gpu=True), choose_size(29_000, has_gpu=True)
        ('tiny', 'small')
    """
    if num_rows < _FEW_ROWS or not has_gpu:
        return "tiny"
    return "small" if num_rows < _MANY_ROWS else "base"


def usual_preset(values: Mapping[str, Any]) -> str:
    """The preset to start from: the one that is set, or the first of the family that is set, or a Transformer."""
    model = values.get("model")
    family = model.get("family", "transformer") if isinstance(model, Mapping) else "transformer"
    first = next((name for name, (_, same) in KINDS.items() if same["family"] == family), "transformer")
    return values.get("preset") or first


def with_preset(values: Mapping[str, Any], name: str, size: Size = "tiny") -> RunSettings:
    """The user's settings laid over those of a preset; `size` where its name has none."""
    full_name, model = preset(str(name), size)
    settings = RunSettings.read(merge(merge({"model": model}, values), {"preset": full_name}))
    return settings.changed(data=settings.data.changed(tokenizer=usual_tokenizer(settings.data)))


def resolve(settings: RunSettings, data: Prepared) -> RunSettings:
    """Fill in what depends on the data and the machine: the batch, the budget, the peak rate and the warm-up."""
    train = settings.train
    train = train.changed(batch_tokens=batch_tokens_for(train))
    if train.max_steps is None and train.max_epochs is None and train.minutes is None:
        train = train.changed(max_steps=_default_steps(train, data))
        say(
            f"no budget was given: at most {train.max_steps:,} steps, "
            f"fewer if {train.patience} looks at the validation rows bring nothing"
        )
    _require_context(settings, data)
    is_post_norm = isinstance(settings.model, TransformerConfig) and settings.model.block == "post-norm"
    if train.learning_rate is None:
        is_delicate = is_post_norm or (isinstance(settings.model, RecurrentConfig) and settings.model.cell == "rnn")
        rate = _RATE / math.sqrt(settings.model.model_dim) / (2 if is_delicate else 1)
        train = train.changed(learning_rate=float(f"{rate:.2g}"))
    if train.warmup_steps is None:
        warmup = _POST_NORM_WARMUP if is_post_norm else _WARMUP
        train = train.changed(warmup_steps=min(warmup, max(1, train.max_steps // 10)) if train.max_steps else warmup)
    say(
        f"{train.optimizer} with a peak rate of {train.learning_rate:g} after {train.warmup_steps:,} steps, "
        f"{train.batch_tokens:,} tokens a batch"
    )
    return settings.changed(train=train)


def batch_tokens_for(train: TrainConfig) -> int:
    """The size of a batch: what is set, or what suits the device."""
    return train.batch_tokens or _BATCH_TOKENS[find_device(train.device).type]


def _require_context(settings: RunSettings, data: Prepared) -> None:
    """Learned positions end somewhere; better told now than in the middle of an epoch."""
    limit = longest_sequence(settings.model)
    longest = 1 + max(store.max_length for store in (data.train, data.valid))
    if limit is not None and longest > limit:
        raise ConfigError(
            "learned positions must reach over the longest row, "
            f"got model.context_length={limit} for {longest} positions"
        )


def longest_sequence(config: AnyConfig) -> int | None:
    """The most positions that a sequence may have, where there is such a limit."""
    if isinstance(config, RecurrentConfig):
        return None
    schemes = config.position_schemes if isinstance(config, TransformerConfig) else [config.positions]
    return config.context_length if "learned" in schemes else None


def _default_steps(train: TrainConfig, data: Prepared) -> int:
    assert train.batch_tokens is not None, "the batch is resolved before the budget"
    sampler = BatchSampler(data.train, batch_tokens=train.batch_tokens, seed=train.seed)
    return max(_MIN_STEPS, _EPOCHS * sampler.batches_per_epoch // train.accumulate)
