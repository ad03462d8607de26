"""Benchmarks of question generation."""

from s2sft_fairseq.corpora.line_aligned import read_line_aligned, xqg
from s2sft_fairseq.corpora.squad import read_squad
from s2sft_fairseq.recipes.generation import Generation
from s2sft_fairseq.recipes.recipe import Benchmark
from s2sft_fairseq.recipes.settings import BySource, Setting, Settings


def _choose_references(settings: Settings) -> None:
    """Choose the references: SQuAD's own questions, with every punctuation mark as a word, or those of Du et al."""
    scoring = f"--fix-tokenization none --normalise-references --reference-variant squad-raw-{settings.split}"
    if settings.set == "tgt-test":
        scoring = "--reference-variant nqg-tgt-test"
    settings.take({"UniLM's evaluation": {"evaluation": f"--task qg {scoring}"}})


def _score_language(settings: Settings) -> None:
    if settings.lang == "en":
        settings.take({"as SQuAD": {"evaluation": "--task qg --fix-tokenization none --normalise-references"}})


SETTINGS: BySource = {
    "s2s-ft, Table 8": {
        "max_source": 384,
        "max_target": 32,
        "decoding": "--beam 8 --length-penalty gnmt --lenpen 1.3 --min-len 5",
    },
    "long passages are cut at the end; the answer after them is kept": {
        "separator": " [SEP] ",
        "layout": "--source-truncation right,right",
    },
}

QUESTIONS = {
    "squad_qg": Benchmark(
        about="SQuAD question generation: from a passage and an answer to the question.",
        raw="DIR/{train-v1.1.json,dev-v1.1.json} (https://rajpurkar.github.io/SQuAD-explorer) and "
        "DIR/doclist-test.txt, the 44 articles that Du et al. (2017) test on (https://github.com/xinyadu/nqg, data/). "
        "For --set tgt-test their tokenized questions too, DIR/tgt-test.txt (data/processed/).",
        read=lambda options, malformed: read_squad(options.raw, malformed, reversed_split=options.split == "reversed"),
        settings=SETTINGS,
        recipe=Generation,
        notes="References: --set test has SQuAD's questions, --set tgt-test those of Du et al., the other published "
        "comparison. For --set test every punctuation mark is a word, here and in the hypotheses, as in UniLM. The "
        "questions are the same: what was generated for one set is scored as the other by --hyp RUN/test.out --set "
        "tgt-test.",
        options={
            "split": Setting(
                "official",
                "official: tested on the 44 articles of doclist-test.txt (Du et al., 2017); reversed: tested on the "
                "development file (Zhao et al., 2018)",
                choices=("official", "reversed"),
            )
        },
        depends=_choose_references,
    ),
    "xqg": Benchmark(
        about="XQG (WebQA-zh): Chinese question generation, from a passage and an answer.",
        raw="DIR/{train,dev,test}.{e,a,q}.{en,zh}.lc (https://github.com/CZWin32768/XNLG, xqg.tar.gz).",
        read=lambda options, malformed: read_line_aligned(options.raw, xqg(options.lang), malformed),
        settings={**SETTINGS, "XNLG's evaluation": {"evaluation": "--task zh"}},
        recipe=Generation,
        notes="Its encoder is XLM-R.",
        options={"lang": Setting("zh", "of the texts", choices=("en", "zh"))},
        depends=_score_language,
    ),
}
