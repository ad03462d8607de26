"""The exceptions, besides `UserError`, by which fairseq tells the user of a mistake."""

import re
import traceback

from hydra.errors import ConfigCompositionException

# How Hydra puts it that an option without a default, such as --total-num-update, was not given.
_NOT_GIVEN = re.compile(r"Error merging override (\w+)\.(\w+)=null")


def stated_by_fairseq(error: Exception) -> str | None:
    """The text for the user where `error` is a mistake that fairseq found, or a file; None where it may be a bug.

    Found are assertions, which fairseq makes about its options, and whatever its own code raises with a text
    ("The dataset is empty. ..."); not what a library that it calls raises.
    """
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    if isinstance(error, ConfigCompositionException):
        if not_given := _NOT_GIVEN.fullmatch(str(error)):
            group, option = (name.replace("_", "-") for name in not_given.groups())
            return f"--{option} is needed with this --{group}"
        return str(error)  # an override of s2sft hydra-train that Hydra does not understand
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    raised = traceback.extract_tb(error.__traceback__)[-1].line or ""
    stated = isinstance(error, AssertionError) or raised.startswith("raise ")
    in_fairseq = frame.f_globals.get("__name__", "").partition(".")[0] in ("fairseq", "fairseq_cli")
    return str(error) or None if stated and in_fairseq else None
