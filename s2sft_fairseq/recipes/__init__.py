"""The papers' benchmarks from raw files to scores, and pre-training from plain text: stages that can be resumed.

`finetune` does the same with pairs of the user's own.

`benchmarks` has a record for each benchmark, `settings` what can be set, `generation` and `understanding` the stages,
and `engine` what runs, locks and remembers them.
"""
