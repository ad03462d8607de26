"""Recipes of the papers' benchmarks, from raw files to scores, and of pre-training on plain text, in resumable stages.

`finetune` does the same for the user's own pairs.

`benchmarks` has a record for each benchmark, `settings` the settings, `generation` and `understanding` the stages, and
`engine` runs, locks and records them.
"""
