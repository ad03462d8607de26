"""``s2sft doctor``: facts about a machine, and whether the files of models, encoders and data fit each other."""
