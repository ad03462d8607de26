"""XGiga, Gigaword headlines in English, French or Chinese: DIR/{train,dev,test}.{x,y}.LANG to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.line_aligned import read_line_aligned, xgiga

LANGUAGES = ("en", "fr", "zh")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lang", choices=LANGUAGES, default="fr", help="(default: fr)")
    run(parser, lambda options, malformed: read_line_aligned(options.raw, xgiga(options.lang), malformed))


if __name__ == "__main__":
    main()
