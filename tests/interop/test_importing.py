"""Importing: a folder of transformers becomes a run with the same logits."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from torch import nn

from regard.errors import CheckpointError, ConfigError, DataError, RunError, RunExistsError
from regard.models.heads import MaskedHead
from regard.models.transformer import Transformer
from regard.runs.folder import RunFolder
from regard.runs.importing import import_model
from regard.runs.run import load
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.checkpoints import load_weights, read_tensors, weights_of

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

POSITIONS = 17
TEXTS = ["the cat sat", "a bat", "the mat sat on the hat"]
SPECIALS = {"pad_token": "[P]", "cls_token": "[C]", "sep_token": "[S]", "bos_token": "[B]", "eos_token": "[E]",
            "mask_token": "[M]"}  # fmt: skip
"""Names that nobody would guess."""
TRANSFORMER: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 29,
    "max_position_embeddings": POSITIONS,
}  # fmt: skip
BOTH: dict[str, Any] = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": POSITIONS,
}  # fmt: skip
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 29, "max_position_embeddings": POSITIONS}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS}
T5 = {"d_model": 24, "d_kv": 5, "d_ff": 29, "num_layers": 2, "num_heads": 3, "relative_attention_num_buckets": 6}
SIZES: dict[str, dict[str, Any]] = {
    "BertModel": TRANSFORMER,
    "BertForMaskedLM": TRANSFORMER,
    "BertForSequenceClassification": TRANSFORMER,
    "RobertaForMaskedLM": {**TRANSFORMER, "type_vocab_size": 1, "pad_token_id": 1},
    "DistilBertModel": DISTILBERT,
    "DistilBertForMaskedLM": DISTILBERT,
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": {**TRANSFORMER, "num_key_value_heads": 1},
    "Qwen2ForCausalLM": {**TRANSFORMER, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "T5ForConditionalGeneration": T5,
    "BartForConditionalGeneration": BOTH,
    "MarianMTModel": {**BOTH, "scale_embedding": True},
}
TASKS = dict.fromkeys(("BertModel", "BertForSequenceClassification", "DistilBertModel"), "sentence-embedding")

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def inner() -> Tokenizer:
    return train_tokenizer([], "bytes", 300)


@pytest.fixture
def saved(tmp_path: Path, inner: Tokenizer) -> Make:
    """Save a foreign model of that architecture with random weights and a tokenizer of bytes."""

    def save(architecture: str, *, padding: int = 0, **more: Any) -> Path:
        folder = tmp_path / "theirs"
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=type(inner._inner).from_str(inner.to_json()), **SPECIALS
        )
        ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in SPECIALS.items()}
        kind = getattr(transformers, architecture).config_class
        start = {"decoder_start_token_id": ids["pad_token_id"]} if SIZES[architecture] in (T5, BOTH) else {}
        shared = {name: ids[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        config = kind(vocab_size=len(tokenizer) + padding, **{**shared, **SIZES[architecture], **start, **more})
        theirs = getattr(transformers, architecture)(config).float().eval()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                if "embed_positions" not in name or "Bart" in architecture:
                    nn.init.normal_(parameter, std=0.3)
        theirs.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


def tokenizer_of(path: Path) -> Tokenizer:
    return load(path, device="cpu").tokenizer


def loaded(path: Path) -> tuple[Transformer, MaskedHead | None, Tokenizer]:
    """The model of a run, as whoever uses the run would make it."""
    folder = RunFolder(path)
    settings, tokenizer = folder.read_settings(), tokenizer_of(path)
    model = Transformer(settings.model, tokenizer.vocab_size).eval()
    weights = read_tensors(folder.model_path)[0]
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    if settings.task.name not in ("masked-language-modeling", "sentence-embedding"):
        load_weights(model, weights)
        return model, None, tokenizer
    load_weights(model, {n.removeprefix("body."): t for n, t in weights.items() if n.startswith("body.")})
    head = MaskedHead(model.embedding, norm_epsilon=settings.model.norm_epsilon)
    found = {n.removeprefix("head."): t for n, t in weights.items() if n.startswith("head.")}
    assert (settings.task.name == "masked-language-modeling") == bool(found)
    if found:
        load_weights(head, {**found, "output.weight": weights["body.embedding.weight"]})
    return model, head if found else None, tokenizer


def theirs_at(folder: Path, architecture: str) -> nn.Module:
    return getattr(transformers, architecture).from_pretrained(folder).double().eval()


@pytest.mark.parametrize("architecture", SIZES)
@torch.no_grad()
def test_an_imported_model_has_the_logits_of_the_one_that_was_saved(saved, tmp_path, architecture: str):
    folder = saved(architecture)
    run = import_model(folder, tmp_path / "run")
    ours, head, tokenizer = loaded(run)
    # Transformers computes the norms of these in float32 whatever their weights are; see tests/parity for all digits.
    is_rounded = any(name in architecture for name in ("Llama", "Qwen", "T5"))
    close = {"rtol": 1e-4, "atol": 1e-4} if is_rounded else {}
    theirs = theirs_at(folder, architecture)
    kind = "decoder" if ours.encoder is None else "encoder" if ours.decoder is None else "both"
    for text in TEXTS:
        ids = torch.tensor([[tokenizer.start, *tokenizer.encode([text])[0], tokenizer.end][:13]])
        if kind == "decoder":
            torch.testing.assert_close(ours(ids), theirs(ids).logits, **close)
        elif kind == "both":
            expected = theirs(input_ids=ids[:, 1:], decoder_input_ids=ids[:, :-1]).logits
            torch.testing.assert_close(ours(ids[:, :-1], ids[:, 1:]), expected, **close)
        elif head is not None:
            torch.testing.assert_close(head(ours.encode(ids).hidden_states), theirs(ids).logits, **close)
        else:
            body = getattr(theirs, theirs.base_model_prefix, theirs)
            torch.testing.assert_close(ours.encode(ids).hidden_states, body(ids).last_hidden_state, **close)
    usual = {"decoder": "language-modeling", "encoder": "masked-language-modeling", "both": "seq2seq"}[kind]
    assert RunFolder(run).read_settings().task.name == TASKS.get(architecture, usual)


def test_a_run_records_what_it_was_imported_from_and_no_path(saved, tmp_path):
    run = import_model(saved("BertModel"), tmp_path / "run")
    record = RunFolder(run).read_provenance()
    assert record.notes[0] == "imported from theirs (BertModel)"
    assert record.notes[1] == "not used: pooler.dense.bias, pooler.dense.weight"
    assert str(tmp_path) not in (run / "run.toml").read_text()
    assert len(record.data_hash) == 64
    assert record.num_parameters == sum(t.numel() for t in read_tensors(run / "model.safetensors")[0].values())
    assert RunFolder(run).read_held_out("valid") == []


@pytest.mark.parametrize(
    ("architecture", "start", "end"),
    [
        ("BertModel", "[C]", "[S]"),
        ("LlamaForCausalLM", "[B]", "[E]"),
        ("T5ForConditionalGeneration", "[P]", "[E]"),
        ("MarianMTModel", "[P]", "[E]"),
    ],
)
def test_the_tokens_of_the_model_start_and_end_what_the_run_reads(saved, tmp_path, architecture, start, end):
    tokenizer = tokenizer_of(import_model(saved(architecture), tmp_path / "run"))
    assert tokenizer.pieces([tokenizer.start, tokenizer.end, tokenizer.pad]) == [start, end, "[P]"]
    assert tokenizer.mask is not None
    assert tokenizer.pieces([tokenizer.mask]) == ["[M]"]
    assert tokenizer.decode([[tokenizer.start, *tokenizer.encode(["a bat"])[0], tokenizer.end]]) == ["a bat"]
    again = Tokenizer.from_json(tokenizer.to_json())
    assert (again.start, again.end, again.pad, again.mask) == (
        tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.mask
    )  # fmt: skip


def test_the_end_token_is_read_from_generation_config_json_if_the_tokenizer_does_not_name_it(saved, tmp_path):
    folder = saved("LlamaForCausalLM")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    ids = {"eos_token_id": [7, 8], "bos_token_id": 9}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    tokenizer = tokenizer_of(import_model(folder, tmp_path / "run"))
    assert (tokenizer.start, tokenizer.end) == (9, 7)


def test_tokens_that_the_tokenizer_adds_are_special(saved, tmp_path):
    folder = saved("BartForConditionalGeneration")
    layout = Tokenizer.from_json((folder / "tokenizer.json").read_text())._inner
    places = {name: layout.token_to_id(name) for name in ("[B]", "[E]")}
    layout.post_processor = processors.TemplateProcessing(single="[B] $A [E]", special_tokens=list(places.items()))
    (folder / "tokenizer.json").write_text(layout.to_str())
    tokenizer = tokenizer_of(import_model(folder, tmp_path / "run"))
    assert tokenizer.prefix == (places["[B]"],)
    assert tokenizer.encode(["a bat"])[0][0] != places["[B]"]
    assert tokenizer.decode([[places["[B]"], *tokenizer.encode(["a bat"])[0]]]) == ["a bat"]


def test_rows_that_no_token_has_are_left_out(saved, tmp_path):
    folder = saved("T5ForConditionalGeneration", padding=13)
    run = import_model(folder, tmp_path / "run")
    tokenizer, stored = tokenizer_of(run), load_file(folder / "model.safetensors")
    weights = read_tensors(run / "model.safetensors")[0]
    assert weights["embedding.weight"].size(0) == tokenizer.vocab_size == stored["shared.weight"].size(0) - 13
    assert torch.equal(weights["embedding.weight"], stored["shared.weight"][: tokenizer.vocab_size])
    notes = RunFolder(run).read_provenance().notes
    assert "not used: the last 13 rows of the embedding, which have no token" in notes


def test_a_model_with_fewer_embeddings_than_tokens_is_an_error(saved, tmp_path):
    folder = saved("GPT2LMHeadModel", padding=-1)
    with pytest.raises(CheckpointError, match="the tokenizer has 266 tokens, the embedding of the model only 265"):
        import_model(folder, tmp_path / "run")


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json", "by name"])
def test_the_chat_template_comes_along(saved, tmp_path, where: str):
    folder, template = saved("LlamaForCausalLM"), "{% for m in messages %}{{ m.content }}{% endfor %}"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if where == "chat_template.jinja":
        (folder / where).write_text(template)
    elif where == "tokenizer_config.json":
        settings["chat_template"] = template
    else:
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
        settings["chat_template"] = named
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    run = import_model(folder, tmp_path / "run")
    assert (run / "chat_template.jinja").read_text() == template
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    import_model(folder, run, overwrite=True)
    assert not (run / "chat_template.jinja").exists()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_come_out_in_float32(saved, tmp_path, dtype):
    folder = saved("LlamaForCausalLM")
    path = folder / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)
    weights = read_tensors(import_model(folder, tmp_path / "run") / "model.safetensors")[0]
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert torch.equal(weights["decoder.final_norm.weight"], load_file(path)["model.norm.weight"].float())


def test_several_files_make_one_model(saved, tmp_path):
    folder = saved("LlamaForCausalLM")
    one = read_tensors(import_model(folder, tmp_path / "one") / "model.safetensors")[0]
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + index % 3}-of-00003.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    several = read_tensors(import_model(folder, tmp_path / "several") / "model.safetensors")[0]
    assert one.keys() == several.keys()
    assert all(torch.equal(several[name], tensor) for name, tensor in one.items())


def test_a_body_saved_by_itself_and_norms_with_gammas_are_found(saved, tmp_path):
    folder = saved("BertForMaskedLM")
    expected = read_tensors(import_model(folder, tmp_path / "one") / "model.safetensors")[0]
    path = folder / "model.safetensors"
    tensors = {
        name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(path).items()
    }  # fmt: skip
    tensors["embeddings.position_ids"] = torch.arange(POSITIONS)
    save_file(tensors, path)
    found = read_tensors(import_model(folder, tmp_path / "two") / "model.safetensors")[0]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_an_untied_output_projection_is_kept_whatever_config_json_says(saved, tmp_path):
    folder = saved("T5ForConditionalGeneration")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["shared.weight"].clone()}, path)
    assert RunFolder(import_model(folder, tmp_path / "tied")).read_settings().model.tie_embeddings
    save_file({**tensors, "lm_head.weight": tensors["shared.weight"] + 1}, path)
    run = import_model(folder, tmp_path / "untied")
    settings = RunFolder(run).read_settings()
    assert not settings.model.tie_embeddings
    weights = read_tensors(run / "model.safetensors")[0]
    assert torch.equal(weights["output.weight"], weights["embedding.weight"] + 1)
    notes = RunFolder(run).read_provenance().notes
    assert "the output projection is not tied to the embedding, contrary to config.json" in notes


@pytest.mark.parametrize("size", [0.0, 0.5])
def test_a_bias_of_zeros_is_none(saved, tmp_path, size: float):
    folder = saved("BartForConditionalGeneration")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "final_logits_bias": size * torch.ones_like(tensors["final_logits_bias"])}, path)
    ours, _, _ = loaded(import_model(folder, tmp_path / "run"))
    assert ours.config.output_bias == bool(size)


def test_banned_tokens_have_a_logit_that_is_never_the_largest(saved, tmp_path):
    folder = saved("MarianMTModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "bad_words_ids": [[5], [6, 7]]}))
    ours, _, _ = loaded(import_model(folder, tmp_path / "run"))
    scores = ours(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 8]]))
    assert (scores[..., 5] < scores.min(dim=-1).values + 1).all()
    assert (scores[..., 6] > -1_000).all()


def test_the_pooling_of_sentence_transformers_comes_along(saved, tmp_path):
    folder = saved("BertModel")
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 11}))
    settings = RunFolder(import_model(folder, tmp_path / "run")).read_settings()
    assert (settings.head.pooling, settings.task.model_dump()["max_length"]) == ("first", 11)


def test_an_existing_run_is_replaced_only_with_overwrite(saved, tmp_path):
    folder = saved("GPT2LMHeadModel")
    run = import_model(folder, tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    with pytest.raises(RunExistsError, match="already has a run"):
        import_model(folder, run)
    import_model(folder, run, overwrite=True)
    assert (run / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in run.iterdir()) == [
        "codecs", "held_out", "model.safetensors", "notes.txt", "run.toml"
    ]  # fmt: skip


def test_a_model_cannot_be_imported_into_its_own_folder(saved):
    folder = saved("GPT2LMHeadModel")
    with pytest.raises(RunError, match="name another folder"):
        import_model(folder, folder)


@pytest.mark.parametrize("is_old", [False, True])
def test_an_invalid_checkpoint_leaves_nothing_behind_and_an_existing_run_unchanged(saved, tmp_path, is_old: bool):
    folder, out = saved("GPT2LMHeadModel"), tmp_path / "run"
    if is_old:
        import_model(folder, out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} if is_old else None
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.mlp.c_fc.bias"]
    save_file(tensors, path)
    with pytest.raises(
        CheckpointError, match=r"the checkpoint has no transformer\.h\.1\.mlp\.c_fc\.bias, which config"
    ):
        import_model(folder, out, overwrite=True)
    if before is None:
        assert not out.exists()
    else:
        assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("is_old", [False, True])
def test_a_full_disk_leaves_nothing_behind_and_an_existing_run_unchanged(saved, tmp_path, monkeypatch, is_old: bool):
    folder, out = saved("GPT2LMHeadModel"), tmp_path / "run"
    if is_old:
        import_model(folder, out)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.runs.importing.write_tensors", fail)
    with pytest.raises(RunError, match="No space left on device"):
        import_model(folder, out, overwrite=True)
    assert out.exists() == is_old
    if is_old:
        loaded(out)


@pytest.mark.parametrize(
    ("architecture", "name", "change", "message"),
    [
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.weight", lambda t: t[:, :-1],
         "transformer.h.0.attn.c_attn.weight has the shape 24x71, config.json requires 24x72"),
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.weight", lambda t: t[:, :-3],
         "transformer.h.0.attn.c_attn.weight has the shape 24x69, config.json requires 24x72"),
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.bias", lambda t: t[0],
         "transformer.h.0.attn.c_attn.bias has the shape of a scalar, config.json requires 72"),
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.bias", lambda t: t[:2],
         "transformer.h.0.attn.c_attn.bias has the shape 2, config.json requires 72"),
        ("LlamaForCausalLM", "model.layers.1.mlp.up_proj.weight", lambda t: t[1:],
         "model.layers.1.mlp.up_proj.weight has the shape 28x24, config.json requires 29x24"),
        ("RobertaForMaskedLM", "roberta.embeddings.position_embeddings.weight", lambda t: torch.cat([t, t[:1]]),
         "roberta.embeddings.position_embeddings.weight has the shape 18x24, config.json requires 17x24"),
        ("BartForConditionalGeneration", "model.decoder.embed_positions.weight", lambda t: t[1:],
         "model.decoder.embed_positions.weight has the shape 18x24, config.json requires 19x24"),
        ("BartForConditionalGeneration", "final_logits_bias", lambda t: t[0],
         "final_logits_bias has the shape 266, config.json requires 1x266"),
        ("LlamaForCausalLM", "model.norm.weight", lambda t: t.to(torch.int8),
         "model.norm.weight has the type torch.int8: quantized weights cannot be imported"),
        ("LlamaForCausalLM", "model.layers.2.mlp.up_proj.weight", lambda t: torch.zeros(3),
         "the checkpoint has 1 weights that config.json does not describe: model.layers.2.mlp.up_proj.weight"),
        ("BertForMaskedLM", "cls.predictions.decoder.weight", lambda t: torch.zeros(266, 24),
         "cls.predictions.decoder.weight must equal the embedding, but is another matrix"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_errors_with_name_and_shapes(saved, tmp_path, architecture, name, change, message):
    folder = saved(architecture)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, name: change(tensors.get(name)).contiguous()}, path)
    with pytest.raises(CheckpointError) as error:
        import_model(folder, tmp_path / "run")
    assert str(error.value) == f"{folder}: {message}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type must be default"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "yarn", "beta_fast": 16, "factor": 2.0}},
         "beta_fast must be 32"),
        ("LlamaForCausalLM", {"attention_bias": True}, "attention_bias and mlp_bias must be equal"),
        ("LlamaForCausalLM", {"hidden_act": "tanh"}, "hidden_act must be one of relu, gelu"),
        ("LlamaForCausalLM", {"sliding_window": 5}, "sliding_window is for mistral, qwen2 and qwen3"),
        ("LlamaForCausalLM", {"hidden_size": "24"}, "hidden_size must be an integer from 1 to 16,777,216"),
        ("LlamaForCausalLM", {"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 1,000"),
        ("LlamaForCausalLM", {"num_hidden_layers": None}, "config.json has no num_hidden_layers"),
        ("LlamaForCausalLM", {"vocab_size": None}, "config.json has no vocab_size"),
        ("LlamaForCausalLM", {"vocab_size": 2**63}, "vocab_size must be an integer from 1 to 16,777,216"),
        ("LlamaForCausalLM", {"architectures": {"a": 1}, "model_type": [1]}, "architecture [1] cannot be imported"),
        ("RobertaForMaskedLM", {"pad_token_id": "x"}, "pad_token_id must be an integer from 1 to 16,777,216"),
        ("LlamaForCausalLM", {"rms_norm_eps": True}, "rms_norm_eps must be a number, got True"),
        ("LlamaForCausalLM", {"head_dim": 5}, "rotary positions need an even head_dim"),
        ("LlamaForCausalLM", {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        ("LlamaForCausalLM", {"rope_parameters": "fast"}, "rope_scaling must be an object, got 'fast'"),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must be False"),
        ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
        ("BertForMaskedLM", {"hidden_act": "relu"}, "hidden_act must be 'gelu' for the head"),
        ("RobertaForMaskedLM", {"max_position_embeddings": 2}, "max_position_embeddings must exceed pad_token_id + 1"),
        ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj must be one of"),
        ("BartForConditionalGeneration", {"decoder_ffn_dim": 31}, "encoder_ffn_dim and decoder_ffn_dim must be equal"),
        ("BartForConditionalGeneration", {"normalize_before": True}, "normalize_before must be False"),
        ("MarianMTModel", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings must be True"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_imported_are_named(saved, tmp_path, architecture, change, message):
    folder = saved(architecture)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises((ConfigError, DataError)) as error:
        import_model(folder, tmp_path / "run")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("config", [{"architectures": ["GemmaForCausalLM"]}, {"model_type": "gemma"}])
def test_an_unknown_architecture_is_an_error_that_lists_the_known_ones(saved, tmp_path, config: dict):
    folder = saved("GPT2LMHeadModel")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"emma.* cannot be imported; known: BertModel, .*LlamaForCausalLM"):
        import_model(folder, tmp_path / "run")


def test_a_missing_or_invalid_tokenizer_is_an_error(saved, tmp_path):
    folder = saved("GPT2LMHeadModel")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"the tokenizer of theirs cannot be read: "):
        import_model(folder, tmp_path / "run")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"has no tokenizer\.json: a model is imported with its tokenizer"):
        import_model(folder, tmp_path / "run")


def test_pickles_are_rejected_with_the_reason_and_a_remedy(saved, tmp_path):
    folder = saved("GPT2LMHeadModel")
    path = folder / "pytorch_model.bin"
    shutil.move(folder / "model.safetensors", path)
    for given in (folder, path):
        path.write_bytes(b"PK\x03\x04 anything")
        with pytest.raises(CheckpointError, match=r"is a pickle, which can run any code.*convert it to model\.safe"):
            import_model(given, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_name_is_missing_for_any_weight_of_ours(saved, tmp_path):
    """Whatever a model of ours has, an import fills: nothing stays as it was drawn."""
    run = import_model(saved("T5ForConditionalGeneration"), tmp_path / "run")
    ours, _, _ = loaded(run)
    assert weights_of(ours).keys() == read_tensors(run / "model.safetensors")[0].keys()
