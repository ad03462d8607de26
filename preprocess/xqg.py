"""XQG, question generation in English or Chinese: DIR/{train,dev,test}.{e,a,q}.LANG.lc to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.line_aligned import read_line_aligned, xqg

LANGUAGES = ("en", "zh")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lang", choices=LANGUAGES, default="zh", help="(default: zh)")
    run(parser, lambda options, malformed: read_line_aligned(options.raw, xqg(options.lang), malformed))


if __name__ == "__main__":
    main()
