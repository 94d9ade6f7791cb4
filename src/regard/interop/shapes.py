"""The architectures that can be imported, by the names that a `config.json` has for them."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from regard.errors import ConfigError
from regard.interop import bart, bert, gpt2, llama, t5, vit
from regard.interop.fields import Config
from regard.interop.names import Weight
from regard.models.transformer_config import TransformerConfig


class Shape(NamedTuple):
    """How models of one architecture are read."""

    kind: Literal["encoder", "decoder", "both", "pictures"]
    """Which stacks it has; or that it is an encoder of pictures."""
    settings: Callable[[Config], TransformerConfig]
    names: Callable[[Config], dict[str, Weight]]
    passed_over: tuple[str, ...]
    """Patterns of names of weights that a model can do without."""
    head_names: Callable[[Config], dict[str, Weight]] | None = None
    """Of the head that says which token a position hides, or which label a picture has, where a model of this shape can
    have one."""


_BERT = Shape("encoder", bert.bert_settings, bert.bert_names, bert.PASSED_OVER, bert.bert_head)
_ROBERTA = Shape("encoder", bert.roberta_settings, bert.roberta_names, bert.PASSED_OVER, bert.roberta_head)
_DISTILBERT = Shape("encoder", bert.distilbert_settings, bert.distilbert_names, bert.PASSED_OVER, bert.distilbert_head)
_GPT2 = Shape("decoder", gpt2.settings, gpt2.names, gpt2.PASSED_OVER)
_LLAMA = Shape("decoder", llama.settings, llama.names, llama.PASSED_OVER)
_T5 = Shape("both", t5.settings, t5.names, t5.PASSED_OVER)
_BART = Shape("both", bart.bart_settings, bart.bart_names, bart.PASSED_OVER)
_MARIAN = Shape("both", bart.marian_settings, bart.marian_names, bart.PASSED_OVER)
_VIT = Shape("pictures", vit.settings, vit.names, vit.PASSED_OVER, vit.head)

_READERS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""How the names of encoders end: whatever stands on them, the body is the same."""

SHAPES: dict[str, Shape] = {
    **{f"Bert{ending}": _BERT for ending in (*_READERS, "ForPreTraining")},
    **{f"Roberta{ending}": _ROBERTA for ending in _READERS},
    **{f"XLMRoberta{ending}": _ROBERTA for ending in _READERS},
    **{f"DistilBert{ending}": _DISTILBERT for ending in _READERS},
    "GPT2LMHeadModel": _GPT2,
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "T5ForConditionalGeneration": _T5,
    "MT5ForConditionalGeneration": _T5,
    "BartModel": _BART,
    "BartForConditionalGeneration": _BART,
    "MarianMTModel": _MARIAN,
    "ViTModel": _VIT,
    "ViTForImageClassification": _VIT,
}
"""By what `architectures` has."""

_MODEL_TYPES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "distilbert": "DistilBertModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "marian": "MarianMTModel",
    "vit": "ViTModel",
}
"""By what `model_type` has, where no architecture is named."""


def architecture_of(config: Config) -> str:
    """The name of a known architecture, or an error that lists them."""
    name = _name_of(config)
    if name not in SHAPES:
        raise ConfigError(f"models of the architecture {name} cannot be imported; known: {', '.join(SHAPES)}")
    return name


def reads_pictures(config: Config) -> bool:
    """Whether a model has pictures for an input, and so no tokenizer."""
    shape = SHAPES.get(_name_of(config))
    return shape is not None and shape.kind == "pictures"


def _name_of(config: Config) -> str:
    named, kind = config.get("architectures"), str(config.get("model_type"))
    return str(named[0]) if isinstance(named, list) and named else _MODEL_TYPES.get(kind, kind)
