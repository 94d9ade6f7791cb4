"""Filling the blanks of a text with a masked language model.

A blank is written [MASK], <mask> or ____, and is one token.

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
from regard.tasks.masked_language_modeling.masking import PART_OF_CHARACTER, texts_within, vocabulary_of
from regard.tasks.task import Prediction
from regard.text.tokenizer import Tokenizer

_BLANK = re.compile(r"\[MASK\]|<mask>|_{3,}")
_WRITTEN, _MASK = "____", "<mask>"
_BATCH_TOKENS = 8_192
"""Tokens read together."""
_NUM_TOKENS, _NUM_FILLERS = 10, 5
"""The most probable tokens of a blank that are considered, and the most probable fillers that are returned."""
_SAMPLES, _SAMPLE_WORDS = 40, 16
"""Spans of text that a report shows with a blank, and their length in words."""


def with_mask(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a mask token, which is appended to the vocabulary where there is none.

    No text is encoded to it, and all other tokens keep their ids.
    """
    if tokenizer.mask is not None:
        return tokenizer
    layout = json.loads(tokenizer.to_json())
    layout["added_tokens"].append(_entry(tokenizer.vocab_size, _MASK))
    return Tokenizer.from_json(json.dumps(layout, ensure_ascii=False))


def has_blank(text: str) -> bool:
    """Whether a text has a blank."""
    return _BLANK.search(text) is not None


class FillingPredictor:
    """Fills each blank of a text with its most probable token."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._reader, self._name = _reading_blanks(tokenizer)
        self._device = next(model.parameters()).device
        self._is_ordinary = torch.from_numpy(vocabulary_of(tokenizer).is_ordinary.copy()).to(self._device)
        self._is_ordinary[list(tokenizer.never_generated)] = False

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """Each input with its blanks filled; the probabilities are those of the fillers of the first blank."""
        texts = [self._encoded(text) for text in inputs]
        found: dict[int, list[dict[str, float]]] = {}
        for rows in batches_by_length([len(text) for text in texts], batch_tokens=_BATCH_TOKENS):
            probabilities = self._probabilities([texts[row] for row in rows])
            for row, scores in zip(rows.tolist(), probabilities, strict=True):
                found[row] = [self._fillers(blank) for blank in scores]
        return [self._prediction(text, found[number]) for number, text in enumerate(inputs)]

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text, with the mask token where a blank is."""
        tokenizer = self._tokenizer
        if not has_blank(text):
            raise DataError(f"the input must have a blank, written [MASK] or {_WRITTEN}, got {text!r}")
        ids = [tokenizer.start, *self._reader.encode([_BLANK.sub(self._name, text)])[0], tokenizer.end]
        limit = self._model.body.config.max_positions
        if limit is not None and len(ids) > limit:
            raise DataError(f"the text has {len(ids) - 2:,} tokens, the model reads at most {limit - 2:,}")
        return ids

    def _probabilities(self, texts: Sequence[list[int]]) -> list[Float[Tensor, "hidden vocab"]]:
        """The probability of each token for each blank of each text."""
        blanks = [[place for place, token in enumerate(text) if token == self._tokenizer.mask] for text in texts]
        tokens, places = (
            torch.from_numpy(pad([np.array(row, np.int64) for row in rows], padding)).to(self._device)
            for rows, padding in ((texts, self._tokenizer.pad), (blanks, 0))
        )
        lengths = torch.tensor([len(text) for text in texts], device=self._device)
        with torch.inference_mode():
            states = self._model.masked_states(tokens, places, lengths if len(texts) > 1 else None)
            return [
                self._model.head.output(some[: len(own)]).double().softmax(dim=-1)
                for some, own in zip(states, blanks, strict=True)
            ]

    def _fillers(self, probabilities: Float[Tensor, " vocab"]) -> dict[str, float]:
        """The most probable texts for a blank; the probabilities of tokens with the same text are added."""
        best = probabilities.where(self._is_ordinary, -1.0).topk(min(_NUM_TOKENS, int(self._is_ordinary.sum())))
        found: dict[str, float] = {}
        tokens = best.indices.tolist()
        texts, names = texts_within(self._tokenizer, tokens), self._tokenizer.pieces(tokens)
        for text, name, probability in zip(texts, names, best.values.tolist(), strict=True):
            plain = name if PART_OF_CHARACTER in text else text.strip() or text
            found[plain] = found.get(plain, 0.0) + probability
        order = sorted(found, key=lambda text: -found[text])
        return {text: found[text] for text in order[:_NUM_FILLERS]}

    def _prediction(self, text: str, found: Sequence[dict[str, float]]) -> Prediction:
        answers = iter([next(iter(each)) for each in found])
        return Prediction(text, _BLANK.sub(lambda _: next(answers), text), probabilities=found[0])


def filled_samples(fill: FillingPredictor, tokenizer: Tokenizer, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Spans of text with one word left out, and how the model fills them; errors first."""
    words = [word for text in texts for word in text.split()]
    spans = [words[place : place + _SAMPLE_WORDS] for place in range(0, len(words), _SAMPLE_WORDS)]
    apart = max(1, len(spans) // _SAMPLES)
    chosen = [span for span in spans[::apart] if not _BLANK.search(" ".join(span))][:_SAMPLES]
    places = [_place_of_blank(span, tokenizer, number) for number, span in enumerate(chosen)]
    wanted = [" ".join(span) for span in chosen]
    asked = [
        " ".join(_WRITTEN if number == place else word for number, word in enumerate(span))
        for span, place in zip(chosen, places, strict=True)
    ]
    rows = [
        {"source": each.input, "target": target, "prediction": each.output, "right": each.output == target}
        for each, target in zip(fill(asked) if asked else [], wanted, strict=True)
    ]
    return sorted(rows, key=lambda row: row["right"])


def _place_of_blank(span: Sequence[str], tokenizer: Tokenizer, number: int) -> int:
    """The word to leave out: one of a single token, if there is one."""
    encoded = tokenizer.encode([f" {word}" for word in span])
    single = [place for place, ids in enumerate(encoded) if len(ids) == 1] or list(range(len(span)))
    return single[mix(number) % len(single)]


def _reading_blanks(tokenizer: Tokenizer) -> tuple[Tokenizer, str]:
    """The same tokenizer, which however encodes the name of the mask token as that token; and this name."""
    vocabulary, layout = vocabulary_of(tokenizer), json.loads(tokenizer.to_json())
    entries = [entry for entry in layout["added_tokens"] if entry["id"] == vocabulary.mask]
    if not entries:
        (name,) = tokenizer.pieces([vocabulary.mask])
        entries = [_entry(vocabulary.mask, name)]
        layout["added_tokens"] += entries
    texts = texts_within(tokenizer, vocabulary.ordinary.tolist())
    # Special tokens are never encoded from text; and the space before a word is part of the masked token.
    entries[0] |= {"special": False, "lstrip": any(len(text) > 1 and text[0] == " " for text in texts)}
    before = layout["pre_tokenizer"]
    if before and before["type"] == "Metaspace" and before.get("prepend_scheme") == "always":
        before["prepend_scheme"] = "first"  # otherwise a space would be inserted after a blank
    return Tokenizer.from_json(json.dumps(layout, ensure_ascii=False)), entries[0]["content"]


def _entry(token: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name, **flags, "special": True}
