"""The exceptions, besides `UserError`, by which fairseq tells the user of a mistake."""

import traceback

from hydra.errors import ConfigCompositionException


def stated_by_fairseq(error: Exception) -> str | None:
    """The text for the user where `error` is a mistake that fairseq found, or a file; None where it may be a bug.

    Found are assertions, which fairseq makes about its options, and whatever its own code raises with a text
    ("The dataset is empty. ..."); not what a library that it calls raises.
    """
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    if isinstance(error, ConfigCompositionException):
        return str(error)  # an override of s2sft hydra-train that Hydra does not understand
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    raised = traceback.extract_tb(error.__traceback__)[-1].line or ""
    stated = isinstance(error, AssertionError) or raised.startswith("raise ")
    in_fairseq = frame.f_globals.get("__name__", "").partition(".")[0] in ("fairseq", "fairseq_cli")
    return str(error) or None if stated and in_fairseq else None
