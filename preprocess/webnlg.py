"""WebNLG 3.0: DIR/{en,ru}/{train,dev,test} (release_v3.0) to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.webnlg import LANGUAGES, read_webnlg


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="of the texts (default: en)")
    run(parser, lambda options, malformed: read_webnlg(options.raw, options.lang, malformed))


if __name__ == "__main__":
    main()
