"""The recipes, shell scripts, with the programs that they run beside commands.

They are in ``scripts/recipes``, to which ``s2sft_fairseq/recipes`` is a link; an installed package holds them itself.
"""
