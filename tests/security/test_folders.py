"""Folders of strangers: nothing outside of them is read or written, and nothing in them is run."""

import json
import os
from pathlib import Path

import pytest
from tests.fuzzing import files

import regard
from regard.data.image_sources import open_images
from regard.data.settings import DataConfig
from regard.data.sources import open_source
from regard.data.text_sources import open_texts
from regard.errors import CheckpointError, ConfigError, DataError, RunError
from regard.files import write_atomically
from regard.interop.importing import read_model
from regard.runs.folder import RunFolder
from regard.runs.rewards import TRUSTED_REWARDS, load_reward

SECRET = "a file of this machine that is none of a stranger's business"


def copied(content: dict[str, bytes], folder: Path) -> Path:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copied(files.run_files(), tmp_path / "runs" / "one")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("name", ["codecs/text.json", "model.safetensors", "ledger.jsonl", "lock", "run.toml.part"])
def test_a_run_with_a_link_that_leads_out_of_it_is_not_read(name: str, run: Path, secret: Path):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    with pytest.raises(RunError, match=r"leads out of .*, to .*secret.txt"):
        regard.load(run, device="cpu")
    assert secret.read_text() == SECRET


def test_a_run_with_a_link_to_a_folder_or_a_pipe_is_not_read(run: Path, tmp_path: Path):
    (run / "held_out").symlink_to(tmp_path)
    with pytest.raises(RunError, match="leads out of"):
        regard.load(run, device="cpu")
    (run / "held_out").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(RunError, match="neither a file nor a folder"):
        regard.load(run, device="cpu")


def test_a_link_within_a_run_is_followed(run: Path):
    (run / "model.safetensors").rename(run / "weights")
    (run / "model.safetensors").symlink_to("weights")
    assert regard.load(run, device="cpu").predict("the", max_tokens=2) is not None


def test_a_folder_with_a_link_for_a_lock_is_not_trained_in(tmp_path: Path, secret: Path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "lock").symlink_to(secret)
    with pytest.raises(RunError, match="leads out of"), RunFolder(tmp_path / "new").lock():
        pass
    assert secret.read_text() == SECRET


def test_a_partial_file_that_is_a_link_is_replaced_and_not_followed(tmp_path: Path, secret: Path):
    (tmp_path / "a.json.part").symlink_to(secret)
    write_atomically(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_a_link_in_a_folder_to_import_is_followed_only_within_it(name: str, tmp_path: Path, secret: Path):
    folder = copied(files.exported("hf"), tmp_path / "hf")
    content = (folder / name).read_bytes() if (folder / name).is_file() else b""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(DataError, match="leads out of"):
        read_model(folder)
    if content:
        (folder / "blob").write_bytes(content)
        (folder / name).unlink()
        (folder / name).symlink_to("blob")
        assert read_model(folder).head == "next-token"


def test_the_cache_of_hugging_face_has_its_files_beside_the_folder(tmp_path: Path):
    folder = tmp_path / "models--one" / "snapshots" / "abc"
    for name, data in files.exported("hf").items():
        blob = tmp_path / "models--one" / "blobs" / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(Path("..") / ".." / "blobs" / name)
    assert read_model(folder).head == "next-token"


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "a/../../b", "", 3, None])
def test_an_index_names_files_of_its_own_folder(file: object, tmp_path: Path):
    folder = copied(files.exported("hf"), tmp_path / "hf")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises((CheckpointError, DataError)):
        read_model(folder)


def test_a_folder_of_data_has_its_own_files(tmp_path: Path, secret: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").symlink_to(secret)
    with pytest.raises(DataError, match="leads out of"):
        open_texts(DataConfig(train=[str(tmp_path / "data")]))
    with pytest.raises(DataError, match="leads out of"):
        open_source(DataConfig(train=[str(tmp_path / "data")]), ("text",))


def test_a_table_names_images_of_its_own_folder(tmp_path: Path):
    (tmp_path / "other.png").write_bytes(files.images()[0])
    table = tmp_path / "data" / "train.csv"
    table.parent.mkdir()
    (table.parent / "own.png").write_bytes(files.images()[0])
    (table.parent / "link.png").symlink_to(tmp_path / "other.png")
    for name in ("../other.png", str(tmp_path / "other.png"), "link.png", "../data/../other.png"):
        table.write_text(f"image,label\n{name},cat\nown.png,dog\n")
        with pytest.raises(DataError, match=r"data\.outside_images"):
            open_images(DataConfig(train=[str(table)]))
        found = open_images(DataConfig(train=[str(table)], outside_images=True))
        assert len(found.train.rows) == 2
    for name in ("own.png", str(table.parent / "own.png"), "../data/own.png"):
        table.write_text(f"image,label\n{name},cat\nown.png,dog\n")
        assert len(open_images(DataConfig(train=[str(table)])).train.rows) == 2


def test_a_function_that_only_a_run_names_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(TRUSTED_REWARDS, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stranger.py").write_text(
        "import pathlib; pathlib.Path('called').touch()\ndef reward(prompt, answer): return 1.0\n"
    )
    with pytest.raises(ConfigError, match="REGARD_REWARDS=stranger:reward"):
        load_reward("stranger:reward", folder=tmp_path, is_named=False)
    assert not (tmp_path / "called").exists()
    with monkeypatch.context() as patch:
        patch.setenv(TRUSTED_REWARDS, "other:one, stranger:reward")
        assert load_reward("stranger:reward", folder=tmp_path, is_named=False)(["a"], ["b"]) == [1.0]
    with pytest.raises(ConfigError, match="REGARD_REWARDS"):
        load_reward("stranger:reward", folder=tmp_path, is_named=False)
    load_reward("stranger:reward")  # named by the user, and remembered
    assert load_reward("stranger:reward", folder=tmp_path, is_named=False)(["a"], ["b"]) == [1.0]
    assert load_reward("regard.data.builtin.ratings:utility", folder=tmp_path, is_named=False)(["a"], ["b"])


@pytest.mark.parametrize(
    "change",
    [
        ("model_dim = 8", "model_dim = 16000000"),
        ("feedforward_dim = 11", "feedforward_dim = 4000000000"),
        ("num_layers = 1", "num_layers = 10000"),
        ("num_layers = 1", "num_layers = 1000000000"),
    ],
)
def test_settings_of_a_model_that_its_file_cannot_have_allocate_no_memory(change: tuple[str, str], run: Path):
    text = (run / "run.toml").read_text()
    assert change[0] in text
    (run / "run.toml").write_text(text.replace(*change))
    with pytest.raises((CheckpointError, ConfigError)):
        _ = regard.load(run, device="cpu").model
