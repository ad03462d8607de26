"""The benchmarks that ``s2sft prepare`` knows: what their raw files are called, their options, and who reads them."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora import webnlg
from s2sft_fairseq.corpora.coqa import read_coqa
from s2sft_fairseq.corpora.e2e import read_e2e
from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.glue import TASKS, read_glue
from s2sft_fairseq.corpora.iwslt14 import read_iwslt14
from s2sft_fairseq.corpora.labelled_writing import write_labelled
from s2sft_fairseq.corpora.line_aligned import (
    GIGAWORD,
    GIGAWORD_10K,
    XGIGA_LANGUAGES,
    multi30k,
    read_line_aligned,
    sample,
    wikilingua,
    wmt10,
    xgiga,
    xgiga_zero_shot,
    xqg,
)
from s2sft_fairseq.corpora.malformed import Malformed
from s2sft_fairseq.corpora.persona_chat import read_persona_chat
from s2sft_fairseq.corpora.squad import read_squad
from s2sft_fairseq.corpora.squad_reading import VERSIONS, read_squad_files
from s2sft_fairseq.corpora.squad_windows import WindowMaker, write_windows
from s2sft_fairseq.corpora.stories import read_stories
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.corpora.xsum import read_xsum
from s2sft_fairseq.tokenization.folder import open_tokenizer

Splits = Mapping[str, Iterable[Any]]
Writer = Callable[..., dict[str, Any]]

GIGAWORD_SMALL = 10_000
MULTI30K_LANGUAGES = ("en", "de", "fr", "cs")
WIKILINGUA_LANGUAGES = ("es", "ru", "tr", "vi")
WMT10_LANGUAGES = ("fr", "cs", "de", "fi", "lv", "et", "ro", "hi", "tr", "gu")
XQG_LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Benchmark:
    """How the raw files of a benchmark become text files."""

    about: str
    """Its name and its raw files; DIR is the folder of these."""
    read: Callable[[Namespace, Malformed], Splits]
    """From the options of the command line to the examples of each split."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further options, and what argparse's ``add_argument`` takes for each."""
    writer: Callable[[Namespace], Writer] = lambda options: write_corpus
    """From the options to a function that takes what `write_corpus` takes."""


def _read_gigaword(options: Namespace, malformed: Malformed) -> Splits:
    """All splits, the training set cut down to `GIGAWORD_SMALL` pairs where that is asked for."""
    if options.size == "full":
        return read_line_aligned(options.raw, GIGAWORD, malformed)
    splits = read_line_aligned(options.raw, GIGAWORD_10K, malformed)
    return {**splits, "train": _draw(splits["train"], malformed, options.seed)}


def _draw(examples: Iterable[Example], malformed: Malformed, seed: int) -> Iterator[Example]:
    """Yield `GIGAWORD_SMALL` well-formed examples, and tell if there are fewer."""
    drawn = list(sample(_well_formed(examples, malformed), GIGAWORD_SMALL, seed))
    if len(drawn) < GIGAWORD_SMALL:
        print(
            f"--size 10k takes all {len(drawn):,} training pairs, for there are not {GIGAWORD_SMALL:,}", file=sys.stderr
        )
    yield from drawn


def _well_formed(examples: Iterable[Example], malformed: Malformed) -> Iterator[Example]:
    for example in examples:
        with malformed.record(example.path, example.where):
            example.source_line(), example.reference_lines()
            yield example


def _read_iwslt14(options: Namespace, malformed: Malformed) -> Splits:
    source, target = ("en", "de") if options.from_english else ("de", "en")
    return read_iwslt14(options.raw, source, target, malformed)


def _read_multi30k(options: Namespace, malformed: Malformed) -> Splits:
    return read_line_aligned(options.raw, multi30k(options.source_lang, options.target_lang), malformed)


def _read_wmt10(options: Namespace, malformed: Malformed) -> Splits:
    source, target = ("en", options.lang) if options.from_english else (options.lang, "en")
    return read_line_aligned(options.raw, wmt10(source, target), malformed)


def _read_xgiga(options: Namespace, malformed: Malformed) -> Splits:
    is_zero_shot = options.train_lang not in (None, options.lang)
    layouts = xgiga_zero_shot(options.lang, options.train_lang) if is_zero_shot else xgiga(options.lang)
    return read_line_aligned(options.raw, layouts, malformed)


def _glue_writer(options: Namespace) -> Writer:
    return partial(write_labelled, classes=TASKS[options.task].classes)


def _squad_writer(options: Namespace) -> Writer:
    tokenizer = open_tokenizer(options.tokenizer_dir)
    return partial(
        write_windows, windows=WindowMaker(tokenizer, options.max_positions, options.stride, options.max_query)
    )


BENCHMARKS = {
    "cnn_dailymail": Benchmark(
        "CNN/DailyMail: DIR/{cnn,dailymail}/stories/*.story and DIR/all_{train,val,test}.txt to text files of pairs.",
        lambda options, malformed: read_stories(options.raw, malformed),
    ),
    "coqa": Benchmark(
        "CoQA: DIR/coqa-{train,dev}-v1.0.json to text files of pairs; it is scored on the development set.",
        lambda options, malformed: read_coqa(options.raw, malformed),
    ),
    "e2e": Benchmark(
        "E2E NLG challenge: DIR/{trainset,devset,testset_w_refs}.csv to text files of pairs.",
        lambda options, malformed: read_e2e(options.raw, malformed),
    ),
    "gigaword": Benchmark(
        "Gigaword headlines to text files of pairs. DIR holds sumdata (train/train.article.txt ...), UniLM's org_data "
        "(train.src.txt ...) or {train,valid,test}.{src,tgt}.",
        _read_gigaword,
        {
            "--size": {
                "choices": ("full", "10k"),
                "default": "full",
                "help": "10k: UniLM's train.src.10k where DIR has it, or else as many pairs drawn (default: full)",
            },
            "--seed": {"type": int, "default": 1, "metavar": "N", "help": "seed of that draw (default: 1)"},
        },
    ),
    "glue": Benchmark(
        "GLUE: DIR/{CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI}/*.tsv to text files with labels, a task at a time.",
        lambda options, malformed: read_glue(options.raw, options.task, malformed),
        {"--task": {"choices": TASKS, "required": True, "help": "one of the nine"}},
        _glue_writer,
    ),
    "iwslt14": Benchmark(
        "IWSLT'14: DIR/train.tags.de-en.{de,en} and DIR/IWSLT14.*.xml to text files of pairs.",
        _read_iwslt14,
        {"--from-english": {"action": "store_true", "help": "translate from English; otherwise from German"}},
    ),
    "multi30k": Benchmark(
        "Multi30k, task 1: DIR/{train,val,test_2016_flickr}.{en,de,fr,cs} (data/task1/raw) to text files of pairs.",
        _read_multi30k,
        {
            "--source-lang": {"choices": MULTI30K_LANGUAGES, "default": "en", "help": "(default: en)"},
            "--target-lang": {"choices": MULTI30K_LANGUAGES, "default": "de", "help": "(default: de)"},
        },
    ),
    "persona_chat": Benchmark(
        "Persona-Chat: DIR/{train,valid,test}_self_original.txt to text files of pairs.",
        lambda options, malformed: read_persona_chat(options.raw, malformed),
    ),
    "squad": Benchmark(
        "SQuAD: DIR/{train,dev}-v1.1.json (or v2.0) to windows of question and passage, in symbols of a tokenizer.",
        lambda options, malformed: read_squad_files(options.raw, options.version, malformed),
        {
            "--version": {"choices": VERSIONS, "default": "1.1", "help": "of the raw files (default: 1.1)"},
            "--tokenizer-dir": {
                "type": Path,
                "required": True,
                "metavar": "DIR",
                "help": "the folder of the converted encoder",
            },
            "--max-positions": {
                "type": int,
                "default": 384,
                "metavar": "N",
                "help": "of question and window (default: 384)",
            },
            "--stride": {
                "type": int,
                "default": 128,
                "metavar": "N",
                "help": "tokens from a window to the next (default: 128)",
            },
            "--max-query": {"type": int, "default": 64, "metavar": "N", "help": "tokens of a question (default: 64)"},
        },
        _squad_writer,
    ),
    "squad_qg": Benchmark(
        "SQuAD question generation: DIR/{train-v1.1.json,dev-v1.1.json,doclist-test.txt} to text files of pairs.",
        lambda options, malformed: read_squad(options.raw, malformed, reversed_split=options.split == "reversed"),
        {
            "--split": {
                "choices": ("official", "reversed"),
                "default": "official",
                "help": "official: tested on the 44 articles of doclist-test.txt (Du et al., 2017); reversed: tested "
                "on the development file (Zhao et al., 2018) (default: official)",
            }
        },
    ),
    "webnlg": Benchmark(
        "WebNLG 3.0: DIR/{en,ru}/{train,dev,test} (release_v3.0) to text files of pairs.",
        lambda options, malformed: webnlg.read_webnlg(options.raw, options.lang, malformed),
        {"--lang": {"choices": webnlg.LANGUAGES, "default": "en", "help": "of the texts (default: en)"}},
    ),
    "wikilingua": Benchmark(
        "WikiLingua to English: DIR/LANG_en/{train,val,test}.{src,tgt} (GEM_data_crosslingual) to text files of pairs.",
        lambda options, malformed: read_line_aligned(options.raw, wikilingua(options.lang), malformed),
        {"--lang": {"choices": WIKILINGUA_LANGUAGES, "default": "es", "help": "of the articles (default: es)"}},
    ),
    "wmt10": Benchmark(
        "A pair of WMT-10: DIR/{train,valid,test}.X-Y.{X,Y} to text files of pairs.",
        _read_wmt10,
        {
            "--lang": {
                "choices": WMT10_LANGUAGES,
                "default": "fr",
                "help": "the language beside English (default: fr)",
            },
            "--from-english": {"action": "store_true", "help": "translate from English; otherwise to it"},
        },
    ),
    "xgiga": Benchmark(
        "XGiga, Gigaword headlines in English, French or Chinese: DIR/{train,dev,test}.{x,y}.LANG to text files of "
        "pairs. With --train-lang the pairs to train on are of that language, and text-LANG.src has the articles of "
        "each.",
        _read_xgiga,
        {
            "--lang": {"choices": XGIGA_LANGUAGES, "default": "fr", "help": "(default: fr)"},
            "--train-lang": {
                "choices": XGIGA_LANGUAGES,
                "help": "of training and validation set (default: --lang)",
            },
        },
    ),
    "xqg": Benchmark(
        "XQG, question generation in English or Chinese: DIR/{train,dev,test}.{e,a,q}.LANG.lc to text files of pairs.",
        lambda options, malformed: read_line_aligned(options.raw, xqg(options.lang), malformed),
        {"--lang": {"choices": XQG_LANGUAGES, "default": "zh", "help": "(default: zh)"}},
    ),
    "xsum": Benchmark(
        "XSum: DIR/bbc-summary-data/*.summary and DIR/XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json to text files of pairs.",
        lambda options, malformed: read_xsum(options.raw, malformed),
    ),
}
