"""A pair of WMT-10: DIR/{train,valid,test}.X-Y.{X,Y} to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.line_aligned import read_line_aligned, wmt10

LANGUAGES = ("fr", "cs", "de", "fi", "lv", "et", "ro", "hi", "tr", "gu")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lang", choices=LANGUAGES, default="fr", help="the language beside English (default: fr)")
    parser.add_argument("--from-english", action="store_true", help="translate from English; otherwise to it")

    def languages(lang: str, from_english: bool) -> tuple[str, str]:
        return ("en", lang) if from_english else (lang, "en")

    run(
        parser,
        lambda options, malformed: read_line_aligned(
            options.raw, wmt10(*languages(options.lang, options.from_english)), malformed
        ),
    )


if __name__ == "__main__":
    main()
