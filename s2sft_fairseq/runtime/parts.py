"""Check that a task, a model and a criterion fit each other, before one of them fails on the batches of another.

Tasks of this package have a `model_name`, and those whose batches are packed a `criterion`: the names of a model and of
a criterion of this package that read their batches. Classes that are derived from these, in a plugin of the user's,
read them as well. A criterion of such a plugin that is derived from fairseq's base class may read any batch.
"""

from collections.abc import Iterator
from typing import Any

from fairseq import criterions
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import Function, wrap

_OWN, _FAIRSEQ = "s2sft_fairseq.", "fairseq."
_PACKED = "unilm"
"""The model that reads nothing but packed batches; an encoder-decoder reads those of fairseq's tasks, too."""


def install() -> None:
    """Check the criterion when a task builds it. `checkpoints` checks the model, and `options` the command line."""
    wrap(criterions, "build_criterion", _build_criterion)


def _build_criterion(build: Function, cfg: Any, task: Any, *args: Any, **options: Any) -> Any:
    """Patch ``build_criterion`` of fairseq/criterions/__init__.py."""
    if cfg._name not in CRITERION_REGISTRY:
        raise UserError(f"--criterion {cfg._name} is not known: give the --user-dir of the plugin that registers it")
    check_parts(task, criterion=cfg._name)
    return build(cfg, task, *args, **options)


def check_parts(task: Any, *, arch: str | None = None, criterion: str | None = None) -> None:
    """Check that a model and a criterion read the batches of a task.

    Args:
        task: the task, or its class.
        arch: the name of an architecture or a model; None: it is not checked.
        criterion: the name of a criterion; None: it is not checked.

    Raises:
        UserError: naming each option that does not fit.
    """
    problems = [*_model_problems(task, arch), *_criterion_problems(task, criterion)]
    if problems:
        raise UserError.of(problems)


def task_name(task: Any) -> str:
    """Return the name of a task, or of its class, for messages."""
    known = {cls: name for name, cls in TASK_REGISTRY.items()}
    cls = task if isinstance(task, type) else type(task)
    return next((known[base] for base in cls.__mro__ if base in known), cls.__name__)


def _model_problems(task: Any, arch: str | None) -> Iterator[str]:
    model = ARCH_MODEL_REGISTRY.get(arch) or MODEL_REGISTRY.get(arch)
    if model is None:
        return
    needed = getattr(task, "model_name", None)
    if needed is not None and not issubclass(model, MODEL_REGISTRY[needed]):
        yield f"--arch must be {needed} or one of its sizes for {task_name(task)}, but is {arch}"
    if needed is None and issubclass(model, MODEL_REGISTRY[_PACKED]):
        tasks = [name for name, cls in TASK_REGISTRY.items() if getattr(cls, "model_name", None) == _PACKED]
        yield f"--task must be {', '.join(sorted(tasks))} for --arch {arch}, but is {task_name(task)}"


def _criterion_problems(task: Any, name: str | None) -> Iterator[str]:
    criterion = CRITERION_REGISTRY.get(name)
    if criterion is None:
        return
    own = {each: cls for each, cls in CRITERION_REGISTRY.items() if cls.__module__.startswith(_OWN)}
    reads = [each for each, cls in own.items() if issubclass(criterion, cls)]
    needed = getattr(task, "criterion", None)
    if needed is None and reads:
        tasks = [each for each, cls in TASK_REGISTRY.items() if getattr(cls, "criterion", None) in reads]
        yield f"--criterion {name} is for {', '.join(sorted(tasks))}, but --task is {task_name(task)}"
    is_of_fairseq = criterion.__module__.startswith(_FAIRSEQ)
    if needed is not None and needed not in reads and (reads or is_of_fairseq):
        yield f"--criterion must be {needed} for {task_name(task)}, but is {name}"
