"""Persona-Chat: DIR/{train,valid,test}_self_original.txt to text files of pairs."""

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.persona_chat import read_persona_chat

if __name__ == "__main__":
    run(make_parser(__doc__), lambda options, malformed: read_persona_chat(options.raw, malformed))
