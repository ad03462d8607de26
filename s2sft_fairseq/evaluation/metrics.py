"""Every metric by its name."""

from collections.abc import Callable, Sequence

from s2sft_fairseq.evaluation.bleu import sacrebleu
from s2sft_fairseq.evaluation.coco import coco_bleu, coco_rouge, meteor
from s2sft_fairseq.evaluation.coqa import coqa
from s2sft_fairseq.evaluation.dialogue import dialogue_bleu, distinct
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.glue import accuracy, correlation, f1, matthews
from s2sft_fairseq.evaluation.perl_rouge import perl_rouge
from s2sft_fairseq.evaluation.rouge import rouge
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.squad import squad_v1, squad_v2
from s2sft_fairseq.evaluation.statistics import Measured

METRICS: dict[str, Callable[[Sequence[Example], Settings], Measured]] = {
    metric.__name__: metric
    for metric in (
        *(rouge, perl_rouge, sacrebleu, coco_bleu, meteor, coco_rouge, dialogue_bleu, distinct, coqa),
        *(accuracy, f1, matthews, correlation, squad_v1, squad_v2),
    )
}
