"""The attention maps of a model for one input, by what its task reads: texts, graphs, pictures."""

from collections.abc import Callable, Iterable
from typing import Any

from regard.data.codecs.text import TextCodec
from regard.errors import RunError
from regard.explanation.attention import (
    AttentionMaps,
    causal_attention_maps,
    cross_attention_maps,
    encoder_attention_maps,
    graph_attention_maps,
    has_attention,
    picture_maps,
)
from regard.tasks.capabilities import GraphReader, PictureExplainer
from regard.tasks.content import ReportContent
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer

_MOST_PICTURES = 8
"""Pictures whose attention a report shows."""
_MOST_TOKENS = 60
"""An attention map with more tokens on a side cannot be read."""


def input_tokenizer(task: Task[Any]) -> Tokenizer:
    """The tokenizer of the inputs."""
    codec = task.codecs.get("source", task.codecs.get("text"))
    if not isinstance(codec, TextCodec):
        raise RunError(f"this is a model for {task.description}, which has no tokenizer")
    return codec.tokenizer


def attention_of(task: Task[Any], model: Any, text: str, predict: Callable[[], str]) -> AttentionMaps:
    """The maps for an input; `predict` generates its output, where the task generates one."""
    if isinstance(task, PictureExplainer):
        caption = predict()
        tokens, layers, size = task.picture_attention(model, text, caption)
        return picture_maps(tokens, layers, text, caption, size)
    match task.attention_kind:
        case None:
            raise RunError(f"this is a model for {task.description}, which has no attention maps of text")
        case "encoder" if isinstance(task, GraphReader):
            return graph_attention_maps(model.body, task.drawing(text), text, lambda: task.output_for(model, text))
        case "encoder":
            return encoder_attention_maps(
                model.body, input_tokenizer(task), text, lambda: task.output_for(model, text)
            )  # fmt: skip
        case "causal":
            return causal_attention_maps(model, input_tokenizer(task), text)
        case "cross":
            reader = input_tokenizer(task)
            return cross_attention_maps(model, task.target_tokenizer, text, predict(), source_tokenizer=reader)


def maps_for_report(task: Task[Any], model: Any, content: ReportContent) -> list[AttentionMaps]:
    """The attention maps of the first pictures, or of the first input that is short enough to be drawn."""
    if isinstance(task, PictureExplainer):
        pairs = [pair for pair in content.attention_inputs[:_MOST_PICTURES] if pair[1]]
        return [attention_of(task, model, image, lambda caption=caption: caption) for image, caption in pairs]
    if task.attention_kind is None or not has_attention(model.body if task.attention_kind == "encoder" else model):
        return []
    inputs = content.attention_inputs or [(each["source"], each["prediction"]) for each in content.samples]
    for source, output in inputs:
        if all(0 < length < _MOST_TOKENS for length in _lengths(task, source, output)):
            return [attention_of(task, model, source, lambda output=output: output)]
    return []


def _lengths(task: Task[Any], source: str, output: str) -> Iterable[int]:
    if isinstance(task, GraphReader):
        return (len(task.drawing(source).names),)
    texts = [source] if task.attention_kind == "encoder" else [source, output]
    return map(len, input_tokenizer(task).encode(texts))
