"""The subcommands of `s2sft`, a function of the remaining arguments each; `s2sft_fairseq.cli` lists them."""
