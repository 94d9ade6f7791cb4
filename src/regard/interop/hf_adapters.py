"""The adapter of a run with LoRA as peft has it, for the model that its base is in Hugging Face's words; and back."""

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from regard.adapters.lora import adapted_layers, add_lora, load_lora
from regard.errors import CheckpointError, ConfigError
from regard.interop.hf_writing import Words, head_names, head_weights, read_head, words_for
from regard.interop.names import given_back
from regard.interop.peft import module_names, read_peft, write_peft
from regard.interop.trained import Trained
from regard.training.checkpoints import copy_weights, weights_of

TASK_TYPES = {
    "language": "CAUSAL_LM",
    "translation": "SEQ_2_SEQ_LM",
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "tagging": "TOKEN_CLS",
    "answering": "QUESTION_ANS",
    "embedding": "FEATURE_EXTRACTION",
}
"""What peft calls our tasks."""


def write_adapter(trained: Trained, folder: Path) -> str:
    """Fill an empty folder with the adapter of a model that is not merged, and the head that was trained with it."""
    tuned = trained.settings.finetune
    if tuned is None or not tuned.is_adapter:
        raise ConfigError("finetune.method must be lora for peft: the run holds all its weights, and no adapter")
    if trained.task not in TASK_TYPES:
        raise ConfigError(f"task must be one of {', '.join(TASK_TYPES)} for peft, got {trained.task}")
    words = words_for(trained)
    body: nn.Module = trained.body
    write_peft(
        folder,
        body,
        tuned.lora,
        _layers(words),
        base_name=Path(tuned.base).name,
        task_type=TASK_TYPES[trained.task],
        others=given_back(
            {name: each for name, each in words.names.items() if name.startswith("head.")}, head_weights(trained)
        ),
    )
    return f"an adapter for {words.architecture}"


def read_adapted(trained: Trained, folder: Path) -> nn.Module:
    """The model once more, with the adapter and the head that lie in a folder."""
    words, model = words_for(trained), copy.deepcopy(trained.model)
    body = model if trained.body is trained.model else model.get_submodule("body")
    for name, layer in adapted_layers(body).items():
        body.set_submodule(name, layer.base)
    found = read_peft(folder, body, _layers(words))
    add_lora(body, found.config)
    load_lora(body, found.tensors)
    load_head(trained, model, found.others, words.config)
    return model.eval()


def load_head(trained: Trained, model: nn.Module, others: Mapping[str, Tensor], config: Mapping[str, object]) -> None:
    """Give a model the head that came with an adapter; whatever else came is an error."""
    own = {name: weight for name, weight in weights_of(model).items() if name.startswith("head.")}
    known = {weight.name for weight in head_names(trained.task, config).values()} if own else set()
    if strange := sorted(others.keys() - known):
        raise CheckpointError(f"the adapter brings weights that the model has no place for: {', '.join(strange[:3])}")
    if own:
        copy_weights(own, read_head(trained, others, config))


def _layers(words: Words) -> dict[str, str]:
    """What the layers of the body are called there."""
    return {ours.removeprefix("body."): theirs for ours, theirs in module_names(words.names).items()}
