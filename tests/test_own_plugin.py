"""A second plugin, that of docs/howto/own-objective.md: own losses, objectives, rules and families."""

import itertools
import re
from types import SimpleNamespace

import pytest
import torch
from processes import ROOT

from s2sft_fairseq.checkpoints import families
from s2sft_fairseq.checkpoints.families import recognize, register_family
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference import rules
from s2sft_fairseq.objectives import objective
from s2sft_fairseq.runtime import parts

PAGE = (ROOT / "docs" / "howto" / "own-objective.md").read_text(encoding="utf-8")


@pytest.fixture
def plugin(tmp_path):
    """The plugin of the page, as a folder."""
    folder = tmp_path / "my_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.S)[1])
    return folder


def test_train_and_generate(plugin, run_command, tiny_data, tiny_options, tmp_path):
    words = [word for word in tiny_options.training if word != "mask_attention"]
    words[words.index("--criterion") : words.index("--criterion") + 1] = ["--criterion", "weighted_symbols"]
    words += ["--finetune-method", "hidden_causal", "--max-update", 2, "--save-dir", "run", "--user-dir", plugin]
    run_command("train", tiny_data, *words, "--heavy-symbols", "a,b", "--heavy-weight", 3)
    state = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    assert state["cfg"]["criterion"]["heavy_weight"] == 3 and state["task_state"]["layout"]["finetune_method"] == (
        "hidden_causal"
    )
    assert state["optimizer_history"][-1]["criterion_name"] == "WeightedSymbols"
    search = ("generate", tiny_data, "--path", "run/checkpoint_last.pt", "--cpu", "--batch-size", 4)
    printed = run_command(*search, "--user-dir", plugin).stdout
    texts = [line.split("\t")[2].split() for line in printed.splitlines() if line.startswith("H-")]
    assert len(texts) == 10 and max(map(len, texts)) > 2
    assert all(first != second for text in texts for first, second in itertools.pairwise(text))
    error = run_command(*search, status=2).stderr
    assert "hidden_causal" in error and "--user-dir" in error
    assert "ProteinBERT" in run_command("convert", "--user-dir", plugin, "--list").stdout


def test_the_loss_of_the_page(plugin, monkeypatch, tiny_data, tiny_options):
    """With weights of 1 it is that of the base; heavy tokens count as often as their weight says."""
    made = compile(re.search(r"# A loss.*?(?=\n# An objective)", PAGE, re.S)[0], str(plugin), "exec")
    from s2sft_fairseq.criterions import mask_attention

    scope = {**vars(mask_attention), "torch": torch, "register_criterion": lambda *_, **__: lambda cls: cls}
    exec(made, scope)
    dictionary = SimpleNamespace(index="ab".index, pad=lambda: 0, __len__=None)
    dictionary = type(
        "Two", (), {"index": lambda self, s: "ab".index(s), "pad": lambda self: 9, "__len__": lambda s: 2}
    )()
    task = SimpleNamespace(target_dictionary=dictionary)
    criterion = scope["WeightedSymbols"](task, 0.0, False, False, "b", 3.0)
    seen = []
    monkeypatch.setattr(
        mask_attention.MaskAttentionCriterion, "forward", lambda self, model, sample, reduce: seen.append(sample)
    )
    labels = torch.tensor([0, 1, 1])
    criterion.forward(None, {"labels": labels, "weights": None})
    criterion.forward(None, {"labels": labels, "weights": torch.tensor([0.5, 0.5, 1.0])})
    assert [sample["weights"].tolist() for sample in seen] == [[1, 3, 3], [0.5, 1.5, 3]]


# Registration.


def test_names_are_taken_once(monkeypatch):
    monkeypatch.setattr(objective, "OBJECTIVES", dict(objective.OBJECTIVES))
    causal = objective.OBJECTIVES["causal"]
    objective.register_objective("own", causal)
    objective.register_objective("own", causal)
    with pytest.raises(UserError, match="there is an objective masked already"):
        objective.register_objective("masked", causal)
    monkeypatch.setattr(rules, "OWN_RULES", {})
    rules.register_rule("own", print)
    with pytest.raises(UserError, match="there is a rule own already"):
        rules.register_rule("own", repr)


def test_a_family(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", list(families.FAMILIES))
    bert = families.BERT
    own = type(bert)(**{**vars(bert), "name": "Own", "model_types": ("own",), "signature": r"own\."})
    register_family(own)
    register_family(own)
    assert families.FAMILIES.count(own) == 1
    assert recognize(["own.layer"], {}) is own and recognize([], {"model_type": "own"}) is own
    with pytest.raises(UserError, match="there is a family BERT already"):
        register_family(type(bert)(**{**vars(bert), "models": "others"}))


def test_a_rule_is_applied_before_tokens_are_forced(monkeypatch):
    """Its arguments are those of the other rules."""
    seen = []
    monkeypatch.setattr(rules, "OWN_RULES", {"own": lambda *given: seen.append(given)})
    form = SimpleNamespace(pad=0, placeholder=1, sep=2, cls=3, max_target=9)
    options = SimpleNamespace(
        **dict.fromkeys(("max_len_a", "min_len", "no_repeat_ngram_size"), 0),
        **{"never_generated": (1,), "never_blocked": (), "max_len_b": 5, "keep_unfinished": False},
    )
    made = rules.TokenRules(form, options, torch.tensor([[3, 5, 2]]), None)
    given = (torch.zeros(1, 1, 6), torch.zeros(1, 1, 0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    made.apply(*given)
    (arguments,) = seen
    assert arguments[0] is given[0] and arguments[3] is None


def test_a_criterion_that_is_not_known():
    """The checkpoint of an own loss is generated from without its plugin; validation names what is missing."""
    with pytest.raises(UserError, match=r"--criterion own_loss is not known: .* --user-dir"):
        parts._build_criterion(None, SimpleNamespace(_name="own_loss"), None)
