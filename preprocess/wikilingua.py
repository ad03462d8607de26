"""WikiLingua to English: DIR/LANG_en/{train,val,test}.{src,tgt} (GEM_data_crosslingual) to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.line_aligned import read_line_aligned, wikilingua

LANGUAGES = ("es", "ru", "tr", "vi")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lang", choices=LANGUAGES, default="es", help="of the articles (default: es)")
    run(parser, lambda options, malformed: read_line_aligned(options.raw, wikilingua(options.lang), malformed))


if __name__ == "__main__":
    main()
