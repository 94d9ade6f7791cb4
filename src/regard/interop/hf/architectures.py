"""The architectures that can be imported, by their names in a `config.json`, and the one that a config fits."""

from typing import Any

from regard.errors import ConfigError
from regard.interop.hf.bart import BART, MARIAN
from regard.interop.hf.bert import BERT, DISTILBERT, ROBERTA
from regard.interop.hf.config import HFArchitecture, HFConfig
from regard.interop.hf.gpt2 import GPT2
from regard.interop.hf.llama import LLAMA
from regard.interop.hf.t5 import T5
from regard.interop.hf.vit import VIT
from regard.models.transformer.config import TransformerConfig

# The suffixes of encoders: whatever the head, the body is the same.
_ENCODERS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")

ARCHITECTURES: dict[str, HFArchitecture] = {
    **{f"Bert{suffix}": BERT for suffix in (*_ENCODERS, "ForPreTraining")},
    **{f"Roberta{suffix}": ROBERTA for suffix in _ENCODERS},
    **{f"XLMRoberta{suffix}": ROBERTA for suffix in _ENCODERS},
    **{f"DistilBert{suffix}": DISTILBERT for suffix in _ENCODERS},
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "T5ForConditionalGeneration": T5,
    "MT5ForConditionalGeneration": T5,
    "BartModel": BART,
    "BartForConditionalGeneration": BART,
    "MarianMTModel": MARIAN,
    "ViTModel": VIT,
    "ViTForImageClassification": VIT,
}
"""By the values of `architectures`."""
_MODEL_TYPES = {
    "bert": "BertModel", "roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel", "distilbert": "DistilBertModel",
    "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration", "bart": "BartForConditionalGeneration", "marian": "MarianMTModel",
    "vit": "ViTModel",
}  # fmt: skip
"""By the values of `model_type`, for a config without `architectures`."""
_EXPORTED = ("bert", "gpt2", "llama", "marian", "bart", "t5")
"""The architectures that are exported; if several fit, the first is used."""

_TRAINING_SETTINGS = ("dropout", "attention_dropout", "token_dropout", "initialization")
_OUTPUT_SETTINGS = ("tie_embeddings", "output_bias", "scale_output")
Differences = dict[str, tuple[Any, Any]]
"""By the name of a setting, the values of two configs."""


def architecture_name(config: HFConfig) -> str:
    """The name of a known architecture, or an error that lists them."""
    name = _name(config)
    if name not in ARCHITECTURES:
        raise ConfigError(f"the architecture {name} cannot be imported; known: {', '.join(ARCHITECTURES)}")
    return name


def reads_images(config: HFConfig) -> bool:
    """Whether the input of a model is images, so that it has no tokenizer."""
    architecture = ARCHITECTURES.get(_name(config))
    return architecture is not None and architecture.stacks == "image-encoder"


def nearest_architecture(model: TransformerConfig) -> tuple[str, dict[str, Any]]:
    """The architecture that a config fits and its `config.json`.

    Raises:
        ConfigError: If there is none; the message names the nearest and the settings in which it differs.
    """
    missed: dict[str, Differences] = {}
    for candidate in _EXPORTED:
        write_config = ARCHITECTURES[_MODEL_TYPES[candidate]].write_config
        assert write_config is not None, f"{candidate} is exported"
        config = write_config(model)
        name = _MODEL_TYPES[config["model_type"]]
        try:
            fitting = ARCHITECTURES[name].read_config(config)
        except ConfigError:  # for example heads of odd width, which rotary positions do not allow
            continue
        found = config_differences(fitting, model)
        if fitting.output_bias:  # a bias of zeros equals none
            found.pop("output_bias", None)
        if not found:
            return name, config
        missed[name] = found
    # An architecture with other stacks is not near, however many settings agree.
    stacks = ("encoder_layers", "decoder_layers")
    nearest = min(missed, key=lambda each: (any(name in missed[each] for name in stacks), len(missed[each])))
    raise ConfigError(
        f"no architecture of Hugging Face fits this config, the nearest is {nearest}: {_describe(missed[nearest])}"
    )


def config_differences(expected: TransformerConfig, given: TransformerConfig) -> Differences:
    """The settings in which two configs compute different functions, in the order of their declaration.

    Example:
        >>> small = TransformerConfig(num_layers=2, decoder_layers=0, dropout=0.1, position_distance=64)
        >>> config_differences(small, small.changed(dropout=0.3, position_distance=32, tie_embeddings=False))
        {}
        >>> config_differences(small, small.changed(norm="rms", encoder_layers=3))
        {'encoder_layers': (2, 3), 'norm': ('layer', 'rms')}
    """
    theirs, ours = _effective(expected), _effective(given)
    order = [*TransformerConfig.model_fields]
    # A setting that matters in only one of the two depends on another setting in which they differ.
    different = [name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]]
    found = {name: (theirs[name], ours[name]) for name in sorted(different, key=order.index)}
    if {"encoder_layers", "decoder_layers"} & found.keys():  # and so of the kinds, which are those of each layer
        for name in ("attention", "encoder_attention"):
            if name in found and len({*found[name][0], *found[name][1]}) == 1:
                del found[name]
    if found.get("encoder_positions") == found.get("positions"):
        found.pop("encoder_positions", None)
    return found


def _effective(model: TransformerConfig) -> dict[str, Any]:
    """The settings that affect the function of a trained model, with defaults in place of unset ones."""
    schemes = model.position_schemes
    values = {
        **model.model_dump(),
        "encoder_layers": model.encoder_depth,
        "decoder_layers": model.decoder_depth,
        "num_key_value_heads": model.num_key_value_heads or model.num_heads,
        "query_width": model.query_width or model.model_dim,
        "attention": _kinds(model, is_causal=bool(model.decoder_depth)),
        "encoder_attention": _kinds(model, is_causal=False),
        "window": model.window_length,
        "position_stretch_by": model.position_stretch_by or "llama3",
        "attention_bias": model.bias if model.attention_bias is None else model.attention_bias,
        "positions": schemes[-1] if schemes else None,
        "encoder_positions": schemes[0] if schemes else None,
    }
    unused = ["num_layers", "decoder_positions", *_TRAINING_SETTINGS]
    unused += [] if len(schemes) == 2 else ["encoder_positions"]
    unused += [] if model.decoder_depth else _OUTPUT_SETTINGS
    unused += [] if model.encoder_depth else ["num_segments"]
    unused += [] if {"sinusoidal", "rotary"} & {*schemes} else ["position_base"]
    unused += [] if "rotary" in schemes else ["position_stretch"]
    is_stretched = "rotary" in schemes and model.position_stretch != 1.0
    unused += [] if is_stretched else ["position_stretch_by"]
    has_original = model.position_stretch_by not in ("linear", "ntk")
    unused += [] if is_stretched and has_original else ["position_stretch_from"]
    kinds = {*values["attention"], *values["encoder_attention"]}
    unused += [] if len(schemes) == 2 else ["encoder_attention"]
    unused += [] if kinds & {"window", "strided"} else ["window"]
    unused += [] if "relative" in schemes else ["position_buckets", "position_distance"]
    unused += [] if "learned" in schemes else ["context_length"]
    unused += [] if model.norm != "none" or model.query_key_norm else ["norm_epsilon"]
    return {name: value for name, value in values.items() if name not in unused}


def _kinds(model: TransformerConfig, *, is_causal: bool) -> list[str]:
    depth = model.decoder_depth if is_causal else model.encoder_depth
    return [str(kind) for kind in model.attention_kinds(depth, is_causal=is_causal)]


def _describe(found: Differences, *, maximum: int = 3) -> str:
    lines = [f"model.{name} must be {wanted}, got {got}" for name, (wanted, got) in found.items()]
    return "; ".join(lines[:maximum]) + (f"; and {len(lines) - maximum} more" if len(lines) > maximum else "")


def _name(config: HFConfig) -> str:
    named, model_type = config.get("architectures"), str(config.get("model_type"))
    return str(named[0]) if isinstance(named, list) and named else _MODEL_TYPES.get(model_type, model_type)
