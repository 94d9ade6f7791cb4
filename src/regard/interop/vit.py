"""ViT: an encoder that reads the patches of a picture, and how pictures are brought into its form.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020). https://arxiv.org/abs/2010.11929

Its layers have two sets of names: those that files have, and those that newer
versions of transformers give them in memory.
"""

from collections.abc import Mapping
from typing import Any

from regard.data.config import PictureConfig, Resampling
from regard.errors import ConfigError
from regard.interop.fields import Config, activation, count, flag, layer_count, number, require
from regard.interop.names import Weight, layers
from regard.models.transformer_config import TransformerConfig

_LAYER = {
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "layernorm_before",
    "feedforward.input": "intermediate.dense",
    "feedforward.output": "output.dense",
    "feedforward_norm": "layernorm_after",
}
_NEW_LAYER = {
    **_LAYER,
    "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj",
    "attention.value": "attention.v_proj",
    "attention.output": "attention.o_proj",
    "feedforward.input": "mlp.fc1",
    "feedforward.output": "mlp.fc2",
}
_BLOCKS = "encoder.blocks.{}."
_PROCESSOR = "preprocessor_config.json"
_FILTERS: dict[int, Resampling] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""By the numbers that Pillow has for them."""
_USUAL = 0.5
_BRIGHTEST = 255
PASSED_OVER = (r"(^|\.)pooler\.", r"(^|\.)mask_token$")


def settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` of ViT describes."""
    return TransformerConfig.read(
        {
            "decoder_layers": 0,
            "block": "pre-norm",
            "positions": "learned",
            "scale_embeddings": False,
            "initialization": "gpt2",
            "num_layers": layer_count(config, "num_hidden_layers"),
            "model_dim": count(config, "hidden_size"),
            "num_heads": count(config, "num_attention_heads"),
            "feedforward_dim": count(config, "intermediate_size"),
            "activation": activation(config, "hidden_act", "gelu"),
            "norm_epsilon": number(config, "layer_norm_eps", 1e-12),
            "context_length": _form(config).num_positions,
            "dropout": number(config, "hidden_dropout_prob", 0.0),
            "attention_dropout": number(config, "attention_probs_dropout_prob", 0.0),
            "attention_bias": flag(config, "qkv_bias", True),
        }
    )


def names(config: Config) -> dict[str, Weight]:
    """Where each weight of ViT lies."""
    shape, form = settings(config), _form(config)
    depth, width, side = shape.encoder_depth, shape.model_dim, form.patch_size
    newer = layers(depth, _BLOCKS, "vit.layers.{}.", _NEW_LAYER)
    blocks = {
        name: weight._replace(others=(newer[name].name,))
        for name, weight in layers(depth, _BLOCKS, "vit.encoder.layer.{}.", _LAYER).items()
    }
    patches = "vit.embeddings.patch_embeddings.projection"
    return {
        "embedding.weight": Weight(f"{patches}.weight", folded=(width, form.channels, side, side)),
        "embedding.bias": Weight(f"{patches}.bias"),
        "start": Weight("vit.embeddings.cls_token", folded=(1, 1, width)),
        "encoder.positions.table.weight": Weight(
            "vit.embeddings.position_embeddings", folded=(1, form.num_positions, width)
        ),
        **blocks,
        "encoder.final_norm.weight": Weight("vit.layernorm.weight"),
        "encoder.final_norm.bias": Weight("vit.layernorm.bias"),
    }


def head(config: Config) -> dict[str, Weight]:
    """Where the scores of labels lie."""
    return {"output.weight": Weight("classifier.weight"), "output.bias": Weight("classifier.bias")}


def labels(config: Config) -> list[str]:
    """What the scores are of, in their order; of two labels of one name the later has its number behind it."""
    require(config, problem_type="single_label_classification")
    table = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    by_number = {str(key): str(label).strip() for key, label in table.items()} if isinstance(table, Mapping) else {}
    found: list[str] = []
    for key in map(str, range(len(by_number))):
        label = by_number.get(key)
        if label is None:
            raise ConfigError(f"config.json: id2label must name a label for each number from 0 on, and has no {key}")
        found.append(f"{label} ({key})" if label in found or not label else label)
    if not found:
        raise ConfigError("config.json: id2label must name labels, and there are scores for them, got none")
    return found


def picture_settings(config: Config, processor: Config) -> PictureConfig:
    """How pictures are brought into the form that the model reads; what is not said is as ViT has it."""
    form = _form(config)
    try:
        require(processor, do_resize=True, do_center_crop=False, do_pad=False)
        _require_size(processor.get("size"), form.size)
        factor = number(processor, "rescale_factor", 1 / _BRIGHTEST) if flag(processor, "do_rescale", True) else 1.0
        if not factor > 0.0:
            raise ConfigError(f"config.json: rescale_factor must be above 0, got {factor}")
        is_normalized = flag(processor, "do_normalize", True)
        # Pixels lie between 0 and 1 here, whatever they are scaled to elsewhere.
        center, spread = (
            [value / (_BRIGHTEST * factor) for value in (_numbers(processor, name) if is_normalized else [unchanged])]
            for name, unchanged in (("image_mean", 0.0), ("image_std", 1.0))
        )
        return form.changed(center=center, spread=spread, resampling=_resampling(processor))
    except ConfigError as error:
        raise ConfigError(str(error).replace("config.json", _PROCESSOR)) from None


def _form(config: Config) -> PictureConfig:
    """Size, patches and channels of the pictures that the model reads."""
    return PictureConfig.read(
        {
            "size": count(config, "image_size", 224),
            "patch_size": count(config, "patch_size", 16),
            "channels": count(config, "num_channels", 3),
        },
        section="picture",
    )


def _require_size(found: Any, size: int) -> None:
    sides = [found.get("height"), found.get("width")] if isinstance(found, Mapping) else [found, found]
    if found is not None and sides != [size, size]:
        raise ConfigError(f"config.json: size must be the image_size of {size} in both directions, got {found}")


def _resampling(processor: Config) -> Resampling:
    found = processor.get("resample")
    name = _FILTERS.get(2 if found is None else found) if found is None or isinstance(found, int) else None
    if name is None:
        raise ConfigError(f"config.json: resample must be one of {', '.join(map(str, _FILTERS))}, got {found!r}")
    return name


def _numbers(processor: Config, name: str) -> list[float]:
    found = processor.get(name)
    values = found if isinstance(found, list) else [_USUAL if found is None else found]
    return [number({name: value}, name, _USUAL) for value in values]
