"""CNN/DailyMail: DIR/{cnn,dailymail}/stories/*.story and DIR/all_{train,val,test}.txt to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.stories import read_stories

if __name__ == "__main__":
    run(make_parser(__doc__), lambda options, malformed: read_stories(options.raw, malformed))
