"""The baselines of `generate.py`: decoding as in the original program, and `generate` of `transformers`.

Both need `transformers`. They are apart from `generation_systems.py`, so that this package is measured without
`transformers` in memory.
"""

from collections.abc import Callable, Collection

import torch
import transformers
from generation_systems import CLS, CONFIGURATIONS, PAD, SEP, Decode, Setting
from original_decoding import OriginalDecoder
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import write
from s2sft_fairseq.checkpoints.families.bert import BERT, bert_config
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES

transformers.logging.set_verbosity_error()


def original(setting: Setting, model: UnilmModel, measured: Collection[int] | None = None) -> Decode:
    """Return decoding as in the original program, with the weights of our model."""
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    config = transformers.BertConfig(**bert_config(sizes), vocab_size=setting.vocab)
    weights = write(BERT, {name: value.detach() for name, value in model.state_dict().items()}, sizes)
    # Made on the meta device and then given our model's tensors, or views of them: no weight is in memory twice.
    with torch.device("meta"):
        bert = transformers.BertForMaskedLM(config)
    bert.load_state_dict(weights, strict=False, assign=True)
    bert.tie_weights()
    if missing := [name for name, parameter in bert.named_parameters() if parameter.is_meta]:
        raise RuntimeError(f"BERT has weights that our model lacks: {', '.join(missing)}")
    decoder = OriginalDecoder(bert.eval(), setting.form, beam=setting.beam, steps=setting.steps, measured=measured)
    return lambda source, tick: decoder(source, tick)[0]


def bert2bert(setting: Setting, dtype: torch.dtype = torch.float32) -> Decode:
    """Return decoding with `transformers`' cache, by another model: BERT encoder and BERT decoder with cross-attention.

    Its weights are random too. Encoder and decoder each have the size of our model.
    """
    torch.manual_seed(setting.seed)
    sizes = {**SIZES, **CONFIGURATIONS[setting.config], "max_positions": setting.positions}
    config = {**bert_config(sizes), "vocab_size": setting.vocab}
    model = transformers.EncoderDecoderModel(
        transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.BertConfig(**config),
            transformers.BertConfig(**config, is_decoder=True, add_cross_attention=True),
        )
    )
    model = model.to(setting.device, dtype).eval()
    options = transformers.GenerationConfig(
        decoder_start_token_id=CLS,
        bos_token_id=CLS,
        eos_token_id=SEP,
        pad_token_id=PAD,
        num_beams=setting.beam,
        min_new_tokens=setting.steps,
        max_new_tokens=setting.steps,
        do_sample=False,
        use_cache=True,
    )

    def decode(source: Tensor, tick: Callable[[], None]) -> Tensor:
        hook = model.decoder.register_forward_pre_hook(lambda *_: tick())
        try:
            output = model.generate(source, attention_mask=(source != PAD).long(), generation_config=options)
        finally:
            hook.remove()
        return output[:, 1:]

    return decode
