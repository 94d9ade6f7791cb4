"""ViT: an encoder of the patches of an image, and the preprocessing of images for it.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020). https://arxiv.org/abs/2010.11929

Its layers have two sets of names: those in files, and those of newer versions of
transformers in memory.
"""

from collections.abc import Mapping
from typing import Any

from regard.data.formats.images import ImageConfig, Resampling
from regard.errors import ConfigError
from regard.interop.hf.config import ConfigFields, HFArchitecture, HFConfig
from regard.interop.hf.weights import ForeignWeight, WeightNames, layer_names
from regard.models.vision import VisionTransformerConfig

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
"""By their numbers in Pillow."""
_DEFAULT_MEAN = 0.5
"""Also the default standard deviation."""
_MAX_PIXEL = 255
_IGNORED = (r"(^|\.)pooler\.", r"(^|\.)mask_token$")


def _read_config(config: HFConfig) -> VisionTransformerConfig:
    fields = ConfigFields(config)
    return VisionTransformerConfig.read(
        {
            "block": "pre-norm",
            "positions": "learned",
            "scale_embeddings": False,
            "initialization": "gpt2",
            "num_layers": fields.depth("num_hidden_layers"),
            "model_dim": fields.integer("hidden_size"),
            "num_heads": fields.integer("num_attention_heads"),
            "feedforward_dim": fields.integer("intermediate_size"),
            "activation": fields.activation("hidden_act", "gelu"),
            "norm_epsilon": fields.number("layer_norm_eps", 1e-12),
            "context_length": _image_format(config).num_positions,
            "dropout": fields.number("hidden_dropout_prob", 0.0),
            "attention_dropout": fields.number("attention_probs_dropout_prob", 0.0),
            "attention_bias": fields.boolean("qkv_bias", True),
        }
    )


def _weight_names(config: HFConfig) -> WeightNames:
    model, image = _read_config(config), _image_format(config)
    depth, width, side = model.encoder_depth, model.model_dim, image.patch_size
    newer = layer_names(depth, _BLOCKS, "vit.layers.{}.", _NEW_LAYER)
    blocks = {
        name: weight._replace(aliases=(newer[name].name,))
        for name, weight in layer_names(depth, _BLOCKS, "vit.encoder.layer.{}.", _LAYER).items()
    }
    patches = "vit.embeddings.patch_embeddings.projection"
    return {
        "embedding.weight": ForeignWeight(f"{patches}.weight", stored_shape=(width, image.channels, side, side)),
        "embedding.bias": ForeignWeight(f"{patches}.bias"),
        "start": ForeignWeight("vit.embeddings.cls_token", stored_shape=(1, 1, width)),
        "encoder.positions.table.weight": ForeignWeight(
            "vit.embeddings.position_embeddings", stored_shape=(1, image.num_positions, width)
        ),
        **blocks,
        "encoder.final_norm.weight": ForeignWeight("vit.layernorm.weight"),
        "encoder.final_norm.bias": ForeignWeight("vit.layernorm.bias"),
    }


def _head(config: HFConfig) -> WeightNames:
    return {"output.weight": ForeignWeight("classifier.weight"), "output.bias": ForeignWeight("classifier.bias")}


VIT = HFArchitecture("image-encoder", _read_config, _weight_names, _IGNORED, _head)


def image_labels(config: HFConfig) -> list[str]:
    """The labels in the order of the logits; a name that occurs again gets its number added."""
    ConfigFields(config).require(problem_type="single_label_classification")
    table = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    by_number = {str(key): str(label).strip() for key, label in table.items()} if isinstance(table, Mapping) else {}
    found: list[str] = []
    for key in map(str, range(len(by_number))):
        label = by_number.get(key)
        if label is None:
            raise ConfigError(f"config.json: id2label must have a label for each number from 0 on, {key} is missing")
        found.append(f"{label} ({key})" if label in found or not label else label)
    if not found:
        raise ConfigError("config.json: id2label must not be empty for a model with a classification head")
    return found


def image_preprocessing(config: HFConfig, processor: HFConfig) -> ImageConfig:
    """The preprocessing of images, from a `preprocessor_config.json`; ViT's own defaults for absent fields."""
    fields = ConfigFields(processor)
    image = _image_format(config)
    try:
        fields.require(do_resize=True, do_center_crop=False, do_pad=False)
        _require_size(processor.get("size"), image.size)
        factor = fields.number("rescale_factor", 1 / _MAX_PIXEL) if fields.boolean("do_rescale", True) else 1.0
        if not factor > 0.0:
            raise ConfigError(f"config.json: rescale_factor must be above 0, got {factor}")
        is_normalized = fields.boolean("do_normalize", True)
        # Here pixels are between 0 and 1, whatever the scale there.
        mean, std = (
            [value / (_MAX_PIXEL * factor) for value in (_numbers(processor, name) if is_normalized else [unchanged])]
            for name, unchanged in (("image_mean", 0.0), ("image_std", 1.0))
        )
        return image.changed(mean=mean, std=std, resampling=_resampling(processor))
    except ConfigError as error:
        raise ConfigError(str(error).replace("config.json", _PROCESSOR)) from None


def _image_format(config: HFConfig) -> ImageConfig:
    """Size, patches and channels of the images that the model reads."""
    fields = ConfigFields(config)
    return ImageConfig.read(
        {
            "size": fields.integer("image_size", 224),
            "patch_size": fields.integer("patch_size", 16),
            "channels": fields.integer("num_channels", 3),
        },
        section="image",
    )


def _require_size(found: Any, size: int) -> None:
    sides = [found.get("height"), found.get("width")] if isinstance(found, Mapping) else [found, found]
    if found is not None and sides != [size, size]:
        raise ConfigError(f"config.json: size must be the image_size of {size} in height and width, got {found}")


def _resampling(processor: HFConfig) -> Resampling:
    found = processor.get("resample")
    name = _FILTERS.get(2 if found is None else found) if found is None or isinstance(found, int) else None
    if name is None:
        raise ConfigError(f"config.json: resample must be one of {', '.join(map(str, _FILTERS))}, got {found!r}")
    return name


def _numbers(processor: HFConfig, name: str) -> list[float]:
    found = processor.get(name)
    values = found if isinstance(found, list) else [_DEFAULT_MEAN if found is None else found]
    return [ConfigFields({name: value}).number(name, _DEFAULT_MEAN) for value in values]
