"""Which tokens of a foreign tokenizer start, end, pad and mask: said once, and found by whoever loads the file."""

import json

import pytest
import tokenizers
from tokenizers import models, processors

from regard.errors import DataError
from regard.text.tokenizer import TextStreamer, Tokenizer, train_tokenizer

LETTERS = {letter: index for index, letter in enumerate("abcdefgh")}


def layout(**more: object) -> str:
    """A tokenizer whose special tokens have names that nobody would guess."""
    inner = tokenizers.Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    inner.add_special_tokens(["(open)", "(close)", "(fill)", "(hide)"])
    table = {**json.loads(inner.to_str()), **more}
    return json.dumps(table)


ROLES = {"start": "(open)", "end": "(close)", "pad": "(fill)", "mask": "(hide)"}


def test_names_that_nobody_would_guess_are_told_or_refused():
    with pytest.raises(DataError, match="the tokenizer must have a token <pad>"):
        Tokenizer.from_json(layout())
    tokenizer = Tokenizer.from_json(layout(), roles=ROLES)
    found = (tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.mask)
    assert found == (8, 9, 10, 11)


def test_roles_stay_with_the_file_and_the_file_stays_public():
    tokenizer = Tokenizer.from_json(layout(), roles=ROLES)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert (again.start, again.end, again.pad, again.mask) == (8, 9, 10, 11)
    assert again.to_json() == tokenizer.to_json()
    public = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    assert public.encode("abc").ids == [0, 1, 2]
    assert public.encode("ab", "c").type_ids == [0, 0, 1]


def test_a_role_for_a_token_that_is_not_there_is_told():
    with pytest.raises(DataError, match=r"the end token '\[END\]' is not in the vocabulary"):
        Tokenizer.from_json(layout(), roles={**ROLES, "end": "[END]"})


def test_what_a_file_puts_around_texts_stays_and_is_no_text():
    inner = tokenizers.Tokenizer.from_str(layout())
    inner.post_processor = processors.TemplateProcessing(
        single="(hide) $A (close)", pair="(hide) $A (close) $B (close)", special_tokens=[("(hide)", 11), ("(close)", 9)]
    )
    tokenizer = Tokenizer.from_json(inner.to_str(), roles={**ROLES, "mask": "(fill)"})
    assert tokenizer.prefix == (11,)
    assert tokenizer.specials == {8, 9, 10, 11}
    public = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    assert public.encode("ab", "c").ids == inner.encode("ab", "c").ids == [11, 0, 1, 9, 2, 9]
    assert tokenizer.encode(["ab"]) == [[0, 1]]
    streamer = TextStreamer(tokenizer)
    assert "".join(streamer.add(token) for token in (11, 0, 1, 9)) + streamer.flush() == "a b"


def test_a_vocabulary_with_holes_is_as_large_as_its_highest_id():
    table = json.loads(layout())
    table["model"]["vocab"]["h"] = 20
    tokenizer = Tokenizer.from_json(json.dumps(table), roles=ROLES)
    assert tokenizer.vocab_size == 21


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words"])
def test_tokenizers_of_our_own_put_nothing_around_texts(kind):
    tokenizer = train_tokenizer(["some text to learn from, some words"] * 3, kind, 300)
    assert tokenizer.prefix == ()
    assert tokenizer.specials == {tokenizer.pad, tokenizer.start, tokenizer.end}
    assert tokenizer.mask is None
    assert "regard." not in tokenizer.to_json()
