"""Tokenizers of Hugging Face: the roles of their tokens, and the files that describe them."""

import json
from typing import Any

import tokenizers

from regard.errors import DataError
from regard.interop.hf.reading import Checkpoint
from regard.interop.model import GENERATING_HEADS, UNKNOWN_TOKENS, ExportableModel, copy_tokenizer
from regard.text.tokenizer import Tokenizer, TokenRole

_START_AND_END: dict[str | None, tuple[bool, bool]] = {"next-token": (True, False), "target-tokens": (False, True)}
"""Whether an input starts with the start token and ends with the end token; for every other head it does both."""


def read_tokenizer(checkpoint: Checkpoint, stacks: str) -> Tokenizer:
    """The tokenizer of a checkpoint; the roles of its tokens depend on the `stacks` of the architecture."""
    try:
        inner = tokenizers.Tokenizer.from_str(checkpoint.tokenizer)
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        reason = " ".join(str(error).split())
        raise DataError(f"the tokenizer of {checkpoint.name} cannot be read: {reason}") from None
    roles: dict[TokenRole, Any] = {**_roles(checkpoint, inner, stacks)}
    if several := _end_tokens(checkpoint, inner, roles.get("end")):
        roles["end"] = several
    return Tokenizer.from_json(checkpoint.tokenizer, name=f"the tokenizer of {checkpoint.name}", roles=roles)


def _roles(checkpoint: Checkpoint, inner: tokenizers.Tokenizer, stacks: str) -> dict[TokenRole, str]:
    special, ids = checkpoint.special_tokens, {**checkpoint.config, **checkpoint.generation}

    def by_id(name: str) -> str | None:
        found = ids.get(name)
        first = found[0] if isinstance(found, list) and found else found
        return inner.id_to_token(first) if isinstance(first, int) and 0 <= first < 2**31 else None

    def first_known(*candidates: str | None) -> str | None:
        return next((each for each in candidates if each and inner.token_to_id(each) is not None), None)

    sep, eos = special.get("sep_token"), (special.get("eos_token"), by_id("eos_token_id"))
    end = first_known(sep, *eos) if stacks == "encoder" else first_known(*eos, sep)
    pad = first_known(special.get("pad_token"), by_id("pad_token_id"), end)
    bos = (special.get("bos_token"), by_id("bos_token_id"))
    starts = {
        "encoder": (special.get("cls_token"), *bos),
        "decoder": (*bos, end),
        "encoder-decoder": (by_id("decoder_start_token_id"), pad),
    }
    found: dict[TokenRole, str | None] = {
        "pad": pad,
        "start": first_known(*starts[stacks]),
        "end": end,
        "mask": first_known(special.get("mask_token")),
    }
    return {role: token for role, token in found.items() if token is not None}


def _end_tokens(checkpoint: Checkpoint, inner: tokenizers.Tokenizer, end: str | None) -> list[str]:
    """The end token and the others that end a text, or nothing if there are no others."""
    ids = {**checkpoint.config, **checkpoint.generation}.get("eos_token_id")
    listed = (
        [number for number in ids if isinstance(number, int) and 0 <= number < 2**31] if isinstance(ids, list) else []
    )
    others = [token for number in listed if (token := inner.id_to_token(number)) is not None and token != end]
    return [end, *dict.fromkeys(others)] if end is not None and others else []


def tokenizer_files(model: ExportableModel) -> dict[str, Any]:
    """The content of each file of the tokenizer: a string, or an object to be written as JSON."""
    special, tokenizer = _special_tokens(model), model.tokenizer
    files: dict[str, Any] = {
        "tokenizer.json": tokenizer_with_template(model),
        "special_tokens_map.json": special,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.spec.max_length,
            "clean_up_tokenization_spaces": False,
            **special,
        },
    }
    if model.spec.head in GENERATING_HEADS:
        start = {"decoder_start_token_id": tokenizer.start} if model.spec.head == "target-tokens" else {}
        ids = {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end, "pad_token_id": tokenizer.pad}
        files["generation_config.json"] = {**ids, **start}
    if model.chat_template is not None:
        files["chat_template.jinja"] = model.chat_template
    return files


def tokenizer_with_template(model: ExportableModel) -> str:
    """The `tokenizer.json`, with the start and end tokens that the model was trained with added to each input.

    A tokenizer of a model that generates is not changed if it adds tokens already, nor is any that adds these.
    """
    tokenizer, inner = model.tokenizer, copy_tokenizer(model.tokenizer)
    layout = json.loads(tokenizer.to_json())
    generates = model.spec.head in GENERATING_HEADS
    if any(inner.encode("a", add_special_tokens=True).special_tokens_mask) if generates else _adds_both(model, inner):
        return json.dumps(layout, ensure_ascii=False)
    has_start, has_end = _START_AND_END.get(model.spec.head, (True, True))
    start, end = (inner.id_to_token(token) for token in (tokenizer.start, tokenizer.end))

    def template(*texts: str) -> list[dict[str, Any]]:
        parts = [{"SpecialToken": {"id": start, "type_id": 0}}] if has_start else []
        for number, text in enumerate(texts):
            parts.append({"Sequence": {"id": text, "type_id": number}})
            parts += [{"SpecialToken": {"id": end, "type_id": number}}] if has_end else []
        return parts

    used = {start: tokenizer.start, end: tokenizer.end}
    processor = {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in used.items()},
    }
    own = layout["post_processor"]
    existing = [] if own is None else own["processors"] if own["type"] == "Sequence" else [own]
    # Of a tokenizer that adds other tokens, only what trims the offsets of bytes is kept.
    is_bare = not any(inner.encode("a", "a", add_special_tokens=True).special_tokens_mask)
    kept = existing if is_bare else [each for each in existing if each["type"] == "ByteLevel"]
    layout["post_processor"] = {"type": "Sequence", "processors": [*kept, processor]}
    return json.dumps(layout, ensure_ascii=False)


def _adds_both(model: ExportableModel, inner: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer adds the start token, and an end token after each text of a pair, in two segments."""
    start, end, (text,) = model.tokenizer.start, model.tokenizer.end, model.tokenizer.encode(["a"])
    one, two = inner.encode("a"), inner.encode("a", "a")
    first, second = [start, *text, end], [*text, end]
    return one.ids == first and (two.ids, two.type_ids) == (first + second, [0] * len(first) + [1] * len(second))


def _special_tokens(model: ExportableModel) -> dict[str, str]:
    """Tokens by their roles, in the names of Hugging Face."""
    tokenizer, inner = model.tokenizer, copy_tokenizer(model.tokenizer)
    generates = model.spec.head in GENERATING_HEADS
    start, end = ("bos_token", "eos_token") if generates else ("cls_token", "sep_token")
    ids = {start: tokenizer.start, end: tokenizer.end, "pad_token": tokenizer.pad, "mask_token": tokenizer.mask}
    found = {name: None if number is None else inner.id_to_token(number) for name, number in ids.items()}
    found["unk_token"] = next((name for name in UNKNOWN_TOKENS if inner.token_to_id(name) is not None), None)
    return {name: token for name, token in found.items() if token is not None}
