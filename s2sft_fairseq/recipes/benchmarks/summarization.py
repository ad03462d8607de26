"""Benchmarks of summarization and headline generation."""

from argparse import Namespace
from pathlib import Path

from s2sft_fairseq.corpora.line_aligned import (
    XGIGA_LANGUAGES,
    draw_small,
    read_gigaword,
    read_line_aligned,
    wikilingua,
    xgiga,
    xgiga_zero_shot,
)
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.summarization import read_stories, read_xsum
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.generation import Generation
from s2sft_fairseq.recipes.recipe import Benchmark, Splits, of_folder
from s2sft_fairseq.recipes.settings import Setting, Settings


def _truncate_summaries(settings: Settings) -> None:
    if settings.preset and not settings.preset.startswith("unilmv2/"):
        settings.take({"ERNIE-GEN's evaluation": {"evaluation": f"{settings.evaluation} --truncate 100"}})


def _read_stories(options: Namespace, malformed: Malformed) -> Splits:
    splits = read_stories(options.raw, malformed)
    if options.size != "10k":
        return splits
    return {**splits, "train": draw_small(splits["train"], malformed, options.seed)}


def _fewer_headlines(settings: Settings) -> None:
    if settings.size == "10k":
        settings.take({"ERNIE-GEN, configs/base/gigaword-10k_conf": {"lr": "1.25e-5", "epochs": 30}})


def _read_xgiga(options: Namespace, malformed: Malformed) -> Splits:
    is_zero_shot = options.train_lang not in (None, options.lang)
    layouts = xgiga_zero_shot(options.lang, options.train_lang) if is_zero_shot else xgiga(options.lang)
    return read_line_aligned(options.raw, layouts, malformed)


def _score_language(settings: Settings) -> None:
    if settings.train_lang not in (None, settings.lang) and settings.method != "deltalm":
        raise UserError(f"--train-lang needs --method deltalm, but --method is {settings.method}")
    tasks = {"fr": "--task fr", "zh": "--task zh --metrics rouge", "en": "--task rouge --lowercase"}
    settings.take({"XNLG's evaluation": {"evaluation": tasks[settings.lang]}})


class XGiga(Generation):
    """Recipe of XGiga. With --train-lang it is zero-shot.

    DeltaLM then trains on pairs of one language, and on plain text of several.
    """

    def is_zero_shot(self) -> bool:
        """Return whether the language of the pairs is not that of the test set."""
        return self.settings.train_lang not in (None, self.settings.lang)

    def text_languages(self) -> list[str]:
        """Return the languages of plain text."""
        return self.settings.text_langs.split(",")

    def symbols(self) -> list[str]:
        """Return all languages without duplicates."""
        return list(dict.fromkeys([self.settings.train_lang, self.settings.lang, *self.text_languages()]))

    def kept(self) -> list[str]:
        """Return the tokens that the encoder needs, with language tokens and sentinels if it is zero-shot."""
        languages = [f"__{name}__" for name in self.symbols()] if self.is_zero_shot() else []
        return [*super().kept(), *languages, *(f"<extra_id_{number}>" for number in range(30 if languages else 0))]

    def conversion(self) -> list[str]:
        """Return the options of ``s2sft convert``, which adds language tokens and sentinels if it is zero-shot."""
        own = options(add_language_tokens=",".join(self.symbols()), sentinels=100) if self.is_zero_shot() else []
        return [*own, *super().conversion()]

    def languages(self) -> list[str]:
        """Return DeltaLM's options of several languages."""
        if not self.is_zero_shot():
            return []
        s = self.settings
        words = options(lang_pairs=f"src-tgt:{s.train_lang}", text_languages=s.text_langs)
        return [*words, *options(language_token="__{}__", tokens_per_sample=s.max_source)]

    def target_language(self, direction: str) -> str:
        """Return the language to generate if it is zero-shot, else ""."""
        return self.settings.lang if self.is_zero_shot() else ""

    def binarize(self, made: Path) -> None:
        """Binarize the pairs, and the plain text if it is zero-shot."""
        super().binarize(made)
        if self.is_zero_shot():
            self._binarize_articles(made)

    def _binarize_articles(self, made: Path) -> None:
        """Binarize the articles of each language as plain text with one document per article."""
        texts = {name: self.corpus / f"{name}.txt" for name in self.text_languages()}
        for name, path in texts.items():
            articles = self.corpus / f"text-{name}.src"
            if not articles.is_file():
                lacking = f"{self.settings.raw} lacks train.x.{name} or train.y.{name}"
                raise UserError(f"--text-langs is {self.settings.text_langs}, but {lacking}")
            path.write_bytes(articles.read_bytes().replace(b"\n", b"\n\n"))
        self.tokenize(self.tokens / "text", list(texts.values()), "")
        for name, path in texts.items():
            self.preprocess(made / name, only_source=True, trainpref=self.tokens / "text" / path.name)


SUMMARIZATION = {
    "cnn_dailymail": Benchmark(
        about="CNN/DailyMail: from a news article to its highlights.",
        raw="DIR/{cnn,dailymail}/stories/*.story (https://cs.nyu.edu/~kcho/DMQA) and DIR/all_{train,val,test}.txt "
        "(https://github.com/abisee/cnn-dailymail, url_lists). 114 stories have no article: --skip-malformed.",
        read=_read_stories,
        settings={
            "s2s-ft, Table 8; repeated trigrams are blocked, as the program's instructions say": {
                "max_source": 608,
                "max_target": 160,
                "decoding": "--beam 5 --length-penalty gnmt --lenpen 0.9 --min-len 48 --no-repeat-ngram-size 3 "
                "--no-repeat-ngram-ignore .",
            },
            "s2s-ft's program, whose instructions say 0.7 to 0.8; the paper's range ends at 0.7": {
                "target_mask_prob": "0.7"
            },
            "the token between highlights": {"added_token": "[X_SEP]"},
            "s2s-ft's evaluation": {"evaluation": "--task cnndm --ref-separator [X_SEP] --lead 3-sentences"},
        },
        recipe=Generation,
        notes="ERNIE-GEN's evaluation keeps 100 words of a summary, that of s2s-ft 160.",
        options={
            "size": Setting(
                None, "10k: 10,000 random pairs to train on, as in ERNIE-GEN's Tables 7 and 8", choices=("full", "10k")
            )
        },
        reader_options={"seed": Setting(1, "of that draw", least=0)},
        depends=_truncate_summaries,
    ),
    "gigaword": Benchmark(
        about="Gigaword headlines: from the first sentence of a news article to its headline.",
        raw="in DIR sumdata (train/train.article.txt ..., https://github.com/harvardnlp/sent-summary), UniLM's "
        "org_data (train.src.txt ..., https://github.com/microsoft/unilm, unilm-v1) or {train,valid,test}.{src,tgt}; "
        "the news are the LDC's.",
        read=lambda options, malformed: read_gigaword(options.raw, options.size, options.seed, malformed),
        settings={
            "ERNIE-GEN, configs/base/gigaword_conf": {
                "max_source": 192,
                "max_target": 64,
                "decoding": "--beam 5 --length-penalty gnmt --lenpen 0.6 --max-len-b 32",
            },
            "ERNIE-GEN, Table 1 (base)": {"lr": "3e-5", "epochs": 10, "batch": 128},
            "a tenth of 10 epochs": {"warmup": 30000},
            "UniLM's evaluation": {"evaluation": "--task gigaword --lead 8-words"},
        },
        recipe=Generation,
        notes="Trained as in s2s-ft, without ERNIE-GEN's noise; --preset base/gigaword is ERNIE-GEN as a whole.",
        options={
            "size": Setting(
                "full",
                "10k: UniLM's train.src.10k if DIR has it, else 10,000 random pairs",
                choices=("full", "10k"),
            )
        },
        reader_options={"seed": Setting(1, "of that draw", least=0)},
        depends=_fewer_headlines,
    ),
    "wikilingua": Benchmark(
        about="WikiLingua: from an article in Spanish, Russian, Turkish or Vietnamese to an English summary.",
        raw="DIR/{es,ru,tr,vi}_en/{train,val,test}.{src,tgt} (https://github.com/esdurmus/Wikilingua, as GEM v1 split "
        "it: GEM_data_crosslingual).",
        read=lambda options, malformed: read_line_aligned(options.raw, wikilingua(options.lang), malformed),
        settings={
            "DeltaLM, section 3.2, which reports on the validation set": {"method": "deltalm", "set": "dev"},
            "DeltaLM, sections 3.1 and 3.2": {"max_source": 512, "max_target": 80},
            "GEM's evaluation": {"evaluation": "--task wikilingua"},
        },
        recipe=Generation,
        options={"lang": Setting("es", "of the articles", choices=("es", "ru", "tr", "vi"))},
        deltalm={},
    ),
    "xgiga": Benchmark(
        about="XGiga (Gigaword-fr, Gigaword-zh): headlines in French or Chinese.",
        raw="DIR/{train,dev,test}.{x,y}.{en,fr,zh} (https://github.com/CZWin32768/XNLG, xgiga.tar.gz).",
        read=_read_xgiga,
        settings={
            "s2s-ft, Table 8, which has French; the same for Chinese": {
                "max_source": 96,
                "max_target": 48,
                "decoding": "--beam 5 --length-penalty gnmt --lenpen 0.9 --min-len 1",
            }
        },
        recipe=XGiga,
        notes="Its encoder is XLM-R. Zero-shot: DeltaLM, section 3.3, with the articles of all languages, without "
        "their headlines, as its plain text.",
        options={
            "lang": Setting("fr", "of the test set", choices=XGIGA_LANGUAGES),
            "train_lang": Setting(
                None,
                "with --method deltalm: language of the training pairs, en in the paper (default: that of --lang)",
                choices=XGIGA_LANGUAGES,
            ),
        },
        recipe_options={
            "text_langs": Setting(
                "en,fr,zh", "... and of its plain text", "LIST", choices=XGIGA_LANGUAGES, is_list=True
            )
        },
        depends=_score_language,
    ),
    "xsum": Benchmark(
        about="XSum: from a BBC article to its one-sentence summary.",
        raw="DIR/bbc-summary-data/*.summary (or xsum-extracts-from-downloads) and "
        "DIR/XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json (https://github.com/EdinburghNLP/XSum).",
        read=of_folder(read_xsum),
        settings={
            "s2s-ft, Table 8": {
                "max_source": 720,
                "max_target": 48,
                "decoding": "--beam 8 --length-penalty gnmt --lenpen 0.7 --min-len 1",
            },
            "s2s-ft's evaluation": {"evaluation": "--task xsum --lead 1-sentences"},
        },
        recipe=Generation,
    ),
}
