"""Benchmarks of generating text from data."""

from s2sft_fairseq.corpora.data_to_text import LANGUAGES, read_e2e, read_webnlg
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.generation import Generation
from s2sft_fairseq.recipes.recipe import Benchmark, of_folder
from s2sft_fairseq.recipes.settings import Setting, Settings


def _score_russian(settings: Settings) -> None:
    """Split Russian with razdel, as the evaluation of the 2020 challenge does; GEM's ROUGE keeps only letters a-z."""
    if settings.lang != "ru":
        return
    words = "--pretokenize razdel --rouge-tokenizer space --lowercase"
    settings.take({"the challenge's evaluation": {"evaluation": f"--task webnlg {words}"}})
    try:
        import razdel  # noqa: F401
    except ImportError:
        if not (settings.dry_run or settings.dump_config):
            text = "is scored with the package razdel, which is not installed: pip install razdel"
            raise UserError(f"--lang {settings.lang} {text}") from None


DATA_TO_TEXT = {
    "e2e": Benchmark(
        about="E2E NLG challenge: from a restaurant's attributes to a sentence, scored against all references.",
        raw="DIR/{trainset,devset,testset_w_refs}.csv (https://github.com/tuetschek/e2e-dataset).",
        read=of_folder(read_e2e),
        settings={
            "none of the papers has this task: lengths that fit the data": {
                "max_source": 96,
                "max_target": 80,
                "lr": "1e-4",
                "decoding": "--beam 5 --length-penalty gnmt --lenpen 1.0",
            },
            "NLTK's words in lower case": {
                "evaluation": "--task bleu --lowercase --pretokenize nltk --metrics sacrebleu rouge"
            },
        },
        recipe=Generation,
    ),
    "webnlg": Benchmark(
        about="WebNLG 3.0: from triples to a text in English or Russian.",
        raw="DIR/{en,ru}/{train,dev,test} of release_v3.0 (https://gitlab.com/shimorina/webnlg-dataset).",
        read=lambda options, malformed: read_webnlg(options.raw, options.lang, malformed),
        settings={
            "DeltaLM, section 3.2, which reports on the validation set": {"method": "deltalm", "set": "dev"},
            "DeltaLM, section 3.1": {"max_target": 80},
            "a length that fits the data": {"max_source": 256},
            "GEM's evaluation": {"evaluation": "--task webnlg"},
        },
        recipe=Generation,
        options={"lang": Setting("en", "of the texts", choices=LANGUAGES)},
        depends=_score_russian,
        deltalm={},
    ),
}
