"""E2E NLG challenge: DIR/{trainset,devset,testset_w_refs}.csv to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.e2e import read_e2e

if __name__ == "__main__":
    run(make_parser(__doc__), lambda options, malformed: read_e2e(options.raw, malformed))
