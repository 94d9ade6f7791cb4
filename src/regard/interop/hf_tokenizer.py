"""The files of a tokenizer in the layout of Hugging Face: which tokens do what, and what is put around a text."""

import json
from typing import Any

from regard.interop.trained import UNKNOWNS, Trained, inner_of

_SIDES: dict[str, tuple[bool, bool]] = {"language": (True, False), "translation": (False, True)}
"""Whether a text that is read begins with the start token and ends with the end token; all others do both."""


def tokenizer_files(trained: Trained) -> dict[str, Any]:
    """By name what each file holds: text, or what is to become JSON."""
    special = special_tokens(trained)
    files: dict[str, Any] = {
        "tokenizer.json": _with_sides(trained),
        "special_tokens_map.json": special,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": trained.settings.data.max_length,
            "clean_up_tokenization_spaces": False,
            **special,
        },
    }
    if trained.task in ("language", "translation"):
        tokenizer = trained.tokenizer
        start = {"decoder_start_token_id": tokenizer.start} if trained.task == "translation" else {}
        ids = {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end, "pad_token_id": tokenizer.pad}
        files["generation_config.json"] = {**ids, **start}
    if trained.chat_template is not None:
        files["chat_template.jinja"] = trained.chat_template
    return files


def special_tokens(trained: Trained) -> dict[str, str]:
    """Tokens by what they are for, in the words of Hugging Face."""
    tokenizer, inner = trained.tokenizer, inner_of(trained.tokenizer)
    reads = trained.task not in ("language", "translation")
    start, end = ("cls_token", "sep_token") if reads else ("bos_token", "eos_token")
    ids = {start: tokenizer.start, end: tokenizer.end, "pad_token": tokenizer.pad, "mask_token": tokenizer.mask}
    found = {name: None if number is None else inner.id_to_token(number) for name, number in ids.items()}
    found["unk_token"] = next((name for name in UNKNOWNS if inner.token_to_id(name) is not None), None)
    return {name: token for name, token in found.items() if token is not None}


def _with_sides(trained: Trained) -> str:
    """The tokenizer, which puts around a text what the model was trained to find there, unless it has a way already."""
    tokenizer, inner = trained.tokenizer, inner_of(trained.tokenizer)
    layout = json.loads(tokenizer.to_json())
    if any(inner.encode("a", add_special_tokens=True).special_tokens_mask):
        return json.dumps(layout, ensure_ascii=False)
    has_start, has_end = _SIDES.get(trained.task, (True, True))
    start, end = (inner.id_to_token(token) for token in (tokenizer.start, tokenizer.end))

    def around(*texts: str) -> list[dict[str, Any]]:
        parts = [{"SpecialToken": {"id": start, "type_id": 0}}] if has_start else []
        for number, text in enumerate(texts):
            parts.append({"Sequence": {"id": text, "type_id": number}})
            parts += [{"SpecialToken": {"id": end, "type_id": number}}] if has_end else []
        return parts

    used = {start: tokenizer.start, end: tokenizer.end}
    template = {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A", "B"),
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in used.items()},
    }
    own = layout["post_processor"]
    before = [] if own is None else own["processors"] if own["type"] == "Sequence" else [own]
    layout["post_processor"] = {"type": "Sequence", "processors": [*before, template]}
    return json.dumps(layout, ensure_ascii=False)
