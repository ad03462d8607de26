"""The papers' benchmarks, read from the files that their authors publish.

A reader yields an `Example` for each record, lazily, and adds malformed records to `Malformed`. `write_corpus` writes
the examples to the text files that the recipes train on and score. ``s2sft prepare`` is the command line.
"""
