"""Cost of UniLMv2's pre-training objectives relative to autoencoding alone, on the same texts and masked tokens.

    python benchmarks/pretraining.py                     # about 3 minutes on 2 free cores
    python benchmarks/pretraining.py --config minilm_l6_h384 --length 128 --batch 16

Random weights and random words, one process. A pass is the loss and its backward pass, with dropout as in training. The
objectives take turns, and the fastest pass of each counts. "FLOPs" are those of the matrix products that the positions,
visible scores and labels need (`training_work.py`). For comparison: two passes, one for AE and one for PAR, would cost
more than 2.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import s2sft_fairseq.plugin  # noqa: F401  (patches fairseq, so it comes first)

# isort: split
import numpy as np
import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from roofline import Sizes
from training_work import block_scores, update_flops

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.text_datasets import PackedTextDataset
from s2sft_fairseq.objectives.pseudo_masked_lm import LANGUAGE_MODELS
from s2sft_fairseq.tasks.encoder_pretraining import UnilmPretrainingTask

SYMBOLS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Texts:
    """Texts of random words, all of one length, with the divider in the middle."""

    def __init__(self, count: int, length: int, vocab: int, divider: int, seed: int) -> None:
        words = np.random.default_rng(seed).integers(len(SYMBOLS), vocab, (count, length))
        self.rows = np.insert(words, length // 2, divider, axis=1)
        self.sizes = np.full(count, length)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.rows[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="unilm_base", help="architecture (default: unilm_base)")
    parser.add_argument("--length", type=int, default=509, metavar="N", help="tokens of a text (default: 509)")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="texts of a batch (default: 4)")
    parser.add_argument("--vocab", type=int, default=30522, metavar="V", help="(default: 30522)")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="(default: 4)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="(default: 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prepared = {name: prepare(name, options) for name in LANGUAGE_MODELS}
    least = dict.fromkeys(prepared, float("inf"))
    for number in range(options.rounds + 1):
        for name, (model, criterion, batch, _) in prepared.items():
            start = time.perf_counter()
            criterion(model, batch)[0].backward()
            if number:  # the first round is a warm-up
                least[name] = min(least[name], time.perf_counter() - start)
    print("| objective | positions | labels | s a pass | beside AE | FLOPs beside AE |\n|---|---|---|---|---|---|")
    for name, (_, _, batch, work) in prepared.items():
        ratios = least[name] / least["ae"], work / prepared["ae"][-1]
        positions = len(batch["net_input"]["tokens"])
        cells = (name, positions, batch["ntokens"], f"{least[name]:.2f}", *(f"{ratio:.2f}" for ratio in ratios))
        print("|", " | ".join(map(str, cells)), "|")


def prepare(name: str, options: argparse.Namespace) -> Sequence[Any]:
    """Return model, criterion, a batch, and the FLOPs of its pass."""
    words = [
        *("/nonexistent", "--cpu", "--task", "unilm_pretraining", "--language-model", name, "--arch", options.config),
        *("--tokens-per-sample", options.length, "--max-positions", max(512, options.length + 3)),
        *("--criterion", "mask_attention", "--label-smoothing", 0, "--dropout", 0.1, "--attention-dropout", 0.1),
    ]
    arguments = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), list(map(str, words)))
    cfg = convert_namespace_to_omegaconf(arguments)
    symbols = (*SYMBOLS, *(f"w{number}" for number in range(len(SYMBOLS), options.vocab)))
    task = UnilmPretrainingTask(cfg.task, FairseqDictionary([(symbol, 1) for symbol in symbols], BERT_SYMBOLS))
    torch.manual_seed(1)
    model = task.build_model(cfg.model).train()
    texts = Texts(options.batch, options.length, options.vocab, task.divider, seed=1)
    data = PackedTextDataset(texts, task.form, task.flows, task.pack, task.packed_sizes(texts.sizes))
    batch = data.collater([data[index] for index in range(options.batch)])
    lengths = batch["net_input"]["lengths"]
    scores = sum(map(block_scores, lengths))
    work = update_flops(sizes_of(model), len(batch["net_input"]["tokens"]), scores, batch["ntokens"])
    return model, task.build_criterion(cfg.criterion), batch, work


def sizes_of(model: torch.nn.Module) -> Sizes:
    """Return layers, width, inner width and vocabulary."""
    cfg = model.cfg
    vocab = len(model.embeddings.tokens.weight)
    return Sizes(cfg.encoder_layers, cfg.encoder_embed_dim, cfg.encoder_ffn_embed_dim, vocab)


if __name__ == "__main__":
    main()
