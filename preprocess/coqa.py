"""CoQA: DIR/coqa-{train,dev}-v1.0.json to text files of pairs; it is scored on the development set."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.coqa import read_coqa

if __name__ == "__main__":
    run(make_parser(__doc__), lambda options, malformed: read_coqa(options.raw, malformed))
