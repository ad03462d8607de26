"""Benchmarks of translation."""

from argparse import Namespace
from pathlib import Path
from statistics import mean

from s2sft_fairseq.corpora.iwslt14 import read_iwslt14
from s2sft_fairseq.corpora.line_aligned import multi30k, read_line_aligned, wmt10
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.generation import Generation
from s2sft_fairseq.recipes.recipe import Benchmark, Splits
from s2sft_fairseq.recipes.scores import read_scores
from s2sft_fairseq.recipes.settings import Setting, Settings

MULTI30K_LANGUAGES = ("en", "de", "fr", "cs")
WMT10_LANGUAGES = ("fr", "cs", "de", "fi", "lv", "et", "ro", "hi", "tr", "gu")
SACREBLEU = {"sacreBLEU, case-sensitive": {"evaluation": "--task bleu"}}
FROM_ENGLISH = Setting(False, "translate from English; otherwise to it")


class IWSLT14(Generation):
    """Recipe of IWSLT'14: German to English, or English to German."""

    def reader_options(self) -> list[str]:
        """Return the options of ``s2sft prepare``, with the direction."""
        return [*super().reader_options(), *options(from_english=self.settings.direction == "from-english")]


class WMT10(Generation):
    """Recipe of WMT-10: one model for many directions, each of which is decoded and scored separately."""

    def reader_options(self) -> list[str]:
        """Return the languages, to record them; `prepare_corpus` prepares each direction separately."""
        return options(langs=self.settings.langs)

    def others(self) -> list[str]:
        """Return the languages other than English."""
        return self.settings.langs.split(",")

    def directions(self) -> list[str]:
        """Return the directions to train and score, X-Y."""
        ways = {"to-english": ("{}-en",), "from-english": ("en-{}",), "both": ("{}-en", "en-{}")}
        return [way.format(name) for name in self.others() for way in ways[self.settings.direction]]

    def pairs(self) -> dict[str, tuple[str, str]]:
        """Return the pair of each language with English."""
        return {f"{name}-en": (name, "en") for name in self.others()}

    def kept(self) -> list[str]:
        """Return the tokens that the encoder needs, with language tokens."""
        return [*super().kept(), "__en__", *(f"__{name}__" for name in self.others())]

    def conversion(self) -> list[str]:
        """Return the options of ``s2sft convert``, which adds language tokens."""
        return [*options(add_language_tokens=f"en,{self.settings.langs}"), *super().conversion()]

    def languages(self) -> list[str]:
        """Return DeltaLM's options of several languages."""
        return options(lang_pairs=",".join(self.directions()), language_token="__{}__")

    def target_language(self, direction: str) -> str:
        """Return the language after the hyphen of a direction."""
        return direction.split("-")[1]

    def prepare_corpus(self, made: Path) -> None:
        """Prepare a corpus for each direction. The pairs of X-en train both directions; en-X only keeps test sets."""
        made.mkdir(parents=True)
        for name in self.others():
            self.prepare(made / f"{name}-en", *options(lang=name))
            self.prepare(made / f"en-{name}", *options(lang=name, from_english=True))
            for path in [*(made / f"en-{name}").glob("train.*"), *(made / f"en-{name}").glob("valid.*")]:
                path.unlink()

    def summarize(self) -> None:
        """Write a table with BLEU of each direction, and its means to and from English."""
        name = self.settings.set
        rows = {direction: read_bleu(self.work / direction / f"{name}.json") for direction in self.directions()}
        path = self.work / f"{name}.md"
        path.write_text(table := table_of_means(rows), encoding="utf-8")
        print(f"\n{table}\nwrote {path}")


def read_bleu(path: Path) -> float:
    """Return BLEU from a file of ``s2sft evaluate --task bleu --json``."""
    return read_scores(path)["BLEU"]


def table_of_means(scores: dict[str, float]) -> str:
    """Return a table with a row for each direction, and rows of the means."""
    to_english = [value for direction, value in scores.items() if direction.endswith("-en")]
    from_english = [value for direction, value in scores.items() if direction.startswith("en-")]
    means = {"mean to English": to_english, "mean from English": from_english}
    rows = scores | {name: mean(values) for name, values in means.items() if values}
    return "".join(["| direction | BLEU |\n", "| --- | --- |\n", *(f"| {n} | {v:.2f} |\n" for n, v in rows.items())])


def _read_iwslt14(options: Namespace, malformed: Malformed) -> Splits:
    source, target = ("en", "de") if options.from_english else ("de", "en")
    return read_iwslt14(options.raw, source, target, malformed, moses=options.moses)


def _score_tokens(settings: Settings) -> None:
    if settings.moses:
        tokens = {"evaluation": "--task bleu --bleu-tokenize none"}
        settings.take({"DeltaLM's examples/evaluate_iwslt14.sh: BLEU of tokens in lower case": tokens})


def _read_wmt10(options: Namespace, malformed: Malformed) -> Splits:
    source, target = ("en", options.lang) if options.from_english else (options.lang, "en")
    return read_line_aligned(options.raw, wmt10(source, target), malformed)


def _only_deltalm(settings: Settings) -> None:
    if settings.method != "deltalm":
        raise UserError(f"--method must be deltalm, but is {settings.method}")
    if settings.hyp:
        raise UserError("--hyp cannot be used with several directions; score each with s2sft evaluate")


TRANSLATION = {
    "iwslt14": Benchmark(
        about="IWSLT'14: translation of talks from German to English, with DeltaLM.",
        raw="DIR/train.tags.de-en.{de,en} and DIR/IWSLT14.*.xml: the folder de-en of de-en.tgz (https://wit3.fbk.eu, "
        "2014-01), split as fairseq's prepare-iwslt14.sh does.",
        read=_read_iwslt14,
        settings={
            "DeltaLM's examples/train_iwslt14.sh, of one GPU": {"method": "deltalm"},
            "DeltaLM, section 3.2: the lengths of WMT-10": {"max_source": 256, "max_target": 256, "longest": 255},
            **SACREBLEU,
        },
        recipe=IWSLT14,
        notes="Text and score are cased and not tokenized; with --moses both are as in DeltaLM's scripts.",
        options={
            "moses": Setting(
                False, "tokens in lower case, cleaned, as in prepare-iwslt14.sh; needs the package sacremoses"
            )
        },
        depends=_score_tokens,
        reader_options={"from_english": FROM_ENGLISH},
        recipe_options={
            "direction": Setting("to-english", "what is translated", choices=("to-english", "from-english"))
        },
        deltalm={
            "DeltaLM's examples/train_iwslt14.sh, of one GPU": {"lr": "1e-4", "device_tokens": 1024, "accumulate": 1}
        },
    ),
    "multi30k": Benchmark(
        about="Multi30k: captions of pictures, from one language to another.",
        raw="DIR/{train,val,test_2016_flickr}.{en,de,fr,cs} (https://github.com/multi30k/dataset, data/task1/raw). The "
        "2016 test set is --set test, the later ones are test_2017_flickr, test_2017_mscoco and test_2018_flickr.",
        read=lambda options, malformed: read_line_aligned(
            options.raw, multi30k(options.source_lang, options.target_lang), malformed
        ),
        settings={
            "none of the papers has this task: lengths that fit the data": {
                "max_source": 64,
                "max_target": 64,
                "lr": "1e-4",
                "epochs": 20,
                "decoding": "--beam 5 --length-penalty gnmt --lenpen 1.0",
            },
            **SACREBLEU,
        },
        recipe=Generation,
        options={
            "source_lang": Setting("en", "of the sources", choices=MULTI30K_LANGUAGES),
            "target_lang": Setting("de", "of the targets", choices=MULTI30K_LANGUAGES),
        },
        deltalm={},
    ),
    "wmt10": Benchmark(
        about="WMT-10: translation between English and ten languages, both ways, by one model: DeltaLM.",
        raw="DIR/{train,valid,test}.X-en.{X,en} of each language X, from WMT's shared tasks (https://www.statmt.org), "
        "pairs as in Wang et al. (2020); no archive of the whole is published.",
        read=_read_wmt10,
        settings={
            "the one that trains all pairs at once": {"method": "deltalm"},
            "DeltaLM, section 3.2": {"max_source": 256, "max_target": 256, "longest": 255, "averaged": 5},
            **SACREBLEU,
        },
        recipe=WMT10,
        notes="All pairs are in one training, drawn by a temperature that rises from 1 to 5. Each direction is scored "
        "by itself, and their means are written to RUN/SET.md.",
        reader_options={
            "lang": Setting("fr", "the language beside English", choices=WMT10_LANGUAGES),
            "from_english": FROM_ENGLISH,
        },
        recipe_options={
            "langs": Setting(
                ",".join(WMT10_LANGUAGES), "beside English", "LIST", choices=WMT10_LANGUAGES, is_list=True
            ),
            "direction": Setting("both", "what is trained and scored", choices=("both", "to-english", "from-english")),
        },
        depends=_only_deltalm,
        deltalm={},
    ),
}
