"""XSum: DIR/bbc-summary-data/*.summary and DIR/XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.xsum import read_xsum

if __name__ == "__main__":
    run(make_parser(__doc__), lambda options, malformed: read_xsum(options.raw, malformed))
