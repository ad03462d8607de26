"""The options of ``s2sft finetune`` and their defaults."""

import math

from s2sft_fairseq.recipes.finetune_choice import METRICS
from s2sft_fairseq.recipes.generation import METHODS, Generation
from s2sft_fairseq.recipes.settings import MOST_POSITIONS, RUN, TRAINING, BySource, Setting
from s2sft_fairseq.search_bounds import MOST_HYPOTHESES

RUN_OPTIONS: dict[str, Setting] = {
    "encoder": Setting(
        "",
        "a pretrained encoder or language model as it is published, the folder of a conversion or a model, or a "
        "checkpoint",
        "PATH",
    ),
    "tokenizer_dir": Setting("", "where the tokenizer's files are, if not beside --encoder", "DIR"),
    "output": Setting("", "where to write", "DIR"),
    "limit": Setting(None, "the first N pairs of each file only", least=1),
    **{name: RUN[name] for name in ("workers", "cpu")},
    "skip_malformed": Setting(False, "leave malformed lines out; otherwise they are an error"),
}
SETTINGS: dict[str, Setting] = {
    "method": Setting("pseudo_masked", "of fine-tuning", choices=[name for name in METHODS if name != "deltalm"]),
    "layers": Setting(None, "keep the first N layers of the encoder alone, as of a sentence encoder", least=1),
    # The choice of checkpoint and search.
    "metric": Setting(
        "rouge-l",
        "metric that chooses checkpoint and search; loss: the held-out loss, without generating",
        choices=list(METRICS),
    ),
    "candidates": Setting(5, "checkpoints to choose from, evenly spread over the training", least=1, most=1000),
    "chosen_on": Setting(200, "validation sources that each of these generates from, greedily", least=1),
    "scored_on": Setting(1000, "sources of --test, or else --valid, that the model generates from", least=1),
    "held_out": Setting(200, "validation pairs that the held-out loss is computed on", least=1),
    "beam": Setting(5, "of the search", least=1, most=MOST_HYPOTHESES),
    # The defaults of these depend on data, encoder and machine, see `finetune_plan`.
    "max_source": Setting(
        None,
        "positions of a source, special symbols included (default: fits 99 %% of them)",
        least=3,
        most=MOST_POSITIONS,
    ),
    "max_target": Setting(
        None,
        "positions of a target, special symbols included (default: fits 99 %% of them)",
        least=2,
        most=MOST_POSITIONS,
    ),
    "epochs": Setting(None, "passes over the training set (CPU 4, GPU 10; a language model: 1, 3)", least=1),
    "updates": Setting(
        None, "updates, in place of epochs (CPU: from 100 to 5,000; a language model: from 48 to 500)", least=1
    ),
    "batch": Setting(None, "pairs of an update, of all GPUs (CPU 16, GPU 64)", least=1),
    "lr": Setting(
        "", "learning rate (by the encoder's width: 3e-4, from 512 on 1e-4, from 1024 on 2e-5)", "X", most=math.inf
    ),
    "warmup": Setting(None, "warm-up updates (a tenth of all)", least=0),
    "amp": Setting("auto", "products with 16-bit factors; auto: where these are fast", choices=("auto", "on", "off")),
    # The rest of the training.
    "device_batch": TRAINING["device_batch"]._replace(
        help=f"{TRAINING['device_batch'].help}; chosen by lengths and the encoder's width on a GPU"
    ),
    "lora_rank": Setting(None, "train adapters of this rank in place of all weights", least=1, most=8192),
    "label_smoothing": Setting("0.1", "share of the probability that goes to other tokens", "X", most=1),
    "dropout": TRAINING["dropout"],
    "weight_decay": Setting("0.01", "of the optimizer", "X", most=math.inf),
    "target_mask_prob": Setting(
        "", "share of the target tokens that are masked (masked 0.5, pseudo_masked 0)", "P", most=1
    ),
    "noise_prob": Generation.declared["noise_prob"],
    "noise_symbol": Generation.declared["noise_symbol"],
    "source_loss_weight": Generation.declared["source_loss_weight"],
    "layout": TRAINING["layout"],
    "seed": TRAINING["seed"],
}
LANGUAGE_MODEL: BySource = {
    "for a language model": {"method": "causal", "dropout": "0", "label_smoothing": "0"},
    "for a language model, which takes long for a text": {
        "candidates": 3,
        "chosen_on": 50,
        "scored_on": 200,
        "held_out": 50,
        "beam": 1,
    },
}
"""Defaults for a start whose sources are read from left to right, by the reason for them."""
