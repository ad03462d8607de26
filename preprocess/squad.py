"""SQuAD: DIR/{train,dev}-v1.1.json (or v2.0) to windows of question and passage, in symbols of a tokenizer."""

from pathlib import Path

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.squad_reading import VERSIONS, read_squad_files
from s2sft_fairseq.corpora.squad_windows import WindowMaker, write_windows
from s2sft_fairseq.tokenization.folder import open_tokenizer


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--version", choices=VERSIONS, default="1.1", help="of the raw files (default: 1.1)")
    parser.add_argument(
        "--tokenizer-dir", type=Path, required=True, metavar="DIR", help="the folder of the converted encoder"
    )
    parser.add_argument(
        "--max-positions", type=int, default=384, metavar="N", help="of question and window (default: 384)"
    )
    parser.add_argument(
        "--stride", type=int, default=128, metavar="N", help="tokens from a window to the next (default: 128)"
    )
    parser.add_argument("--max-query", type=int, default=64, metavar="N", help="tokens of a question (default: 64)")
    options = parser.parse_args()

    def write(*corpus, **others):
        windows = WindowMaker(
            open_tokenizer(options.tokenizer_dir), options.max_positions, options.stride, options.max_query
        )
        return write_windows(*corpus, windows=windows, **others)

    run(parser, lambda options, malformed: read_squad_files(options.raw, options.version, malformed), write)


if __name__ == "__main__":
    main()
