"""The papers' benchmarks, read from the files that their authors publish.

A reader yields an `Example` for each record, lazily, and reports to `Malformed` what it cannot read. `write_corpus`
makes of them the text files that the recipes train on and score. ``s2sft prepare`` is the command line.
"""
