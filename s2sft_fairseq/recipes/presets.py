"""The presets of ERNIE-GEN and UniLMv2: a line of ``presets.tsv`` for each."""

import csv
from pathlib import Path

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.settings import Settings

PRESETS = Path(__file__).with_name("presets.tsv")


def read_presets() -> list[dict[str, str]]:
    """Return the lines by their columns."""
    with PRESETS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def use_preset(settings: Settings, name: str) -> None:
    """Give the settings of the preset of a benchmark.

    Batches are those of all GPUs. ERNIE-GEN's lengths of targets count a [CLS] at the beginning, which ours do not;
    those of generated texts count the [SEP], which --max-len-b does not.

    Raises:
        UserError: if the benchmark has no such preset.
    """
    rows = [row for row in read_presets() if row["recipe"] == name]
    row = next((row for row in rows if row["preset"] == settings.preset), None)
    if row is None:
        known = ", ".join(row["preset"] for row in rows) or "none"
        raise UserError(f"--preset must be one of this recipe's, but is {settings.preset}: {known}")
    is_infilling = row["method"] == "infilling"
    source = f"ERNIE-GEN, {row['source']}" if is_infilling else row["source"]
    settings.give({source: {"method": row["method"]}})
    names = ["size", "batch", "epochs", "lr", "dropout", "label_smoothing", "weight_decay"]
    names += ["noise_prob", "noise_symbol"] if settings.method == "infilling" else []
    values = {name: row[name] for name in names} | {"max_source": row["max_src_len"]}
    values["max_target"] = str(int(row["max_tgt_len"]) - is_infilling)
    read = {name: settings.declared[name].read(name, value) for name, value in values.items() if value != "-"}
    settings.give({source: read})
    search = f"--beam {row['beam']} --length-penalty gnmt --lenpen {row['length_penalty']}"
    search += f" --max-len-b {int(row['max_dec_len']) - 1} --rank-each-step --keep-unfinished"
    if not is_infilling:
        search = f"{settings.decoding} --beam {row['beam']} --lenpen {row['length_penalty']}"  # the last ones count
    settings.take({source: {"decoding": search, "warmup_share": row["warmup_proportion"]}})
