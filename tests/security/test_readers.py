"""Crafted files: each is the smallest one that once ended in another exception than a `RegardError`, or in none."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzzing import files
from tests.fuzzing.engine import FuzzedReader, execute, prepare
from tests.fuzzing.guard import Guard
from tests.fuzzing.readers import all_readers

from regard.data.formats import open_table, read_image
from regard.data.formats.cells import decimal_marks
from regard.data.formats.episodes import open_episodes
from regard.data.formats.images import ImageConfig, image_size
from regard.errors import DataError, RegardError, RunError, one_line
from regard.files import MOST_LEVELS, load_json
from regard.runs.folder import RunFolder
from regard.selection.ledger import Ledger

DEEP = "[" * 5_000
READERS = {reader.name: reader for reader in all_readers()}
LEDGER = {"version": 2, "set": "valid", "event": "report", "candidate": "a", "scores": {"accuracy": {"value": 0.5}}}
INPUTS: dict[str, list[bytes]] = {
    "COCO": [b'{"images": NaN}', DEEP.encode()],
    "SQuAD": [b'{"data": [' + DEEP.encode(), b'{"data": NaN}'],
    "JSON lines": [b'{"a": ' + DEEP.encode() + b"\n"],
    "graphs": [b'{"nodes": [' + DEEP.encode()],
    "prompts": [DEEP.encode()],
    "records": [b'{"a": ' + b"[" * 400 + b"]" * 400 + b"}\n"],
    "captions": [
        b"image,caption\n" + b"a" * 5_000 + b".png,A dog\n",
        b'{"image": "a\\u0000.png", "caption": "A dog"}\n',
    ],
    "tables of images": [b"image,label\n\x85.png,cat\n", b"image,label\n../../../../../../etc/passwd.png,cat\n"],
    "data URIs": ["data:image/png;base64,é".encode(), b"data:image/png;base64,AAAA"],
    "settings": [b"preset = 'a'\n[task]\n", b"a = " + DEEP.encode(), b"a = " + b"9" * 5_000, b"task = 3"],
    "run.toml": [b"a" + b".a" * 30_000 + b" = 1"],
    "images": [
        bytes.fromhex("89504e470d0a1a0a0000000d4948445200000005000000031000000000" + "2ecd4667" + "7fff0012")
        + b"IDATx\x9c"
        + bytes(30)
    ],
    "Hugging Face generation_config.json": [b'{"eos_token_id": [1' + b"0" * 400 + b"]}"],
    "chat templates": [b"{{ " + b"9" * 5_000 + b" }}", b"{{ " + b"(" * 5_000, b"{% if a %}" * 200],
    "formulas": [b"[a+" * 2_000, b"!" * 2_000 + b"a", b"a & " * 10_000],
    "ledgers": [
        json.dumps({**LEDGER, "scores": {"accuracy": []}}).encode(),
        json.dumps({name: value for name, value in LEDGER.items() if name != "set"}).encode(),
        json.dumps({**LEDGER, "event": "replaced", "keys": [[]]}).encode(),
        json.dumps({**LEDGER, "set": "file"}).encode(),
        json.dumps({**LEDGER, "event": "selection"}).encode(),
    ],
    "ledgers with any chain": [b"\xff\n{}\n", b"1 a\n" + DEEP.encode() + b"\n", b"9" * 5_000 + b" a\n"],
    "metrics": [b"1\n", b"[]\n", DEEP.encode() + b"\n"],
    "held-out rows": [b"1\n", b'[{"a": 1}]\n', DEEP.encode() + b"\n"],
    "baseline.json": [b"[]", b'{"interval": 3}', DEEP.encode()],
    "lines of sealed rows": [b"null\n", b"[1]\n", DEEP.encode()],
    "NumberCodec": [DEEP.encode(), b"[]", b'{"mean": [], "std": 1}'],
    "LabelCodec": [b'{"labels": {"a": 1}, "separator": ""}', b'{"labels": [1], "separator": null}'],
    "TreeCodec": [b'{"tags": [[]], "labels": {}}', b'{"tags": {"a": 1}, "labels": 3}'],
    "MoleculeCodec": [b'{"descriptors": [[]]}', b'{"descriptors": ["none of them"]}'],
    "Hugging Face index": [b'{"weight_map": {"a": "b\\u0000c"}}', b'{"weight_map": {"a": "' + b"a" * 5_000 + b'"}}'],
    "Hugging Face special_tokens_map.json": [b'{"eos_token": "\\ud800"}'],
    "Hugging Face config.json": [
        files.exported("hf")["config.json"].replace(
            b'"rms_norm_eps": ', b'"rms_norm_eps": 1' + b"0" * 400 + b'.0, "other": '
        )
    ],
    "EventCodec": [
        DEEP.encode(),
        b"3",
        b'{"events": ["a"], "counts": []}',
        b'{"events": [[]], "counts": [1]}',
        b'{"scale": "x"}',
    ],
    "SeriesCodec": [b'{"clock": 3}', DEEP.encode()],
    "a run with chat_template.jinja": [b"\xbf"],
    "episodes": [
        b'{"observations": 1.5, "actions": [0, 1], "rewards": [0, 1]}\n',
        b'{"observations": [[1, 2]], "actions": -1, "rewards": [1]}\n',
    ],
    "peft adapter_config.json": [
        b'{"peft_type": "LORA", "r": 3, "init_lora_weights": []}',
        b'{"peft_type": "LORA", "r": 3, "lora_alpha": []}',
        b'{"peft_type": "LORA", "r": 3, "lora_alpha": "x"}',
        b'{"peft_type": "LORA", "r": 3, "lora_alpha": 1' + b"0" * 400 + b"}",
    ],
    "headers of arrays": [
        b"{{'descr': '<f8'}}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }\n",
        b"{'descr': '<f8', 'shape': (",
    ],
    "sheets of Excel": [
        b'<worksheet><sheetData><row r="1"><c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>',
        b'<worksheet><sheetData/><mergeCells><mergeCell ref="A1:XFD1048576"/></mergeCells></worksheet>',
        b'<!DOCTYPE a [<!ENTITY b "c">]><worksheet>&b;</worksheet>',
    ],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, some in INPUTS.items() for data in some])
def test_a_crafted_file_gives_a_result_or_an_error_of_one_line(
    name: str, data: bytes, folder: Path, guard: Guard, monkeypatch
):
    prepare(READERS[name], folder)
    monkeypatch.setattr("tests.fuzzing.engine.MAX_MEMORY", 1 << 29)
    _, kind, detail, _ = execute(READERS[name], data, folder, guard)
    assert not kind, detail


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def guard(folder: Path) -> Guard:
    return Guard(str(folder))


@pytest.mark.parametrize(
    "read",
    [
        lambda data, folder: (folder / "other").write_bytes(data) and (folder.parent / "outside").write_bytes(data),
        lambda data, folder: Path("/etc/hostname").read_bytes(),
        lambda data, folder: __import__("subprocess").run(["true"]),
        lambda data, folder: {}["missing"],
        lambda data, folder: [0] * (1 << 40),
    ],
)
def test_what_a_reader_must_not_do_is_a_finding(read: Callable[[bytes, Path], Any], folder: Path, guard: Guard):
    assert execute(FuzzedReader("one", lambda: [b""], read), b"data", folder, guard)[1]


def test_a_long_cell_of_digits_is_read_in_linear_time(folder: Path, guard: Guard):
    # Of 400,000 digits, a time that grows with the square of their number is minutes.
    reader = FuzzedReader("one", lambda: [b""], lambda data, _: decimal_marks(data.decode()))
    outcome, kind, detail, _ = execute(reader, b"9" * 400_000 + b"x", folder, guard)
    assert (outcome, kind) == (("result", ""), ""), detail


def test_an_error_is_one_line_without_control_characters():
    error = DataError("a name\nwith \x1b[31mcolor \u202eand\u2028more " + "x" * 10_000 + " its end")
    assert str(error).startswith(r"a name with \x1b[31mcolor \u202eand more xxx")
    assert str(error).endswith("x its end")
    assert len(str(error)) < 2_000
    assert len(str(DataError("\x01" * 5_000))) <= 2_000
    assert one_line("tab\tand\r\nmore") == "tab and  more"


def test_json_is_read_to_a_limited_depth():
    assert load_json("[" * MOST_LEVELS + "]" * MOST_LEVELS)
    assert load_json(json.dumps(["[" * 5_000, {"a": "{\\" * 3_000}])) == ["[" * 5_000, {"a": "{\\" * 3_000}]
    with pytest.raises(ValueError, match="nested more than"):
        load_json("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1))


def test_arrays_are_read_as_numpy_writes_them(tmp_path: Path):
    path = tmp_path / "episodes.npz"
    values = {"observations": np.asfortranarray(np.arange(8.0).reshape(4, 2)), "actions": np.array([0, 1, 0, 1])}
    ends = {"terminations": np.array([False, True, False, True]), "other": np.array(["text"])}
    np.savez_compressed(path, **values, rewards=np.ones(4, np.float32), **ends)
    rows = [json.loads(row.values[0]) for row in open_episodes(path)]
    assert [row["observations"] for row in rows] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_the_size_of_a_damaged_image_is_an_error(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(files.images()[0][:60])
    with pytest.raises(DataError, match="damaged image"):
        image_size(tmp_path / "a.png")


def test_a_decompression_bomb_of_pixels_is_not_decoded(tmp_path: Path):
    content = bytearray(files.images()[0])
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    import zlib

    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"more than .* pixels"):
        read_image(tmp_path / "a.png", ImageConfig())


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_compressed_text_that_expands_out_of_proportion_is_not_read(place: int, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("regard.files._FREE_BYTES", 1 << 16)
    suffix, data = files.compressed(b"a\tb\n" * (1 << 21))[place]
    (tmp_path / f"t.tsv{suffix}").write_bytes(data)
    with pytest.raises(DataError, match=r"expands to more than .* decompress it first"):
        list(open_table(tmp_path / f"t.tsv{suffix}"))


def test_compressed_text_within_proportion_is_read(tmp_path: Path):
    for suffix, data in files.compressed(b"a\tb\n" * 10_000):
        (tmp_path / f"t.tsv{suffix}").write_bytes(data)
        assert open_table(tmp_path / f"t.tsv{suffix}", header=False).check() == 10_000


def test_a_workbook_that_expands_out_of_proportion_is_not_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("regard.files._FREE_BYTES", 1 << 16)
    path = tmp_path / "t.xlsx"
    path.write_bytes(files.workbook())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/more.xml", b"<a>" + b" " * (1 << 25) + b"</a>")
    with pytest.raises(DataError, match="expands to more than"):
        open_table(path)


def test_sealed_rows_that_expand_out_of_proportion_are_not_read(monkeypatch):
    from regard.selection.sealed import seal, unseal

    rows = [("a" * 100, "b")] * 20_000
    assert unseal(seal(rows)) == rows
    monkeypatch.setattr("regard.files._FREE_BYTES", 1 << 10)
    monkeypatch.setattr("regard.files.MAX_EXPANSION", 10)
    with pytest.raises(RunError, match="expands to more than"):
        unseal(seal(rows))


def test_a_ledger_that_regard_writes_is_valid(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add("valid", "held out", "", {}, rows=3, hash="a")
    ledger.add("valid", "report", "step 1", {"accuracy": {"value": 0.5, "interval": [0.4, 0.6]}}, rows=3)
    ledger.add("valid", "selection", "", {}, by="valid", models=2, candidates=3)
    assert len(ledger.read()) == 3


def test_a_line_of_metrics_without_a_step_is_named(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"loss": 1}\n')
    with pytest.raises(RegardError, match="a step"):
        RunFolder(tmp_path).read_metrics()
