"""Whether the weights of a checkpoint are those of a model."""

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError


def check_fit(
    own: dict[str, torch.Size], given: dict[str, Tensor], embedding: str = "embeddings.tokens.weight"
) -> None:
    """Compare the names and shapes of a model's weights with those of a checkpoint.

    Args:
        own: shapes of the model's weights by name.
        given: weights of the checkpoint.
        embedding: name of the token embedding.

    Raises:
        UserError: naming the dictionary and the checkpoint's vocabulary where they differ, and otherwise every
            parameter that is missing, unknown or of another shape.
    """
    if embedding in given and (rows := len(given[embedding])) != own[embedding][0]:
        raise UserError(
            f"the dictionary has {own[embedding][0]} symbols, but the checkpoint was made with {rows}: "
            "use the dict.txt that belongs to the checkpoint"
        )
    problems = [f"{key} is missing" for key in own.keys() - given.keys()]
    problems += [f"{key} is unknown" for key in given.keys() - own.keys()]
    problems += [
        f"{key} must have the shape {tuple(own[key])}, but has {tuple(given[key].shape)}"
        for key in own.keys() & given.keys()
        if own[key] != given[key].shape
    ]
    if problems:
        raise UserError.of(sorted(problems), "the checkpoint does not fit the model:")
