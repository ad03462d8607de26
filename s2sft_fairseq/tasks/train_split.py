"""The set that is trained on has one name: it alone is shuffled, sampled and corrupted."""

from collections.abc import Collection

from s2sft_fairseq.errors import UserError


def require_train_split(names: Collection[str]) -> None:
    """Refuse to train without a set of the name ``train``.

    Args:
        names: of the sets that are loaded when training begins.

    Raises:
        UserError: if it is not among them.
    """
    if "train" not in names:
        raise UserError(f"--train-subset must be train, but the sets that are loaded are {', '.join(sorted(names))}")
