"""Every reader of regard that a stranger's file can reach, with a corpus."""

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tests.fuzzing import files
from tests.fuzzing.engine import FuzzedReader

import regard
from regard.data.caption_sources import open_captions, read_captions
from regard.data.codecs.codec import read_codecs
from regard.data.conversation_sources import open_conversations, parse_prompt
from regard.data.formats import describe, open_questions, open_table, open_tagged, read_image
from regard.data.formats.coco import is_coco, read_coco
from regard.data.formats.episodes import open_episodes
from regard.data.formats.events import EventColumns, parse_history
from regard.data.formats.graphs import parse_graph
from regard.data.formats.images import ImageConfig
from regard.data.formats.records import open_records
from regard.data.formats.trees import tree_table
from regard.data.image_sources import open_images
from regard.data.preference_sources import open_preferences
from regard.data.series_sources import open_events, open_series
from regard.data.settings import DataConfig
from regard.data.text_sources import open_texts
from regard.errors import RegardError
from regard.experiments.jobs import last_metrics
from regard.interop.gguf.reading import read_gguf
from regard.interop.importing import read_model
from regard.interop.peft import fit_adapter
from regard.lab.circuits.formulas import parse_formula
from regard.runs.folder import RunFolder
from regard.runs.run import Run
from regard.selection.ledger import Ledger, chain_hash
from regard.selection.sealed import seal, unseal
from regard.selection.siblings import read_ledgers
from regard.selection.space import read_space
from regard.settings import read_toml
from regard.tasks.registry import TASKS, detect_task
from regard.text.chat import Chat, render_chat
from regard.text.tokenizer import load_tokenizer
from regard.training.checkpoints import hash_of, note_of, read_tensors
from regard.training.settings import DraftSettings

_MOST_ROWS = 1_000
_TABLE = b"source\ttarget\nHallo Welt\tHello world\nJa\tYes\nNein, danke\tNo, thanks\n"
_CSV = b'id,text,label\n1,"a ""good"" film",good\n2,"two\nlines",bad\n3,plain,good\n4,plain two,bad\n'
_LINES = b'{"source": "Hallo", "target": "Hello"}\n{"source": "Ja", "target": "Yes", "n": 1.5}\n'
_NESTED = b'{"translation": {"de": "Hallo", "en": "Hello"}, "id": 7}\n{"translation": {"de": "Ja", "en": "Yes"}}\n'
_CONLL = b"-DOCSTART- O\n\nAda B-PER\nsang O\n. O\n\nBob B-PER\nsat O\n"
_CONLLU = (
    b"# newdoc\n# text = Ada sang\n1\tAda\tAda\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n1-2\tAda\t_\t_\t_\t_\t_\t_\t_\t_\n"
    b"2\tsang\tsing\tVERB\tVBD\t_\t0\troot\t_\t_\n\n"
)
_TAGGED = b'{"tokens": ["Ada", "sang"], "ner_tags": ["B-PER", "O"]}\n{"tokens": ["Bob"], "ner_tags": ["B-PER"]}\n'
_SQUAD = files.as_json(
    {"version": "2", "data": [{"title": "t", "paragraphs": [{"context": "Ada sang in Rome.", "qas": [
        {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}], "is_impossible": False},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}]}]}]}
)  # fmt: skip
_QUESTIONS = b'{"question": "Who?", "context": "Ada sang", "answers": {"text": ["Ada"], "answer_start": [0]}}\n'
_SEMEVAL = (
    b'<?xml version="1.0"?><sentences><sentence id="1"><text>Good soup, rude waiter.</text><aspectTerms>'
    b'<aspectTerm term="soup" polarity="positive" from="5" to="9"/></aspectTerms><aspectCategories>'
    b'<aspectCategory category="food" polarity="positive"/></aspectCategories></sentence></sentences>'
)
_WEIGHTSA = b">sp|P1 first\nMKVLAA\nGGC*\n;old\n>second\nACGT\n"
_TREES = (
    b"( (S (NP-SBJ (NNP Ada)) (VP (VBD sang) (. .))))\n(S (NP (DT the) (NN sea)) (VP (VBZ is)\n (ADJP (JJ (deep))))\n"
)
_SERIES = b"".join(b"2024-05-%02d,%d.5,%d\n" % (day, day, day % 3) for day in range(1, 20))
_STORE_SERIES = b"shop,date,sales\n" + b"".join(
    b"%s,2024-%02d-01,%d\n" % (shop, m, m) for shop in (b"a", b"b") for m in range(1, 10)
)
_EVENTS = b"patient,time,event,dose\n1,0,visit,\n1,2.5,drug,3\n1,7,visit,\n2,1,visit,\n2,4,death,1\n"
_DATED = b"user,when,what\na,2024-05-01,login\na,2024-05-02T10:00,buy\nb,2024-05-03,login\nb,2024-05-09,buy\n"
_EPISODES = (
    b'{"observations": [[1, 2], [3, 4]], "actions": [0, 1], "rewards": [1, 0.5], "terminated": true}\n'
    b'{"observations": [[1, 2]], "actions": [1], "rewards": [1]}\n'
)
_GRAPHS = (
    b'{"nodes": ["a", "b", "a"], "edges": [[0, 1], [1, 2, "x"]]}',
    b'{"nodes": [[0.5, 1], [2, 3]], "edges": [[0, 1]], "directed": true}',
    b"CC(=O)Oc1ccccc1C(=O)O",
    b"C[C@H](N)C(=O)[O-]",
)
_COCO = files.as_json(
    {"images": [{"id": 9, "file_name": "9.png"}], "annotations": [{"image_id": 9, "caption": "A dog."}]}
)
_CHATS = (
    b'{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, '
    b'{"role": "assistant", "content": "Hello"}]}\n',
    b'{"prompt": "Hi", "completion": "Hello"}\n{"prompt": "Why", "completion": "Because"}\n',
    b"instruction,input,output\nadd,1 2,3\nsay,hi,hi\n",
)
_PREFERENCES = (
    b'{"prompt": "Hi", "chosen": "Hello", "rejected": "No"}\n{"prompt": "Why", "chosen": "So", "rejected": ""}\n',
    b'{"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}], '
    b'"rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No"}]}\n',
    b'{"prompt": "Hi", "response": "Hello", "rating": 4}\n{"prompt": "Hi", "response": "Bye", "rating": 1}\n',
)
_CAPTIONS = (b"image,caption\na.png,A dog\na.png,The dog\n", b'{"image": "a.png", "caption": "A dog on a beach"}\n')
_IMAGE_TABLE = (b"image,label\na.png,cat\na.png,dog\n",)
_SETTINGS = b"""[task]
name = "language-modeling"

[model]
num_layers = 2
model_dim = 24
attention = ["full", "window"]

[data]
train = ["text.txt"]
splits = [0.8, 0.1, 0.1]

[train]
learning_rate = 3e-4
max_steps = 100
minutes = 0.5
"""
_SPACE = b"[train.learning_rate]\nlow = 1e-4\nhigh = 1e-2\nlog = true\n\n[model.num_layers]\nchoices = [1, 2, 4]\n"
_FORMULAS = (b"(a & b) ^ !c", b"[2*a + b - c >= 1] -> d", b"a or b and not c <-> d", b"maj(a, b, c)")
_CODECS: dict[str, bytes] = {
    "LabelCodec": b'{"labels": {"good": 3, "bad": 2}, "separator": ","}',
    "NumberCodec": b'{"mean": 1.5, "std": 2.0}',
    "PixelCodec": b'{"size": 32, "patch_size": 4, "channels": 3, "mean": [0.5], "std": [0.5], "resampling": "bilinear"}',
    "TreeCodec": b'{"tags": {"NN": 3, "DT": 1}, "labels": {"S": 2, "S VP": 1}}',
    "PropertyCodec": b'{"names": ["a", "b"], "labels": [], "means": [1.0, 2.0], "stds": [1.0, 1.0], "source": "s"}',
    "MoleculeCodec": b'{"descriptors": ["MolWt"]}',
    "SeriesCodec": (
        b'{"columns": ["v"], "means": [1.0], "stds": [2.0], "scales": [1.0], "season": 7, "clock": {"unit": "seconds", '
        b'"size": 86400.0}, "input_length": 4, "horizon": 2, "covariates": [{"name": "c", "is_static": false, '
        b'"categories": ["x", "y"]}], "covariate_means": [0.0], "covariate_stds": [1.0], "categories_seen": [[0, 1]], '
        b'"calendar": ["week"]}'
    ),
    "EventCodec": (
        b'{"events": ["visit", "drug"], "counts": [3, 1], "unit": "days", "scale": 2.0, "resolution": 0.5, '
        b'"gap_quantiles": [0.1, 1.0], "horizons": [1.0], "values": ["dose"], "means": [0.0], "stds": [1.0], '
        b'"value_shares": [1.0, 1.0], "value_means": [0.0, 0.0], "value_stds": [1.0, 1.0], "value_memories": [0.0, 0.0]}'
    ),
    "EpisodeCodec": (
        b'{"means": [0.0, 1.0], "stds": [1.0, 1.0], "num_actions": 2, "action_means": [], "action_stds": [], '
        b'"action_low": [], "action_high": [], "return_scale": 2.0, "best_return": 2.0, "mean_return": 1.0, '
        b'"num_episodes": 3, "num_steps": 9}'
    ),
}
_VALUES: dict[str, list[Any]] = {
    "LabelCodec": ["good"],
    "NumberCodec": ["1.5"],
    "TreeCodec": ["(S (NN a) (DT b))"],
    "PropertyCodec": ["1;2"],
    "MoleculeCodec": ["CCO"],
    "SeriesCodec": ["1.5,0 1.7,1"],
    "EventCodec": ['[[0, null], [2.5, "visit", 3]]'],
    "EpisodeCodec": ['{"observations": [[1, 2]], "actions": [1], "rewards": [1]}'],
    "TextCodec": ["the theatre"],
    "GraphCodec": ['{"nodes": ["a", "b"], "edges": [[0, 1]]}'],
    "TagCodec": ["B-PER O"],
}
_MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def _bucket(count: int) -> int:
    return count.bit_length()


def _written(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _take(rows: Iterable[Any]) -> int:
    return _bucket(sum(1 for _ in islice(rows, _MOST_ROWS)))


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    return lambda data, folder: read(_written(data, folder, name))


def _config(path: Path) -> DataConfig:
    return DataConfig(train=[str(path)])


def _read_table(path: Path) -> object:
    """What `regard train` does with a file before it knows the task, and what reads its rows."""
    found = describe(path)
    try:
        task = detect_task(_config(path))[0]
    except RegardError as error:
        task = type(error).__name__
    roles = ("source", "target") if len(found.columns) > 1 else ("text",)
    table = open_table(path, roles=roles, skip_bad=True)
    return found.format, task, len(table.inferred), _take(table)


def _read_records(path: Path) -> object:
    table = open_records(path)
    return table.format, _take(table.read())


def _read_tagged(path: Path) -> object:
    found = open_tagged(path)
    return found.format, found.columns, _take(found.read())


def _read_questions(path: Path) -> object:
    found = open_questions(path)
    kinds = {type(question).__name__ for _, question in islice(found.read(), _MOST_ROWS)}
    return found.format, tuple(sorted(kinds))


def _read_series(path: Path) -> object:
    table = open_series(_config(path)).train
    return str(table.clock), len(table.columns), len(table.series)


def _read_resampled(path: Path) -> object:
    return str(open_series(_config(path), resample="1 day").train.clock)


def _read_events(path: Path) -> object:
    source, table = open_events(_config(path), columns=EventColumns())
    histories = [parse_history(row.values[-1], len(table.values)) for row in source.train]
    return table.unit, _bucket(len(histories)), table.values


def _read_graph(data: bytes, _folder: Path) -> object:
    graph = parse_graph(data.decode("utf-8", "replace"))
    distances = graph.distances() if graph.num_nodes <= 200 else None
    return graph.signature(), _bucket(graph.num_nodes), distances is None


def _read_coco(path: Path) -> object:
    return is_coco(path), _take(read_coco(path))


def _read_image_table(data: bytes, folder: Path, suffix: str, *, are_captions: bool) -> object:
    if not (folder / "a.png").exists():
        (folder / "a.png").write_bytes(files.images()[0])
    path = _written(data, folder, f"table{suffix}")
    if are_captions:
        found = open_captions(_config(path)).train.rows
        _take(text for _, value in found for text in read_captions(value))
    else:
        found = open_images(_config(path)).train.rows
    shapes = {read_image(name, ImageConfig(size=4, patch_size=2)).shape for name, _ in found[:5]}
    return len(shapes), _bucket(len(found))


def _read_preferences(path: Path) -> object:
    return _take(open_preferences(_config(path)).train)


def _read_chats(path: Path) -> object:
    source = open_conversations(_config(path))
    return _take(parse_prompt(row.values[0]) for row in source.train)


def _read_text(path: Path) -> object:
    source = open_texts(_config(path))
    return source.train.form, _take(source.train.documents())


def _read_compressed(data: bytes, folder: Path) -> object:
    suffix = {b"\x1f": ".gz", b"B": ".bz2", b"\xfd": ".xz"}.get(data[:1], ".zst")
    return suffix, _read_table(_written(data, folder, f"rows.tsv{suffix}"))


def _read_toml(path: Path) -> object:
    return tuple(sorted(DraftSettings.draft(read_toml(path)).model_fields_set))


def _read_space(path: Path) -> object:
    space = read_space(read_toml(path), [files.run_settings()])
    return len(space.ranges)


def _read_template(data: bytes, _folder: Path) -> object:
    source = data.decode("utf-8", "replace")
    values = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "add_generation_prompt": True}
    text = render_chat(source, _MESSAGES, values)
    return _bucket(len(text)), len(Chat(source, files.tokenizer()).encode(_MESSAGES[:1])) > 3


def _read_prompt(data: bytes, _folder: Path) -> object:
    return len(parse_prompt(data.decode("utf-8", "replace")))


def _read_formula(data: bytes, _folder: Path) -> object:
    formula = parse_formula(data.decode("utf-8", "replace"))
    return len(formula.variables), _bucket(int(formula.truth_table().sum()))


def _read_tokenizer(path: Path) -> object:
    tokenizer = load_tokenizer(path)
    (ids,) = tokenizer.encode(["the theatre </s> é"])
    return tokenizer.vocab_size, len(ids), len(tokenizer.decode([ids])[0]), len(tokenizer.prompt("a"))


def _read_checkpoint(path: Path) -> object:
    note = len(note_of(path))
    return note, len(hash_of(path)), len(read_tensors(path)[0])


def _copied(content: dict[str, bytes], folder: Path) -> None:
    """Write files that are not there, or that an execution has changed."""
    for name, data in content.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != len(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _of_model(kind: str, name: str) -> Callable[[bytes, Path], object]:
    """Reads a folder of a model in which one file is replaced."""

    def read(data: bytes, folder: Path) -> object:
        content = files.exported(kind)
        _copied({other: some for other, some in content.items() if other != name}, folder / kind)
        (folder / kind / name).write_bytes(data)
        found = read_model(folder / kind, format=kind)
        if found.adapter is not None:
            return len(fit_adapter(found.adapter, files.CONFIG, files.tokenizer().vocab_size).adapter.tensors)
        return found.architecture, len(found.weights), found.head

    return read


def _read_index(data: bytes, folder: Path) -> object:
    content = files.exported("hf")
    _copied(content, folder / "hf")
    (folder / "hf" / "model.safetensors.index.json").write_bytes(data)
    return len(read_model(folder / "hf", format="hf").weights)


def _with_header(
    read: Callable[[bytes, Path], object], content: Callable[[], bytes]
) -> Callable[[bytes, Path], object]:
    """Reads a safetensors file whose header is the input."""
    return lambda data, folder: read(files.safetensors_bytes(data, files.split_safetensors(content())[1]), folder)


def _read_gguf(path: Path) -> object:
    found = read_gguf(path)
    return found.architecture, len(found.weights)


def _read_llama2c(data: bytes, folder: Path) -> object:
    _written(files.llama2c()[1], folder, "tokenizer.bin")
    return len(read_model(_written(data, folder, "model.bin"), format="llama2c").weights)


def _read_vocabulary(data: bytes, folder: Path) -> object:
    _written(files.llama2c()[0], folder, "model.bin")
    _written(data, folder, "tokenizer.bin")
    return len(read_model(folder / "model.bin", format="llama2c").weights)


def _of_run(name: str) -> Callable[[bytes, Path], object]:
    """Reads and uses a run in which one file is replaced."""

    def read(data: bytes, folder: Path) -> object:
        content = files.run_files()
        _copied({other: some for other, some in content.items() if other != name}, folder / "run")
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        run = regard.load(folder / "run", device="cpu")
        return _use(run)

    return read


def _use(run: Run) -> object:
    return run.task.name, len(run.predict("the", max_tokens=2)), run.folder.read_chat_template() is None


def _read_settings_of_run(data: bytes, folder: Path) -> object:
    content = files.run_files()
    _copied({other: some for other, some in content.items() if other != "run.toml"}, folder / "run")
    (folder / "run" / "run.toml").write_bytes(data)
    opened = RunFolder(folder / "run")
    settings, _ = opened.read_settings(), opened.read_provenance()
    codecs = opened.read_codecs(settings)
    return settings.task.name, settings.preset, len(codecs)


def _read_ledger(data: bytes, folder: Path) -> object:
    """A ledger with these lines, whose chain of hashes is right: whoever writes a ledger can compute it."""
    before, lines = "", []
    for text in data.split(b"\n"):
        try:
            line = dict(json.loads(text))
            before = line["chain"] = chain_hash(before, line)
            lines.append(json.dumps(line).encode())
        except (ValueError, TypeError, RecursionError):
            lines.append(text)
    run = folder / "runs" / "one"
    run.mkdir(parents=True, exist_ok=True)
    (run / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (run / "ledger.head").write_text(f"{len(lines)} {before}\n")
    return _use_ledger(run)


def _read_raw_ledger(data: bytes, folder: Path) -> object:
    first, _, rest = data.partition(b"\n")
    run = folder / "runs" / "one"
    run.mkdir(parents=True, exist_ok=True)
    (run / "ledger.head").write_bytes(first)
    (run / "ledger.jsonl").write_bytes(rest)
    return _use_ledger(run)


def _use_ledger(run: Path) -> object:
    lines = Ledger(run / "ledger.jsonl").read()
    opened = RunFolder(run)
    found = read_ledgers(run)
    certificate = opened.certificate()
    return _bucket(len(lines)), _bucket(found.num_candidates), opened.num_test, len(certificate.files)


def _read_lines(name: str, use: Callable[[RunFolder], object]) -> Callable[[bytes, Path], object]:
    def read(data: bytes, folder: Path) -> object:
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return use(RunFolder(folder / "run"))

    return read


def _use_metrics(folder: RunFolder) -> object:
    return _bucket(len(folder.read_metrics())), last_metrics(folder.path)["step"] == 0


def _use_baseline(folder: RunFolder) -> object:
    found = folder.read_baseline()
    return found is not None and (len(found.sentence), found.is_beaten)


def _read_sealed(data: bytes, _folder: Path) -> object:
    return _bucket(len(unseal(data)))


def _read_sealed_lines(data: bytes, folder: Path) -> object:
    import zlib

    from regard.data.formats.files import SEALED_HEADER

    return _read_sealed(SEALED_HEADER + zlib.compress(data), folder)


def _read_codec(name: str) -> Callable[[bytes, Path], object]:
    kinds = {kind.__name__: kind for task in TASKS for kind in task.codec_types.values()}

    def read(data: bytes, folder: Path) -> object:
        (folder / "one.json").write_bytes(data)
        codec = read_codecs(folder, {"one": kinds[name]})["one"]
        ids = codec.encode(_VALUES.get(name, []))
        return len(ids), len(ids[0]) if ids else 0, len(codec.to_json()) > 2

    return read


def _read_zip(data: bytes, folder: Path) -> object:
    """A workbook whose sheet is the input."""
    path = _written(files.workbook(data), folder, "table.xlsx")
    return _read_table(path)


def _read_npz(data: bytes, folder: Path) -> object:
    table = open_episodes(_written(data, folder, "episodes.npz"), skip_bad=True)
    return _take(table)


def _read_npy_header(data: bytes, folder: Path) -> object:
    """Arrays whose header, an expression in the syntax of Python, is the input."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("observations", "actions", "rewards", "terminations"):
            archive.writestr(f"{name}.npy", files.as_npy(data, bytes(64)))
    return _read_npz(file.getvalue(), folder)


def _read_image(path: Path) -> object:
    return read_image(path, ImageConfig(size=4, patch_size=2)).shape


def _read_data_uri(data: bytes, _folder: Path) -> object:
    return read_image(
        "data:image/" + data.removeprefix(b"data:image/").decode("latin-1"), ImageConfig(size=4, patch_size=2)
    ).shape


def _ledger_lines() -> list[bytes]:
    lines = [
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "valid", "event": "held out", "candidate": "",
         "scores": {}, "rows": 10, "hash": "ab"},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "test", "event": "sealed", "candidate": "",
         "scores": {}, "rows": 10, "hash": "cd"},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "valid", "event": "training", "candidate": "step 2",
         "scores": {"loss": 0.7}},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "valid", "event": "report", "candidate": "step 2",
         "scores": {"accuracy": {"value": 0.7, "interval": [0.6, 0.8], "count": 10, "signature": "s"}},
         "headline": "accuracy", "rows": 10},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "valid", "event": "replaced", "candidate": "",
         "scores": {}, "keys": ["a"], "unreleased": 1},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "test", "event": "replaced", "candidate": "",
         "scores": {}, "openings": 1, "evaluations": 2},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "test", "event": "opened", "candidate": "x",
         "scores": {}, "reason": "final"},
        {"version": 2, "time": "2026-01-01T00:00:00Z", "set": "file", "event": "evaluation", "candidate": "x",
         "scores": {"accuracy": {"value": 0.5, "interval": None}}, "hash": "ef", "name": "f.tsv", "rows": 10},
    ]  # fmt: skip
    texts = [json.dumps(line).encode() for line in lines]
    return [b"\n".join(texts), b"\n".join(texts[:4]), texts[0], b""]


def _chained_ledger() -> bytes:
    """A valid ledger after its head."""
    before, lines = "", []
    for text in _ledger_lines()[0].split(b"\n"):
        line = json.loads(text)
        before = line["chain"] = chain_hash(before, line)
        lines.append(json.dumps(line).encode() + b"\n")
    return f"{len(lines)} {before}\n".encode() + b"".join(lines)


_WEIGHTS = {
    **dict.fromkeys(("prompts", "graphs", "episodes in arrays", "compressed text", "sealed rows", "checkpoints"), 40),
    **dict.fromkeys(("lines of sealed rows", "headers of checkpoints", "COCO", "formulas", "data URIs", "images"), 30),
    **dict.fromkeys(("TSV", "CSV", "JSON lines", "text of any kind", "questions in a table"), 3),
    **dict.fromkeys(("conversations in a table", "chat templates", "sheets of Excel", "Excel", "ledgers"), 5),
    **dict.fromkeys(("CoNLL", "series", "series, resampled", "tables of images", "conversations", "trees"), 8),
    **dict.fromkeys(("GGUF", "llama2.c", "vocabularies of llama2.c", "tokenizer.json", "Parquet", "run.toml"), 5),
}
"""Weights by name, measured; a folder of a model or a run has 3, other readers 20."""


def all_readers() -> Iterator[FuzzedReader]:
    """Every reader, in the order of the report."""
    for reader in _readers():
        is_folder = reader.name.startswith(("Hugging Face", "a run with", "headers of safetensors", "peft"))
        yield replace(reader, weight=_WEIGHTS.get(reader.name, 3 if is_folder else 20))


def _readers() -> Iterator[FuzzedReader]:

    def text(name: str, seeds: Sequence[bytes], read: Callable[[bytes, Path], object], **more: Any) -> FuzzedReader:
        return FuzzedReader(name, lambda: seeds, read, **more)

    yield text("TSV", [_TABLE, b"one\ttwo\n"], _file("t.tsv", _read_table))
    yield text("CSV", [_CSV, _CSV.replace(b",", b";"), b"a\n1\n", "ä,ö\nü,ß\n".encode("cp1252")],
               _file("t.csv", _read_table))  # fmt: skip
    yield text("JSON lines", [_LINES, _NESTED, _TAGGED], _file("t.jsonl", _read_table))
    yield text("records", [_LINES, _NESTED], _file("t.jsonl", _read_records))
    yield text("CoNLL", [_CONLL], _file("t.conll", _read_tagged))
    yield text("CoNLL-U", [_CONLLU], _file("t.conllu", _read_tagged))
    yield text("tagged JSON lines", [_TAGGED], _file("t.jsonl", _read_tagged))
    yield text("SQuAD", [_SQUAD, _QUESTIONS], _file("t.json", _read_questions))
    yield text("questions in a table", [b"question,context,answer\nWho?,Ada sang,Ada\n"],
               _file("t.csv", _read_questions))  # fmt: skip
    yield text("SemEval XML", [_SEMEVAL], _file("t.xml", lambda path: _take(open_table(
        path, roles=("text", "aspect", "label"), skip_bad=True))))  # fmt: skip
    yield text("FASTA", [_WEIGHTSA], _file("t.fasta", lambda path: _take(open_table(
        path, roles=("sequence",), columns=["sequence"], skip_bad=True))))  # fmt: skip
    yield text("trees", [_TREES], _file("t.mrg", lambda path: _take(tree_table(path, skip_bad=True))),
               words=(b"(NP", b"(-NONE- *)", b"-LRB-", b"(", b")"))  # fmt: skip
    yield text("plain text", [b"one line\nanother\n\na third\n", "schön\n".encode("utf-16")],
               _file("t.txt", _read_text))  # fmt: skip
    yield text("text of any kind", [_TABLE, _CONLL, _TREES, _LINES], _file("t.txt", _read_table))
    yield text("series", [b"date,value,other\n" + _SERIES, _SERIES, _STORE_SERIES], _file("t.csv", _read_series),
               words=(b"2024-05-31T12:00", b"1.234,5", b"1,234.5", b"0001-01-01", b"9999-12-31", b"1e300"))  # fmt: skip
    yield text("series, resampled", [b"date,value,other\n" + _SERIES], _file("t.csv", _read_resampled),
               words=(b"2024-05-31T12:00", b"0001-01-01", b"9999-12-31"))  # fmt: skip
    yield text("events", [_EVENTS, _DATED], _file("t.csv", _read_events), words=(b"9999-12-31", b"1e300"))
    yield text("episodes", [_EPISODES], _file("t.jsonl", lambda path: _take(open_episodes(path, skip_bad=True))))
    yield FuzzedReader("episodes in arrays", lambda: [files.episode_arrays()], _read_npz, is_text=False)
    yield text("headers of arrays", [b"{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }\n"],
               _read_npy_header, words=(b"'|O'", b"(2**40,)", b"__import__('os')", b"<U1000000000", b"object"))  # fmt: skip
    yield text("graphs", _GRAPHS, _read_graph, words=(b"c1ccccc1", b"[Na+]", b"%99", b"@TH1", b'"directed"'))
    yield text("COCO", [_COCO], _file("t.json", _read_coco))
    yield text("tables of images", _IMAGE_TABLE, lambda data, folder: _read_image_table(
        data, folder, ".csv", are_captions=False))  # fmt: skip
    yield text("captions", [*_CAPTIONS, _COCO.replace(b"9.png", b"a.png")], lambda data, folder: _read_image_table(
        data, folder, {b"{": ".jsonl"}.get(data[:1], ".csv"), are_captions=True))  # fmt: skip
    yield text("conversations", _CHATS, _file("t.jsonl", _read_chats))
    yield text("conversations in a table", _CHATS[2:], _file("t.csv", _read_chats))
    yield text("prompts", [b'[{"role": "user", "content": "Hi"}]', b"Hi"], _read_prompt)
    yield text("preferences", _PREFERENCES, _file("t.jsonl", _read_preferences))
    yield FuzzedReader("compressed text", lambda: [data for _, data in files.compressed(_TABLE)], _read_compressed,
                       is_text=False)  # fmt: skip
    yield FuzzedReader("Excel", lambda: [files.workbook()], _file("t.xlsx", _read_table), is_text=False)
    yield FuzzedReader("sheets of Excel", lambda: [files.sheet_xml()], _read_zip,
                       words=(b'r="XFD1048576"', b'<mergeCell ref="A1:XFD1048576"/>', b't="s"', b't="d"', b"<f>A1</f>"))  # fmt: skip
    yield FuzzedReader("Parquet", lambda: [files.parquet()], _file("t.parquet", _read_table), is_text=False)
    yield FuzzedReader("images", files.images, _file("a.png", _read_image), is_text=False)
    yield FuzzedReader("data URIs", lambda: [b"data:image/png;base64," + __import__("base64").b64encode(each)
                       for each in files.images()], _read_data_uri)  # fmt: skip
    yield text("settings", [_SETTINGS], _file("t.toml", _read_toml))
    yield FuzzedReader("search spaces", lambda: [_SPACE], _file("t.toml", _read_space))
    yield text("chat templates", [files.TEMPLATE.encode()], _read_template, words=(
        b"{% for i in range(99999) %}", b"{% endfor %}", b"{{ ''.__class__.__mro__ }}", b"{% set x = 'a' * 9999 %}",
        b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", b"|join", b"|list", b"|tojson", b"|attr('__class__')",
        b"{% include 'x' %}", b"{% import 'x' as y %}", b"{{ namespace.__init__.__globals__ }}", b"|replace('a', 'aaaa')",
        b"{{ cycler.__init__ }}", b"{{ 'a'.ljust(99999999) }}", b"{{ '%99999999d' % 1 }}", b"{{ 2 ** 99 }}",
        b"{{ strftime_now('%Y') }}", b"|format", b"|center(99999999)", b"|indent(9999999)", b"|batch(99999999)"))  # fmt: skip
    yield text("formulas", _FORMULAS, _read_formula, words=(b"->", b"<->", b"&", b"|", b"!", b"[2*a + b >= 1]"))
    yield FuzzedReader("tokenizer.json", lambda: [files.tokenizer().to_json().encode()], _file("t.json", _read_tokenizer), words=(b'"type":"Split"', b'{"Regex":"(a+)+$"}', b'"ByteLevel"', b'"Unigram"'))  # fmt: skip
    yield FuzzedReader("checkpoints", lambda: [files.run_files()["model.safetensors"]],
                       _file("m.safetensors", _read_checkpoint), is_text=False)  # fmt: skip
    yield FuzzedReader("headers of checkpoints", lambda: [files.split_safetensors(
        files.run_files()["model.safetensors"])[0]], _with_header(_file("m.safetensors", _read_checkpoint),
        lambda: files.run_files()["model.safetensors"]))  # fmt: skip
    for name in ("config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json",
                 "special_tokens_map.json", "generation_config.json"):  # fmt: skip
        yield FuzzedReader(f"Hugging Face {name}", lambda name=name: [files.exported("hf")[name]],
                           _of_model("hf", name), is_text=name.endswith("json"),
                           words=(b'"model_type"', b'"BertModel"', b'"rope_scaling"', b'"quantization_config"'))  # fmt: skip
    yield FuzzedReader("Hugging Face index", lambda: [files.as_json({"weight_map": dict.fromkeys(
        json.loads(files.split_safetensors(files.exported("hf")["model.safetensors"])[0]).keys() - {"__metadata__"},
        "model.safetensors")})], _read_index)  # fmt: skip
    yield FuzzedReader("headers of safetensors", lambda: [files.split_safetensors(
        files.exported("hf")["model.safetensors"])[0]], _with_header(_of_model("hf", "model.safetensors"),
        lambda: files.exported("hf")["model.safetensors"]))  # fmt: skip
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        yield FuzzedReader(f"peft {name}", lambda name=name: [files.exported("peft")[name]], _of_model("peft", name),
                           is_text=name.endswith("json"))  # fmt: skip
    yield FuzzedReader("GGUF", lambda: [files.exported("gguf")["model.gguf"]], _file("m.gguf", _read_gguf),
                       is_text=False, words=(b"llama", b"qwen2", b"bert", b"general.architecture"))  # fmt: skip
    yield FuzzedReader("llama2.c", lambda: [files.llama2c()[0]], _read_llama2c, is_text=False)
    yield FuzzedReader("vocabularies of llama2.c", lambda: [files.llama2c()[1]], _read_vocabulary, is_text=False)  # fmt: skip
    yield FuzzedReader("run.toml", lambda: [files.run_files()["run.toml"]], _read_settings_of_run)
    for name in ("run.toml", "codecs/text.json", "model.safetensors", "chat_template.jinja"):
        yield FuzzedReader(f"a run with {name}", lambda name=name: [files.run_files()[name]], _of_run(name),
                           is_text=not name.endswith("safetensors"))  # fmt: skip
    yield text("ledgers", _ledger_lines(), _read_ledger)
    yield text("ledgers with any chain", [_chained_ledger()], _read_raw_ledger)
    yield text("metrics", [b'{"step": 10, "loss": 0.7, "seconds": 1.5}\n{"step": 20, "loss": 0.6}\n'],
               _read_lines("metrics.jsonl", _use_metrics))  # fmt: skip
    yield text("held-out rows", [b'["a text", "a label"]\n["b", "c"]\n'],
               _read_lines("held_out/valid.jsonl", lambda folder: _bucket(len(folder.read_held_out("valid")))))  # fmt: skip
    yield FuzzedReader("baseline.json", lambda: [files.baseline()], _read_lines("baseline.json", _use_baseline))
    yield FuzzedReader("sealed rows", lambda: [seal([("a text", "a label")] * 3)], _read_sealed, is_text=False)
    yield text("lines of sealed rows", [b'["a text", "a label"]\n["b", "c"]\n'], _read_sealed_lines)
    for name, content in _CODECS.items():
        yield text(name, [content], _read_codec(name))
