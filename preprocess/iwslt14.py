"""IWSLT'14: DIR/train.tags.de-en.{de,en} and DIR/IWSLT14.*.xml to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.iwslt14 import read_iwslt14


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--from-english", action="store_true", help="translate from English; otherwise from German")

    def languages(from_english: bool) -> tuple[str, str]:
        return ("en", "de") if from_english else ("de", "en")

    run(
        parser,
        lambda options, malformed: read_iwslt14(options.raw, *languages(options.from_english), malformed),
    )


if __name__ == "__main__":
    main()
