"""GLUE: DIR/{CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI}/*.tsv to text files with labels, a task at a time."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.glue import TASKS, read_glue
from s2sft_fairseq.corpora.labelled_writing import write_labelled


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--task", choices=TASKS, required=True, help="one of the nine")
    task = parser.parse_known_args()[0].task
    run(
        parser,
        lambda options, malformed: read_glue(options.raw, options.task, malformed),
        lambda *corpus, **options: write_labelled(*corpus, classes=TASKS[task].classes, **options),
    )


if __name__ == "__main__":
    main()
