"""Every reader of files: a function that writes small valid files, and one that reads them as the commands do."""

import gzip
import importlib.util
import json
import pickle
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import raw_corpora
import torch
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from gguf_files import write_llama
from hugging_face import their_model
from official_deltalm import write_official
from safetensors.torch import save_file
from tiny import TINY_SIZES, tiny_dictionary, tiny_model
from tokenizer_folders import WRITERS

from s2sft_fairseq import plugin  # noqa: F401  registers what a configuration can name
from s2sft_fairseq.checkpoints.model_folder import checkpoint_file, write_model
from s2sft_fairseq.checkpoints.safe_loading import load_pickle
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.checksums import check_files, write_checksums
from s2sft_fairseq.corpora import data_to_text, dialogue, glue, iwslt14, line_aligned, squad, summarization
from s2sft_fairseq.corpora.pairs import USUAL, read_pairs
from s2sft_fairseq.corpora.reading import Example, Malformed
from s2sft_fairseq.data.binarized_text import find_languages, load_dictionary, load_split
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.labels import read_class_labels, read_classes, read_number_labels
from s2sft_fairseq.data.parquet import open_parquet
from s2sft_fairseq.data.text_files import check_texts
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import read_answers, read_examples, read_table
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.inference.shards import Manifest, Shard
from s2sft_fairseq.models.convert import convert_deltalm, convert_encoder
from s2sft_fairseq.models.deltalm_start import open_start
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.plots.training import read_run
from s2sft_fairseq.question_answering.questions import label_array, read_questions
from s2sft_fairseq.recipes.settings import TRAINING, read_toml, read_values
from s2sft_fairseq.spans.vocabulary import load_spans
from s2sft_fairseq.tasks.unilm_seq2seq import UnilmSeq2SeqConfig, UnilmSeq2SeqTask
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.gguf_tokenizer import write_gguf_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import json_columns, json_mistakes


class Reader(NamedTuple):
    """A reader of the files of a folder."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _convert(folder: Path) -> None:
    """Read an encoder as ``s2sft convert`` does."""
    convert_encoder(open_source(folder))


def _read_gguf(folder: Path) -> None:
    """Read a language model in a GGUF file as ``s2sft convert`` does."""
    convert_encoder(open_source(folder))
    with TemporaryDirectory() as other:
        write_gguf_tokenizer(folder / "a.gguf", Path(other))


def _read_deltalm(folder: Path) -> None:
    """Read DeltaLM as ``s2sft convert`` does, and as ``s2sft train --pretrained`` does."""
    dictionary = FairseqDictionary.load(str(folder / "dict.txt"))
    convert_deltalm(open_source(folder), dictionary.symbols)
    open_start(str(folder / "deltalm-base.pt"), dictionary)


def _write_encoder(name: str, folder: Path) -> None:
    """Write weights and configuration, as another program would, without a tokenizer."""
    their_model(name).save_pretrained(folder)


def _tensors() -> dict[str, torch.Tensor]:
    return {"bert.embeddings.word_embeddings.weight": torch.zeros(4, 2), "bert.pooler.dense.bias": torch.ones(2)}


def _write_bin(folder: Path) -> None:
    torch.save(_tensors(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text('{"model_type": "bert"}')


def _write_shards(folder: Path) -> None:
    shards = [{name: value} for name, value in _tensors().items()]
    for number, shard in enumerate(shards):
        save_file(shard, folder / f"model-{number}.safetensors")
    names = {name: f"model-{number}.safetensors" for number, shard in enumerate(shards) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text('{"model_type": "bert"}')


def _write_paddle(folder: Path) -> None:
    state = {"word_emb.weight": torch.zeros(2, 3).numpy(), "ln.bias": torch.zeros(3).half().numpy(), "names": {"a": 1}}
    (folder / "ernie.pdparams").write_bytes(pickle.dumps(state, protocol=2))


def _state() -> dict[str, Any]:
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {"best": None}, "num_updates": 3}
    task = {"_name": "unilm_seq2seq", "data": "", "source_lang": "src"}
    return {
        "args": None,
        "cfg": {"model": {"_name": "unilm", **TINY_SIZES}, "task": task, "criterion": {"_name": "cross_entropy"}},
        "model": tiny_model().state_dict(),
        "optimizer_history": [history],
        "task_state": {"layout": {"finetune_method": "causal"}},
        "extra_state": {"train_iterator": {"epoch": 1}},
    }


def _load_model(path: Path) -> None:
    """Load a model as ``s2sft generate`` does."""
    options = UnilmSeq2SeqConfig(data="", source_lang="src", target_lang="tgt")
    options.max_source_positions, options.max_target_positions = 32, 16
    load_model_ensemble([str(checkpoint_file(path))], task=UnilmSeq2SeqTask(options, tiny_dictionary()))


def _read_start(folder: Path) -> None:
    """Begin a training from a checkpoint, as ``s2sft train --pretrained`` does."""
    pretrained = str(folder / "checkpoint.pt")
    UnilmModel.build_model(UnilmConfig(pretrained=pretrained), Namespace(source_dictionary=tiny_dictionary()))


def _write_pretrained(folder: Path) -> None:
    torch.save(_state(), folder / "model.pt")
    tiny_dictionary().save(str(folder / "dict.txt"))
    described = {"sizes": TINY_SIZES, "vocab_size": 50, "newly_initialized": [], "layout": {}, "files": ["model.pt"]}
    (folder / "config.json").write_text(json.dumps({**described, "family": "BERT", "model": "unilm"}))


def _read_pretrained(folder: Path) -> None:
    """Begin a training from a converted encoder, as ``s2sft train --pretrained`` does."""
    dictionary = PretrainedDictionary.load(str(folder / "dict.txt"))
    UnilmModel.build_model(UnilmConfig(pretrained=str(folder)), Namespace(source_dictionary=dictionary))


def _use_tokenizer(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    lines = ["The quick brown fox </s> [MASK]  jumps.", "", "\u2028 Zürich \u0000 😀"]
    for line in tokenizer.encode_batch(lines):
        assert all(symbol in tokenizer.dictionary for symbol in line.split())
        tokenizer.decode(line)
    tokenizer.encode_pieces(lines)


def _write_tokenizer(scheme: str, folder: Path) -> None:
    WRITERS[scheme](folder)
    size = {"wordpiece": 85}.get(scheme)
    if size is not None:
        (folder / "added_tokens.json").write_text(json.dumps({"[ONE]": size, "[TWO]": size + 1}))
    settings = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True, "add_prefix_space": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text('{"unk_token": "[UNK]"}')


SPANS = (
    '{"format": "s2sft span vocabulary", "version": 1, "listed": {"bigrams": 2, "trigrams": 1}}\n'
    "a b ##c\t9\tinf\nb a\t7\t2.0000\na a b\t12\t3.5000\ncontinuing\t##c ##d\n"
)
SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "##d"]


def _write(texts: Mapping[str, str], folder: Path) -> None:
    for name, text in texts.items():
        content = text.encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def _corpus(read: Callable[[Path, Malformed], Mapping[str, Iterator[Any]]], folder: Path) -> None:
    """Read the splits of a corpus as it is prepared."""
    malformed = Malformed()
    for examples in read(folder, malformed).values():
        for example in examples:
            if isinstance(example, Example):
                with malformed.record(example.path, example.where):
                    lines = [example.source_line(), *(example.reference_lines() if example.references else ())]
                    [line.encode() for line in lines]
    malformed.raise_any()


PAIRS = {
    "pairs.jsonl": '{"src": "one text", "tgt": "a target"}\n{"src": "two", "refs": ["a", "b"]}\n' * 3,
    "table.tsv": "one text\ta target\ntwo\tb\n" * 3,
    "table.csv": 'article,headline\n"one, text",a target\n"two ""lines\nof text",b\n' * 3,
    "text.src.gz": "one text\ntwo\n" * 3,
    "text.tgt.gz": "a target\nb\n" * 3,
}


def _pairs(folder: Path, malformed: Malformed) -> Mapping[str, Iterator[Example]]:
    files = [["pairs.jsonl"], ["table.tsv"], ["table.csv"], ["text.src.gz", "text.tgt.gz"]]
    return {names[0]: read_pairs([folder / name for name in names], USUAL, malformed) for names in files}


def _read_json_lines(folder: Path) -> None:
    """Read JSON lines as for tokenization, which rejects a file with any mistake."""
    dictionary = PretrainedDictionary.of(SYMBOLS)
    content = (folder / "texts.jsonl").read_bytes()
    lines = content.removesuffix(b"\n").split(b"\n")
    if mistakes := [what for line in lines for what in json_mistakes(line, ("src", "tgt"), dictionary)]:
        raise UserError.of(mistakes, "texts.jsonl")
    for column in json_columns(content, ("src", "tgt")):
        [str(text).encode() for text in column]


def _glue(folder: Path, malformed: Malformed) -> Mapping[str, Iterator[Example]]:
    tasks = {name: glue.read_glue(folder, name, malformed) for name in glue.TASKS}
    return {f"{name} {split}": examples for name, splits in tasks.items() for split, examples in splits.items()}


QUESTION = {"id": "q", "query": 3, "windows": [[0, 4], [2, 4]], "answer": [1, 2], "passage": "a b", "offsets": [[0, 1]]}
EVALUATED = {
    "hyp.txt": "a text\nanother\n",
    "ref.jsonl": '{"refs": ["a text", "b"]}\n{"tgt": "c"}\n',
    "ref.txt.gz": "a text\nc\n",
    "source.txt": "one\ntwo\n",
    "table.tsv": "index\tprediction\n0\tyes\n1\tno\n",
    "labels.label": "yes\nno\n",
    "answers.json": '{"q1": "a", "q2": ""}',
    "odds.json": '{"q1": 1, "q2": -2.5}',
    "squad.json": json.dumps(
        {"data": [{"paragraphs": [{"qas": [{"id": "q1", "answers": [{"text": "a"}]}, {"id": "q2", "answers": []}]}]}]}
    ),
}


def _read_evaluated(folder: Path) -> None:
    of = folder.joinpath
    read_examples(of("hyp.txt"), [of("ref.jsonl"), of("ref.txt.gz")], of("source.txt"), Settings())
    read_table(of("table.tsv"), of("labels.label"))
    read_answers(of("answers.json"), of("squad.json"), of("odds.json"))


LABELS = {"labels.txt": "no\nyes\n", "train.label": "yes\nno\n", "numbers.label": "1.5\n0\n"}


def _read_labels(folder: Path) -> None:
    read_class_labels(folder / "train.label", read_classes(folder / "labels.txt"), 2)
    read_number_labels(folder / "numbers.label", 2)


def _write_binarized(folder: Path) -> None:
    dictionary = tiny_dictionary()
    for side in ("src", "tgt"):
        dictionary.save(str(folder / f"dict.{side}.txt"))
        builder = MMapIndexedDatasetBuilder(str(folder / f"train.src-tgt.{side}.bin"), dtype=np.uint16)
        for length in range(1, 5):
            builder.add_item(torch.arange(4, 4 + length))
        builder.finalize(str(folder / f"train.src-tgt.{side}.idx"))


def _read_binarized(folder: Path) -> None:
    pair = find_languages(folder)
    for side in load_split(folder, "train", *pair, load_dictionary(folder, *pair), None, combine=False):
        [side[number].tolist() for number in range(len(side) if side is not None else 0)]


def _write_checksums(folder: Path) -> None:
    _write({"a.txt": "one\n", "b.txt": "two\n"}, folder)
    write_checksums(folder)


RECIPE_CONFIG = 'seed = 2\nlr = "1e-5"\n# a comment\nlayout = "--source-truncation left"\nepochs = 3\n'
MANIFEST = {"settings": {"--beam": 2}, "shards": {"a.txt": {"input": {"sha256": "0"}, "lines": 1, "sha256": "1"}}}
LOGS = {
    "train.log": '{"epoch": 1, "num_updates": "5", "loss": "2.5", "lr": "1e-05"}\n'
    '[train] {"epoch": 1, "valid_loss": "2.5", "valid_num_updates": "5", "valid_accuracy": "50"}\n',
    "finetune.json": '{"candidates": {"update-5": {"rouge": 12.5}}}',
}


def _read_manifest(folder: Path) -> None:
    Manifest(folder, {"--beam": 2}).missing([Shard(folder / "in.txt", folder / "a.txt")])


def _write_parquet(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": range(8), "src": ["one text"] * 8}), folder / "table.parquet")


def _read_parquet(folder: Path) -> None:
    with open_parquet(folder / "table.parquet", ["src"]) as rows:
        list(rows)


FAMILIES = ("bert", "electra-small-generator", "modernbert", "eurobert-grouped", "ultrabert", "nomic-bert", "gte")
FAMILIES += ("jina", "deberta", "roberta", "ernie-tasks")
CORPORA: dict[str, tuple[Callable[[Path], object], Callable[[Path, Malformed], Any]]] = {
    "squad": (raw_corpora.squad, squad.read_squad),
    "squad2": (raw_corpora.squad_reading, lambda folder, malformed: squad.read_squad_files(folder, "2.0", malformed)),
    "e2e": (raw_corpora.e2e, data_to_text.read_e2e),
    "webnlg": (raw_corpora.webnlg, lambda folder, malformed: data_to_text.read_webnlg(folder, "ru", malformed)),
    "gigaword": (raw_corpora.gigaword, lambda folder, m: line_aligned.read_gigaword(folder, "10k", 1, m)),
    "cnn_dailymail": (raw_corpora.cnn_dailymail, summarization.read_stories),
    "xsum": (raw_corpora.xsum, summarization.read_xsum),
    "coqa": (raw_corpora.coqa, dialogue.read_coqa),
    "persona_chat": (raw_corpora.persona_chat, dialogue.read_persona_chat),
    "iwslt14": (raw_corpora.iwslt14, lambda folder, malformed: iwslt14.read_iwslt14(folder, "de", "en", malformed)),
    "glue": (raw_corpora.glue, _glue),
    "pairs": (partial(_write, PAIRS), _pairs),
}
READERS: dict[str, Reader] = {
    **{f"encoder_{name}": Reader(partial(_write_encoder, name), _convert) for name in FAMILIES},
    **{f"tokenizer_{name}": Reader(partial(_write_tokenizer, name), _use_tokenizer) for name in WRITERS},
    **{f"corpus_{name}": Reader(write, partial(_corpus, read)) for name, (write, read) in CORPORA.items()},
    "bin": Reader(_write_bin, open_source),
    "shards": Reader(_write_shards, open_source),
    "gguf": Reader(lambda folder: write_llama(folder / "a.gguf"), _read_gguf),
    "paddle": Reader(_write_paddle, lambda folder: load_pickle(folder / "ernie.pdparams")),
    "checkpoint": Reader(
        lambda folder: torch.save(_state(), folder / "checkpoint.pt"),
        lambda folder: _load_model(folder / "checkpoint.pt"),
    ),
    "model_folder": Reader(lambda folder: write_model(_state(), folder, {"beam": 4}, {}), _load_model),
    "pretrained": Reader(_write_pretrained, _read_pretrained),
    "start": Reader(lambda folder: torch.save(_state(), folder / "checkpoint.pt"), _read_start),
    "dictionary": Reader(
        lambda folder: tiny_dictionary().save(str(folder / "dict.txt")),
        lambda folder: PretrainedDictionary.load(str(folder / "dict.txt")),
    ),
    "spans": Reader(
        partial(_write, {"spans.txt": SPANS}),
        lambda folder: load_spans(folder / "spans.txt", PretrainedDictionary.of(SYMBOLS)),
    ),
    "texts": Reader(partial(_write, {"a.txt": "one\n\ntwo\n"}), lambda folder: check_texts([[folder / "a.txt"]])),
    "json_lines": Reader(
        partial(_write, {"texts.jsonl": '{"src": "one", "tgt": ["a", "##c"]}\n{"src": "", "tgt": "b"}\n'}),
        _read_json_lines,
    ),
    "questions": Reader(
        partial(_write, {"train.questions.jsonl": f"{json.dumps(QUESTION)}\n" * 2}),
        lambda folder: label_array(read_questions(folder / "train.questions.jsonl", 4)),
    ),
    "labels": Reader(partial(_write, LABELS), _read_labels),
    "deltalm": Reader(write_official, _read_deltalm),
    "binarized": Reader(_write_binarized, _read_binarized),
    "checksums": Reader(_write_checksums, lambda folder: check_files(*sorted(folder.iterdir()))),
    "manifest": Reader(
        partial(_write, {"manifest.json": json.dumps(MANIFEST), "in.txt": "a\n", "a.txt": "b\n"}), _read_manifest
    ),
    "training_log": Reader(partial(_write, LOGS), read_run),
    "recipe_config": Reader(
        partial(_write, {"mine.toml": RECIPE_CONFIG}),
        lambda folder: read_values(
            TRAINING, read_toml(folder / "mine.toml"), f"{folder / 'mine.toml'}: ", is_trusted=False
        ),
    ),
    "evaluated": Reader(partial(_write, EVALUATED), _read_evaluated),
}
if importlib.util.find_spec("pyarrow"):
    READERS["parquet"] = Reader(_write_parquet, _read_parquet)
