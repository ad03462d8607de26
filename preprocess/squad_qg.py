"""SQuAD question generation: DIR/{train-v1.1.json,dev-v1.1.json,doclist-test.txt} to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.squad import read_squad


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--split",
        choices=("official", "reversed"),
        default="official",
        help="official: tested on the 44 articles of doclist-test.txt (Du et al., 2017); reversed: tested on the "
        "development file (Zhao et al., 2018) (default: official)",
    )
    run(
        parser,
        lambda options, malformed: read_squad(options.raw, malformed, reversed_split=options.split == "reversed"),
    )


if __name__ == "__main__":
    main()
