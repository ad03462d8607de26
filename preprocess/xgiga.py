"""XGiga, Gigaword headlines in English, French or Chinese: DIR/{train,dev,test}.{x,y}.LANG to text files of pairs.

With --train-lang the pairs to train on are of that language, and text-LANG.src has the articles of each.
"""

import argparse

from s2sft_fairseq.corpora.command_line import Splits, make_parser, run
from s2sft_fairseq.corpora.line_aligned import XGIGA_LANGUAGES, read_line_aligned, xgiga, xgiga_zero_shot
from s2sft_fairseq.corpora.malformed import Malformed


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lang", choices=XGIGA_LANGUAGES, default="fr", help="(default: fr)")
    parser.add_argument(
        "--train-lang", choices=XGIGA_LANGUAGES, help="of training and validation set (default: --lang)"
    )

    def read(options: argparse.Namespace, malformed: Malformed) -> Splits:
        is_zero_shot = options.train_lang not in (None, options.lang)
        layouts = xgiga_zero_shot(options.lang, options.train_lang) if is_zero_shot else xgiga(options.lang)
        return read_line_aligned(options.raw, layouts, malformed)

    run(parser, read)


if __name__ == "__main__":
    main()
