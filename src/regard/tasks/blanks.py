"""Texts with blanks, and what a masked model fills them with.

A blank is written [MASK], <mask> or ____, and stands for one token.

Dimensions: `batch` texts, `time` positions, `hidden` blanks of each text.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batches import batches_by_length, pad
from regard.data.permutation import mix
from regard.errors import DataError
from regard.models.families import longest_sequence
from regard.models.heads import MaskedModel
from regard.tasks.masking import PART_OF_CHARACTER, texts_within, vocabulary_of
from regard.tasks.task import Prediction
from regard.text.tokenizer import Tokenizer

_BLANK = re.compile(r"\[MASK\]|<mask>|_{3,}")
_WRITTEN, _MASK = "____", "<mask>"
_BATCH_TOKENS = 8_192
"""Tokens read together."""
_LOOKED_AT, _TOLD = 10, 5
"""The likeliest tokens of a blank that are looked at, and the likeliest texts that are told."""
_SAMPLES, _SAMPLE_WORDS = 40, 16
"""Stretches of text that are shown with a word left out, and how long they are."""


def with_mask(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a token that stands for a hidden one, behind all others where it has none yet.

    No text is encoded to it, and all others keep their ids: what is stored for a language model serves as well.
    """
    if tokenizer.mask is not None:
        return tokenizer
    layout = json.loads(tokenizer.to_json())
    layout["added_tokens"].append(_entry(tokenizer.vocab_size, _MASK))
    return Tokenizer.from_json(json.dumps(layout, ensure_ascii=False))


def has_blank(text: str) -> bool:
    """Whether there is anything to fill in a text."""
    return _BLANK.search(text) is not None


class Filler:
    """Fills the blanks of texts, each with the likeliest token."""

    def __init__(self, model: MaskedModel, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._reader, self._name = _reading_blanks(tokenizer)
        self._device = model.body.embedding.weight.device
        self._is_ordinary = torch.from_numpy(vocabulary_of(tokenizer).is_ordinary).to(self._device)

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """Each input with its blanks filled; the probabilities are those of the likeliest texts of the first."""
        texts = [self._encoded(text) for text in inputs]
        found: dict[int, list[dict[str, float]]] = {}
        for rows in batches_by_length([len(text) for text in texts], batch_tokens=_BATCH_TOKENS):
            chances = self._chances([texts[row] for row in rows])
            for row, scores in zip(rows.tolist(), chances, strict=True):
                found[row] = [self._likeliest(blank) for blank in scores]
        return [self._prediction(text, found[number]) for number, text in enumerate(inputs)]

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text, with the mask token where a blank is."""
        tokenizer = self._tokenizer
        if not has_blank(text):
            raise DataError(f"a blank is needed to be filled, written [MASK] or {_WRITTEN}, got {text!r}")
        ids = [tokenizer.start, *self._reader.encode([_BLANK.sub(self._name, text)])[0], tokenizer.end]
        limit = longest_sequence(self._model.body.config)
        if limit is not None and len(ids) > limit:
            raise DataError(f"the text has {len(ids) - 2:,} tokens, the model reads {limit - 2:,} at most")
        return ids

    def _chances(self, texts: Sequence[list[int]]) -> list[Float[Tensor, "hidden vocab"]]:
        """The probability of each token for each blank of each text."""
        blanks = [[place for place, token in enumerate(text) if token == self._tokenizer.mask] for text in texts]
        tokens, places = (
            torch.from_numpy(pad([np.array(row, np.int64) for row in rows], padding)).to(self._device)
            for rows, padding in ((texts, self._tokenizer.pad), (blanks, 0))
        )
        lengths = torch.tensor([len(text) for text in texts], device=self._device)
        with torch.inference_mode():
            states = self._model.states(tokens, places, lengths if len(texts) > 1 else None)
            return [
                self._model.head.output(some[: len(own)]).double().softmax(dim=-1)
                for some, own in zip(states, blanks, strict=True)
            ]

    def _likeliest(self, chances: Float[Tensor, " vocab"]) -> dict[str, float]:
        """The likeliest texts for a blank and their probabilities; tokens that read the same count together."""
        best = chances.where(self._is_ordinary, -1.0).topk(min(_LOOKED_AT, int(self._is_ordinary.sum())))
        found: dict[str, float] = {}
        tokens = best.indices.tolist()
        texts, names = texts_within(self._tokenizer, tokens), self._tokenizer.pieces(tokens)
        for text, name, chance in zip(texts, names, best.values.tolist(), strict=True):
            plain = name if PART_OF_CHARACTER in text else text.strip() or text
            found[plain] = found.get(plain, 0.0) + chance
        order = sorted(found, key=lambda text: -found[text])
        return {text: found[text] for text in order[:_TOLD]}

    def _prediction(self, text: str, found: Sequence[dict[str, float]]) -> Prediction:
        answers = iter([next(iter(each)) for each in found])
        return Prediction(text, _BLANK.sub(lambda _: next(answers), text), probabilities=found[0])


def samples(fill: Filler, tokenizer: Tokenizer, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Stretches of texts with one word left out, what was left out, and what the model puts there; wrong ones first."""
    words = [word for text in texts for word in text.split()]
    stretches = [words[place : place + _SAMPLE_WORDS] for place in range(0, len(words), _SAMPLE_WORDS)]
    apart = max(1, len(stretches) // _SAMPLES)
    chosen = [stretch for stretch in stretches[::apart] if not _BLANK.search(" ".join(stretch))][:_SAMPLES]
    places = [_place_of_blank(stretch, tokenizer, number) for number, stretch in enumerate(chosen)]
    wanted = [" ".join(stretch) for stretch in chosen]
    asked = [
        " ".join(_WRITTEN if number == place else word for number, word in enumerate(stretch))
        for stretch, place in zip(chosen, places, strict=True)
    ]
    rows = [
        {"source": each.input, "target": target, "prediction": each.output, "right": each.output == target}
        for each, target in zip(fill(asked) if asked else [], wanted, strict=True)
    ]
    return sorted(rows, key=lambda row: row["right"])


def _place_of_blank(stretch: Sequence[str], tokenizer: Tokenizer, number: int) -> int:
    """The word to leave out: one that is a single token, where there is such a word."""
    encoded = tokenizer.encode([f" {word}" for word in stretch])
    single = [place for place, ids in enumerate(encoded) if len(ids) == 1] or list(range(len(stretch)))
    return single[mix(number) % len(single)]


def _reading_blanks(tokenizer: Tokenizer) -> tuple[Tokenizer, str]:
    """The same tokenizer, but that it reads the name of the mask token as that token; and this name."""
    vocabulary, layout = vocabulary_of(tokenizer), json.loads(tokenizer.to_json())
    entries = [entry for entry in layout["added_tokens"] if entry["id"] == vocabulary.mask]
    if not entries:
        (name,) = tokenizer.pieces([vocabulary.mask])
        entries = [_entry(vocabulary.mask, name)]
        layout["added_tokens"] += entries
    texts = texts_within(tokenizer, vocabulary.ordinary.tolist())
    # Special tokens are never read off a text; and the space before a word is part of the token that a blank hides.
    entries[0] |= {"special": False, "lstrip": any(len(text) > 1 and text[0] == " " for text in texts)}
    before = layout["pre_tokenizer"]
    if before and before["type"] == "Metaspace" and before.get("prepend_scheme") == "always":
        before["prepend_scheme"] = "first"  # or a blank would put a space before what stands behind it
    return Tokenizer.from_json(json.dumps(layout, ensure_ascii=False)), entries[0]["content"]


def _entry(token: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name, **flags, "special": True}
