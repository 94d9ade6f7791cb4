"""The tokens that an imported model reads before a text and stops at, as in transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

from regard.runs.importing import import_model
from regard.runs.run import Run, load
from regard.text.tokenizer import Tokenizer, train_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TEXT, LENGTH = "the cat sat", 9
SPECIALS = {"pad_token": "[P]", "bos_token": "[B]", "eos_token": "[E]"}
SIZES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 31},
    "LlamaForCausalLM": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 29,
                         "max_position_embeddings": 31},
    "BartForConditionalGeneration": {
        "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 31,
        "forced_bos_token_id": None, "forced_eos_token_id": None,
    },
}  # fmt: skip

Made = tuple[Run, Any, Any]
"""Our run, their model, their tokenizer."""


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Made]:
    """Import a model with random weights, whose tokenizer puts texts into this template."""

    def make(architecture: str, template: str | None = None, **generation: Any) -> Made:
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(0)
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        inner = type(train_tokenizer([], "bytes", 300)._inner).from_str(train_tokenizer([], "bytes", 300).to_json())
        inner.add_special_tokens(list(SPECIALS.values()))
        ids = {f"{name}_id": inner.token_to_id(token) for name, token in SPECIALS.items()}
        if template is not None:
            known = [(token, inner.token_to_id(token)) for token in SPECIALS.values()]
            inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=known)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **SPECIALS)
        start = {"decoder_start_token_id": ids["eos_token_id"]} if "Bart" in architecture else {}
        kind = getattr(transformers, architecture)
        config = kind.config_class(vocab_size=len(tokenizer), **{**ids, **SIZES[architecture], **start})
        theirs = kind(config).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
        folder = place / "theirs"
        theirs.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if generation:
            (folder / "generation_config.json").write_text(json.dumps({**ids, **generation}))
        return load(import_model(folder, place / "run"), device="cpu"), theirs, tokenizer

    return make


def written_by(theirs: Any, ids: list[int], **more: Any) -> list[int]:
    """The tokens that transformers writes, always the likeliest."""
    given = torch.tensor([ids])
    options = {"max_new_tokens": LENGTH, "do_sample": False, "num_beams": 1, "attention_mask": torch.ones_like(given)}
    return theirs.generate(given, **{**options, **more})[0].tolist()


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
@pytest.mark.parametrize("template", [None, "[B] $A"])
def test_a_prompt_begins_as_the_tokenizer_has_it(made, architecture: str, template: str | None):
    run, theirs, tokenizer = made(architecture, template)
    ids = tokenizer(TEXT).input_ids
    assert run.tokenizer.prompt(TEXT) == ids
    assert (ids[0] == tokenizer.bos_token_id) == (template is not None)
    expected = run.tokenizer.decode([written_by(theirs, ids)[len(ids) :]])[0]
    assert run.predict(TEXT, max_tokens=LENGTH) == expected
    assert run.generate(TEXT, max_tokens=LENGTH) == expected


def test_a_text_that_has_no_beginning_is_begun_by_the_start_token(made):
    run, theirs, tokenizer = made("GPT2LMHeadModel")
    assert run.tokenizer.prompt("") == [tokenizer.bos_token_id]
    assert (
        run.generate(max_tokens=LENGTH) == run.tokenizer.decode([written_by(theirs, [tokenizer.bos_token_id])[1:]])[0]
    )


def test_models_of_our_own_begin_with_the_start_token_whatever_their_tokenizer_does(made):
    run, _, _ = made("LlamaForCausalLM", "[B] $A")
    own = train_tokenizer([], "bytes", 300)
    assert own.prompt("ab") == [own.start, *own.encode(["ab"])[0]]
    public = Tokenizer.from_json(json.dumps({**json.loads(run.tokenizer.to_json()), "post_processor": None}))
    assert public.prompt("ab")[0] == public.start
    assert public.opening == own.opening == ()


def test_a_text_ends_with_whichever_of_several_ends_comes_first(made):
    run, theirs, tokenizer = made("LlamaForCausalLM")
    ids = tokenizer(TEXT).input_ids
    assert run.tokenizer.ends == {tokenizer.eos_token_id}
    free = written_by(theirs, ids)[len(ids) :]
    place = next(place for place in range(2, LENGTH) if free[place] not in free[:place])
    ends = [tokenizer.eos_token_id, free[place]]
    run, theirs, _ = made("LlamaForCausalLM", eos_token_id=ends)
    assert written_by(theirs, ids, eos_token_id=ends)[len(ids) :] == free[: place + 1]
    assert run.predict(TEXT, max_tokens=LENGTH) == run.tokenizer.decode([free[:place]])[0]
    assert run.tokenizer.ends == set(ends)
    assert run.tokenizer.end == tokenizer.eos_token_id
    assert Tokenizer.from_json(run.tokenizer.to_json()).ends == set(ends)


def test_sources_of_bart_begin_as_its_tokenizer_has_it(made):
    run, theirs, tokenizer = made("BartForConditionalGeneration", "[B] $A [E]")
    ids = tokenizer(TEXT).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert run.predict(TEXT, max_tokens=LENGTH) == run.tokenizer.decode([written_by(theirs, ids)[1:]])[0]
    assert len(run.attention(TEXT, max_tokens=LENGTH).source_tokens) == len(ids)
    (by_beam,) = run.predict_full([TEXT], max_tokens=LENGTH, beam_size=2)
    assert by_beam.score is not None
    batch: Any = next(run.task.row_batches([(TEXT, "a bat")]))
    wide = run.task.pad_batch(batch, 3, len(ids))
    assert batch.source.tolist() == [ids]
    assert wide.source[:, : len(ids)].tolist() == [ids] * 3
