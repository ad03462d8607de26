"""The subcommands of `s2sft`: functions that take the remaining arguments; `s2sft_fairseq.cli` lists them."""
