"""Build a summarisation corpus from the docstrings of installed packages."""

import argparse
from pathlib import Path

from s2sft_fairseq.data.docstring_corpus import DEFAULT_PACKAGES, CorpusSettings, build_corpus, write_corpus


def main() -> None:
    defaults = CorpusSettings()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--packages", nargs="+", default=list(DEFAULT_PACKAGES), metavar="NAME",
        help="packages as they are imported; stdlib is Python's standard library",
    )  # fmt: skip
    parser.add_argument("--min-body-words", type=int, default=defaults.min_body_words, metavar="N",
                        help="drop pairs with a shorter body")  # fmt: skip
    parser.add_argument("--min-summary-words", type=int, default=defaults.min_summary_words, metavar="N",
                        help="drop pairs with a shorter summary")  # fmt: skip
    parser.add_argument("--max-summary-words", type=int, default=defaults.max_summary_words, metavar="N",
                        help="drop pairs with a longer summary")  # fmt: skip
    parser.add_argument("--valid-share", type=float, default=defaults.valid_share, metavar="X",
                        help="share of the modules for validation")  # fmt: skip
    parser.add_argument("--test-share", type=float, default=defaults.test_share, metavar="X",
                        help="share of the modules for testing")  # fmt: skip
    parser.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="seed of the split")
    options = vars(parser.parse_args())
    output = options.pop("output")
    settings = CorpusSettings(**{**options, "packages": tuple(options["packages"])})

    corpus = build_corpus(settings)
    stats = write_corpus(corpus, settings, output)

    for pair in corpus.splits["valid"][:3]:
        print(f"\n{pair.module}\n  body:    {pair.body[:300]}\n  summary: {pair.summary}")
    print(f"\ndropped: {stats['dropped']}\nfiles that could not be parsed: {len(corpus.unparsable)}")
    print(f"pairs: {stats['pairs']}\nwrote {output}/{{train,valid,test}}.{{src,tgt}}, README.md and stats.json")


if __name__ == "__main__":
    main()
