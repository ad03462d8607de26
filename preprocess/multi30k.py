"""Multi30k, task 1: DIR/{train,val,test_2016_flickr}.{en,de,fr,cs} (data/task1/raw) to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.line_aligned import multi30k, read_line_aligned

LANGUAGES = ("en", "de", "fr", "cs")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--source-lang", choices=LANGUAGES, default="en", help="(default: en)")
    parser.add_argument("--target-lang", choices=LANGUAGES, default="de", help="(default: de)")
    run(
        parser,
        lambda options, malformed: read_line_aligned(
            options.raw, multi30k(options.source_lang, options.target_lang), malformed
        ),
    )


if __name__ == "__main__":
    main()
