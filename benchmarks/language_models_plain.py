"""Language models by other programs, for `language_models.py`: transformers, alone or with adapters of peft; llama.cpp.

The training is the usual plain one: batches of random pairs, padded to the longest; AdamW, whose learning rate rises in
the first tenth of the time and falls to 0; products in bfloat16 where the processor multiplies it, as in ``s2sft
finetune``. One thing is better than usual: the output matrix is multiplied only where there are labels.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from language_models_task import Cell, Task
from torch import Tensor, nn

from s2sft_fairseq.modules.cpu_linear import multiplies_bf16

LEARNING_RATES = {"transformers": 1e-4, "peft": 3e-4}
WEIGHT_DECAY, CLIP_NORM, WARM_UP = 0.01, 1.0, 0.1
PROMPT = "{}\n=> "
"""A source as a language model gets it; the target follows."""
RANK = 16
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LONGEST = 128
"""Most tokens of a text."""


class Start(NamedTuple):
    """A language model and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def end(self) -> int:
        """The id of the end of a text."""
        return int(self.tokenizer.eos_token_id)

    def prompt(self, source: str) -> list[int]:
        """Return the ids of a source."""
        ids: list[int] = self.tokenizer(PROMPT.format(source)).input_ids
        return ids

    def target(self, text: str) -> list[int]:
        """Return the ids of a target with its end."""
        return [*self.tokenizer(text, add_special_tokens=False).input_ids, self.end]


def open_start(path: str | Path) -> Start:
    """Load a folder, or a .gguf file, in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(path)
    where, named = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **named)
    return Start(model, AutoTokenizer.from_pretrained(where, **named))


def examples(start: Start, task: Task) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each source and target."""
    return [(start.prompt(source), start.target(target)) for source, target in zip(*task.train, strict=True)]


def batches(pairs: list[tuple[list[int], list[int]]], size: int, seed: int) -> Iterator[list[Any]]:
    """Yield batches for ever: in each pass all pairs in a new random order."""
    shuffled = random.Random(seed)
    while True:
        order = list(pairs)
        shuffled.shuffle(order)
        yield from (order[first : first + size] for first in range(0, len(order), size))


def padded(batch: list[tuple[list[int], list[int]]], end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, attention mask and labels of a batch, all (B, L); labels are -100 where there is none."""
    longest = max(len(source) + len(target) for source, target in batch)
    tokens = torch.full((len(batch), longest), end)
    mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
    for row, (source, target) in enumerate(batch):
        whole = torch.tensor(source + target)
        tokens[row, : len(whole)], mask[row, : len(whole)] = whole, 1
        labels[row, len(source) : len(whole)] = whole[len(source) :]
    return tokens, mask, labels


def loss_of(model: Any, batch: list[tuple[list[int], list[int]]], end: int) -> Tensor:
    """Return the mean loss of the target tokens of a batch."""
    tokens, mask, labels = padded(batch, end)
    states = model.base_model(input_ids=tokens, attention_mask=mask).last_hidden_state
    is_label = labels[:, 1:] != -100
    logits = model.lm_head(states[:, :-1][is_label])
    return nn.functional.cross_entropy(logits.float(), labels[:, 1:][is_label])


def rate_at(share: float, peak: float) -> float:
    """Return the learning rate after a share of the time."""
    return peak * (share / WARM_UP if share < WARM_UP else max(0.0, 1 - share) / (1 - WARM_UP))


def train(cell: Cell, task: Task, folder: Path) -> dict[str, Any]:
    """Train for the minutes of the cell, and save the model; return the number of updates and the seconds."""
    torch.manual_seed(cell.seed)
    began_all = time.monotonic()
    start = open_start(cell.path)
    whole, adapted = start.model, None
    if cell.system == "peft":
        from peft import LoraConfig, get_peft_model

        adapted = get_peft_model(whole, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=ADAPTED))
    trained = [parameter for parameter in whole.parameters() if parameter.requires_grad]
    peak = LEARNING_RATES[cell.system]
    optimizer = torch.optim.AdamW(trained, lr=peak, weight_decay=WEIGHT_DECAY)
    supply = batches(examples(start, task), cell.batch, cell.seed)
    whole.train()
    updates, began = 0, time.monotonic()
    while (share := (time.monotonic() - began) / (60 * cell.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(share, peak)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=multiplies_bf16()):
            loss = loss_of(whole, next(supply), start.end)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
    seconds = time.monotonic() - began
    saved = whole if adapted is None else adapted.merge_and_unload()
    saved.save_pretrained(folder)
    start.tokenizer.save_pretrained(folder)
    return {"updates": updates, "training_seconds": seconds, "whole_seconds": time.monotonic() - began_all}


def load(cell: Cell, folder: Path) -> Any:
    """Return a function from sources and the size of a batch to greedy texts, the longest sources first."""
    if cell.system == "llama.cpp":
        return _llama_cpp(cell)
    start = open_start(folder)
    start.model.eval()

    def generate(sources: list[str], batch: int) -> list[str]:
        prompts = [start.prompt(source) for source in sources]
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
        texts = dict[int, str]()
        for first in range(0, len(order), batch):
            part = order[first : first + batch]
            texts |= zip(part, _texts(start, [prompts[number] for number in part]), strict=True)
        return [texts[number] for number in range(len(sources))]

    return generate


@torch.inference_mode()
def _texts(start: Start, prompts: list[list[int]]) -> list[str]:
    """Return greedy texts for prompts, which are padded on the left."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[start.end] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    named = {"max_new_tokens": LONGEST, "do_sample": False, "eos_token_id": start.end, "pad_token_id": start.end}
    made = start.model.generate(input_ids=tokens, attention_mask=mask, **named)[:, longest:]
    return [" ".join(start.tokenizer.decode(row, skip_special_tokens=True).split()) for row in made]


def _llama_cpp(cell: Cell) -> Any:
    """Return greedy texts by llama.cpp, one after the other. The model is not trained: its speed is what counts."""
    from llama_cpp import Llama

    model = Llama(model_path=cell.path, n_threads=cell.threads, n_ctx=2048, verbose=False)

    def generate(sources: list[str], batch: int) -> list[str]:
        how = {"max_tokens": LONGEST, "temperature": 0.0, "stop": ["\n"]}
        made = [model.create_completion(PROMPT.format(source), **how) for source in sources]
        return [" ".join(each["choices"][0]["text"].split()) for each in made]

    return generate


def files(cell: Cell, folder: Path) -> Path:
    """Return the folder or the file whose size a user needs on disk."""
    return Path(cell.path) if cell.system == "llama.cpp" else folder
