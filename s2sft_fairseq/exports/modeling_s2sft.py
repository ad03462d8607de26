"""One Transformer that reads a source and generates its target (UniLM, s2s-ft, UniLMv2, ERNIE-GEN).

This file needs only PyTorch and transformers. A copy is in each exported folder, next to the weights that it loads:

    model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER, trust_remote_code=True)
    model.generate(**tokenizer(["..."], return_tensors="pt", padding=True, truncation=True), num_beams=5)

The model reads the source once, with full attention, and keeps the keys and values of each layer. For the rest of
transformers, this is the *encoder*. Each decoding step then reads two tokens of each hypothesis: the newest one as
content, whose keys and values are kept, and after it a placeholder, such as ``[MASK]``, at which the next token is
predicted. The keys and values of placeholders are dropped. A causal model predicts the next token at the newest one,
and needs no placeholder.

* A source token sees the whole source; if sources are causal, as those of language models are, the tokens up to itself.
* Content sees the source, the content before it, and itself.
* A placeholder sees the source, the content before it, and itself.

The model can also read many target tokens in one pass, each with its placeholder: the forward pass with ``labels`` does
so. The positions of a target continue those of its source, without padding.

Letters in shapes: N sources, R hypotheses (R / N consecutive ones for each source), S positions of a source, A new
tokens of a hypothesis, Q queries (A, or with placeholders 2 A), K keys, H width, h heads, g heads of keys and values,
d width of a head, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, GenerationMixin, LogitsProcessor, LogitsProcessorList, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}
BIASED = ("attention", "fc1", "fc2", "norm", "head")
"""The parts that have biases in BERT."""
KNOWLEDGE_ROLE = 2
"""The role of the knowledge, the first field of a dialogue. The two speakers have the roles 0 and 1."""


class S2SFTConfig(PretrainedConfig):
    """The sizes and variants of encoders and language models, and the layout of source and target."""

    model_type = "s2sft"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        max_position_embeddings: int = 512,
        layer_norm_eps: float = 1e-12,
        activation: str = "gelu",
        dropout: float = 0.1,
        *,
        num_segments: int = 2,  # rows of the segment embedding
        num_roles: int = 0,  # rows of the role embedding; dialogues have roles and turns in place of segments
        num_turns: int = 0,  # rows of the turn embedding
        relative_position_bins: int = 0,  # of UniLMv2's relative position bias; 0: no such bias
        max_relative_position: int = 128,
        embedding_size: int = 0,  # width of narrower embeddings, as in ELECTRA; 0: the width of the layers
        embedding_scale: float = 1.0,  # of the token embeddings, as in Gemma; not of the output matrix
        norm: str = "layer",  # "rms": RMSNorm
        layer_norm_position: str = "post",  # "pre", as in ModernBERT, or "both" (before and after), as in Gemma
        embedding_norm: bool = True,
        gated: bool = False,
        biases: Sequence[str] = BIASED,  # "qkv": of attention, but not of its output, as in Qwen2
        num_key_value_heads: int = 12,  # fewer than `num_attention_heads`: groups of heads share keys and values
        head_dim: int = 64,
        query_key_norm: str = "none",  # "rms": RMSNorm of the queries and keys of each head, as in Qwen3
        lm_head: str = "bert",  # "plain": no hidden layer
        output_matrix: str = "tied",  # "own": not the token embedding
        output_bias: bool = True,
        rotary_base: float = 0.0,  # of rotary positions; 0: a position embedding
        rotary_scaling: str = "",  # of global layers: linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL
        local_rotary_base: float = 0.0,  # of local layers; 0: `rotary_base`
        local_attention_window: int = 0,  # local layers see half as many positions on each side
        global_attention_every: int = 1,  # period of the global layers
        first_global_layer: int = 0,
        unrotated_layers_every: int = 0,  # period of the layers without positions, as in SmolLM3; 0: none
        source_visibility: str = "both",  # directions in which sources are read; "causal": as language models read
        starts_with: str | None = None,  # first content of a target: "sep" (causal), "cls" or None
        placeholder_token_id: int = 103,
        source_segments: Sequence[int] = (0,),  # of the fields of a source; further fields have the last one
        alternate_segments: bool = False,  # repeat `source_segments` in turn, so that the last field has the last one
        target_segment: int = 1,
        placeholder_segment: int = 1,
        max_source_positions: int = 464,
        keep_unfinished: bool = False,  # a target may end at the maximum length without the final separator
        pad_token_id: int = 0,
        sep_token_id: int = 102,
        **others: Any,
    ) -> None:
        own = {name: value for name, value in locals().items() if name not in ("self", "others", "__class__")}
        special = {name: own.pop(name) for name in ("pad_token_id", "sep_token_id")}
        for name, value in own.items():
            setattr(self, name, value)
        super().__init__(**{"is_encoder_decoder": True, "tie_word_embeddings": False, **special, **others})


def make_norm(config: S2SFTConfig, width: int) -> nn.Module:
    """Return a norm of states (..., width)."""
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.layer_norm_eps)
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias="norm" in config.biases)


class Embeddings(nn.Module):
    """The sum of the embeddings, a norm, and a projection if the layers have another width."""

    def __init__(self, config: S2SFTConfig) -> None:
        super().__init__()
        width = config.embedding_size or config.hidden_size

        def table(rows: int) -> nn.Embedding | None:
            return nn.Embedding(rows, width) if rows else None

        self.tokens = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.positions = table(0 if config.rotary_base else config.max_position_embeddings)
        self.segments = table(config.num_segments)
        self.roles, self.turns = table(config.num_roles), table(config.num_turns)
        self.scale = config.embedding_scale
        self.layer_norm = make_norm(config, width) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        is_narrow = width != config.hidden_size
        self.projection = nn.Linear(width, config.hidden_size, bias=bool(config.biases)) if is_narrow else None

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Embed ids (..., A) as (..., A, H)."""
        x = self.tokens(tokens) * self.scale
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(segments)
        if self.roles is not None and self.turns is not None:
            roles = self.roles.num_embeddings
            x = x + self.roles(segments % roles) + self.turns(segments // roles)
        x = self.dropout(self.layer_norm(x))
        return x if self.projection is None else self.projection(x)


class RelativePositionBias(nn.Module):
    """T5's bias of the attention scores for each bin of distances, shared by all layers."""

    def __init__(self, heads: int, bins: int, max_distance: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, bins))
        self.max_distance = max_distance

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Look the bias up, (R, Q), (R, K) -> (R, h, Q, K)."""
        distance = key_positions.unsqueeze(1) - query_positions.unsqueeze(2)
        half = self.weight.size(1) // 2  # half of the bins for each direction
        exact = half // 2  # shorter distances have a bin each, longer ones share bins of growing width
        magnitude = distance.abs()
        scale = (half - exact) / math.log(self.max_distance / exact)
        coarse = exact + (torch.log(magnitude.clamp(min=exact).float() / exact) * scale).long()
        bins = torch.where(magnitude < exact, magnitude, coarse.clamp(max=half - 1)) + half * (distance > 0)
        return functional.embedding(bins, self.weight.t()).permute(0, 3, 1, 2)


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the angles at some positions, each (..., 1, d / 2)."""


def scaled(frequencies: Tensor, scaling: str) -> Tensor:
    """Return the frequencies of rotary positions (d / 2,) for longer texts than those that they were made for."""
    kind, *numbers = scaling.split(":")
    if kind == "":
        return frequencies
    factor, *others = map(float, numbers)
    if kind == "linear":
        return frequencies / factor
    # Llama 3: wavelengths beyond ORIGINAL / LOW are divided, those below ORIGINAL / HIGH stay, others are between.
    low, high, original = others
    periods = original * frequencies / (2 * math.pi)
    share = ((periods - low) / (high - low)).clamp(0, 1)
    return share * frequencies + (1 - share) * frequencies / factor


class Pattern(NamedTuple):
    """The rotary positions and the window of a layer. Layers with the same pattern share rotations and biases."""

    rotary_base: float
    window: int = 0
    scaling: str = ""

    @classmethod
    def of(cls, config: S2SFTConfig, index: int) -> "Pattern":
        """Return the pattern of layer ``index``."""
        every = config.unrotated_layers_every
        is_unrotated = every > 0 and (index + 1) % every == 0
        if index % config.global_attention_every == config.first_global_layer:
            return cls(0.0) if is_unrotated else cls(config.rotary_base, scaling=config.rotary_scaling)
        base = 0.0 if is_unrotated else config.local_rotary_base or config.rotary_base
        return cls(base, config.local_attention_window)

    def rotation(self, positions: Tensor, head_dim: int) -> Rotation | None:
        """Return the rotation at positions (...), in float32."""
        if not self.rotary_base:
            return None
        exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
        angles = positions[..., None, None] * scaled(self.rotary_base**-exponents, self.scaling)
        return angles.cos(), angles.sin()


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys by their positions, (R, Q, h, d) -> (R, Q, h, d)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


KeysValues = tuple[Tensor, Tensor]
"""Keys and values, both (R, g, K, d); (N, g, K, d) if the hypotheses of a source share them."""
MetBy = Callable[[Tensor, Tensor], Sequence[KeysValues]]
"""A function from the keys and values of a layer's new tokens to all that these attend to, in several stretches."""


def shared_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply (R, h, Q, X) by (N, g, X, Y) to (R, h, Q, Y).

    R / N consecutive rows share the second factor, and so do h / g consecutive heads.
    """
    if a.size(1) > b.size(1):
        b = b.repeat_interleave(a.size(1) // b.size(1), dim=1)
    if len(a) == len(b):
        return a @ b
    # (R, h, Q, X) -> (N, R / N, h, Q, X), so that each source needs one product of R / N * Q rows
    return torch.einsum("nkhqx,nhxy->nkhqy", a.unflatten(0, (len(b), -1)), b).flatten(0, 1)


class Attention(nn.Module):
    """Multi-head attention to several stretches of keys, with one softmax over all."""

    def __init__(self, config: S2SFTConfig) -> None:
        super().__init__()
        width, head_dim, biases = config.hidden_size, config.head_dim, config.biases
        self.heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.of_qkv = (self.heads, groups, groups)
        self.qkv = nn.Linear(width, sum(self.of_qkv) * head_dim, bias="attention" in biases or "qkv" in biases)
        self.output = nn.Linear(self.heads * head_dim, width, bias="attention" in biases)
        is_normal = config.query_key_norm == "none"
        norm = nn.Identity if is_normal else partial(nn.RMSNorm, head_dim, eps=config.layer_norm_eps)
        self.query_norm, self.key_norm = norm(), norm()

    def forward(self, x: Tensor, rotation: Rotation | None, biases: Sequence[Tensor], met_by: MetBy) -> Tensor:
        """Attend.

        Args:
            x: the states of the tokens (R, Q, H).
            rotation: the rotation at their positions; None: no rotary positions.
            biases: added to the scores of each stretch (R, 1 or h, Q, K); -inf where a query does not see a key.
            met_by: returns the keys and values of each stretch.

        Returns:
            The output (R, Q, H).
        """
        # (R, Q, H) -> (R, Q, h + 2 g, d), and its parts
        projected = self.qkv(x).unflatten(-1, (sum(self.of_qkv), -1))
        query, key, value = projected.split(self.of_qkv, dim=2)
        query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        # (R, Q, h, d) -> (R, h, Q, d)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        query = query / math.sqrt(query.size(-1))
        stretches = met_by(key, value)
        scores = [
            shared_product(query, keys.transpose(2, 3)) + bias
            for (keys, _), bias in zip(stretches, biases, strict=True)
        ]
        weights = torch.cat(scores, dim=-1).softmax(-1).split([each.size(-1) for each in scores], dim=-1)
        parts = [shared_product(part, values) for part, (_, values) in zip(weights, stretches, strict=True)]
        attended = sum(parts[1:], start=parts[0])
        # (R, h, Q, d) -> (R, Q, h d) -> (R, Q, H)
        return self.output(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection, and with norms before or after it."""

    def __init__(self, config: S2SFTConfig, index: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.post_norm, self.gated = config.layer_norm_position == "post", config.gated
        self.pattern = Pattern.of(config, index)
        self.attention = Attention(config)
        # The embeddings, the input of the first layer, may already be normalized.
        is_plain = not self.post_norm and config.embedding_norm and index == 0
        norm = partial(make_norm, config, width)
        self.attention_layer_norm = nn.Identity() if is_plain else norm()
        self.fc1 = nn.Linear(width, 2 * inner if config.gated else inner, bias="fc1" in config.biases)
        self.fc2 = nn.Linear(inner, width, bias="fc2" in config.biases)
        self.final_layer_norm = norm()
        has_output_norms = config.layer_norm_position == "both"
        self.attention_output_norm, self.ffn_output_norm = (
            norm() if has_output_norms else nn.Identity() for _ in range(2)
        )
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rotation: Rotation | None, biases: Sequence[Tensor], met_by: MetBy) -> Tensor:
        """Return the states of the next layer (R, Q, H); arguments as for `Attention.forward`."""
        normalised = x if self.post_norm else self.attention_layer_norm(x)
        x = x + self.dropout(self.attention_output_norm(self.attention(normalised, rotation, biases, met_by)))
        if self.post_norm:
            x = self.attention_layer_norm(x)
            return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))
        return x + self.dropout(self.ffn_output_norm(self.feed_forward(self.final_layer_norm(x))))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward network, (..., H) -> (..., H)."""
        hidden = self.fc1(x)
        if self.gated:
            hidden, gate = hidden.chunk(2, dim=-1)
            return self.fc2(self.activation(hidden) * gate)
        return self.fc2(self.activation(hidden))


class LMHead(nn.Module):
    """A dense layer, activation and norm, or nothing; then the token embedding or an own matrix as output matrix."""

    def __init__(self, config: S2SFTConfig) -> None:
        super().__init__()
        width = config.embedding_size or config.hidden_size
        self.is_plain = config.lm_head == "plain"
        if not self.is_plain:
            self.dense = nn.Linear(config.hidden_size, width, bias="head" in config.biases)
            self.activation = ACTIVATIONS[config.activation]
            self.layer_norm = make_norm(config, width)
        is_own = config.output_matrix == "own"
        self.weight = nn.Parameter(torch.zeros(config.vocab_size, width)) if is_own else None
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        """Score the vocabulary, (..., H) -> (..., V)."""
        if not self.is_plain:
            x = self.layer_norm(self.activation(self.dense(x)))
        return functional.linear(x, token_embedding if self.weight is None else self.weight, self.bias)


@dataclass
class SourceOutput(ModelOutput):
    """The result of reading the sources.

    `generate` repeats tensors for each hypothesis of a source, but does not change tuples. So the hypotheses of a
    source share its keys and values, which are not copied when hypotheses are reordered.
    """

    last_hidden_state: Tensor
    """(N, S, H), after `generate` repeated it (R, S, H)."""
    source_mask: Tensor = None
    """Which positions hold a token of the source (N, S), after `generate` repeated it (R, S)."""
    keys_values: tuple[KeysValues, ...] = None
    """The keys and values of each layer, both (N, g, S, d)."""


class SourceReader:
    """The encoder for `generate`: a view of the model, without weights of its own."""

    main_input_name = "input_ids"

    def __init__(self, model: "S2SFTForConditionalGeneration") -> None:
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> SourceOutput:
        """Read sources; see `S2SFTForConditionalGeneration.read`."""
        return self.model.read(input_ids, attention_mask)

    __call__ = forward


class EndAtLimit(LogitsProcessor):
    """Force the separator as the last token at the maximum length, and keep its score."""

    def __init__(self, end: int, max_length: int) -> None:
        self.end, self.max_length = end, max_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask all scores but the separator's if only one token is left."""
        if input_ids.size(1) < self.max_length - 1:
            return scores
        is_end = torch.arange(scores.size(1), device=scores.device) == self.end
        return scores.masked_fill(~is_end, -math.inf)


class S2SFTForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """A model that reads sources, and writes targets with transformers' own `generate`."""

    config_class = S2SFTConfig
    main_input_name = "input_ids"

    def __init__(self, config: S2SFTConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        heads, bins = config.num_attention_heads, config.relative_position_bins
        self.relative_position = RelativePositionBias(heads, bins, config.max_relative_position) if bins else None
        layers = (Layer(config, index) for index in range(config.num_hidden_layers))
        self.layers: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]  # it says Module of its items
        is_post = config.layer_norm_position == "post"
        self.layer_norm = nn.Identity() if is_post else make_norm(config, config.hidden_size)
        self.lm_head = LMHead(config)
        self.has_placeholders = config.starts_with != "sep"
        # `generate` always begins with a start token. If the content of targets has none, no query sees that token.
        self.unseen = int(config.starts_with is None)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.embeddings.tokens

    def get_encoder(self, *_: Any, **__: Any) -> SourceReader:
        """Return the encoder that reads the sources."""
        return SourceReader(self)

    def read(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SourceOutput:
        """Read sources once, and keep the keys and values of each layer.

        Args:
            input_ids: the output of the tokenizer, ``[CLS] source [SEP]``, padded on either side (N, S).
            attention_mask: 0 for padding (N, S); None: padding has the id of the padding token.

        Raises:
            ValueError: a source is longer than ``max_source_positions``, the limit of the training.
        """
        config = self.config
        real = input_ids != config.pad_token_id if attention_mask is None else attention_mask.bool()
        if not self.has_placeholders:
            # The last separator is the first token of the target, not part of the source.
            is_last = real.flip(1).long().cumsum(1).flip(1) == 1
            real = real & ~(is_last & (input_ids == config.sep_token_id))
        if (longest := int(real.sum(1).max())) > config.max_source_positions:
            raise ValueError(
                f"a source may have {config.max_source_positions} positions, but one has {longest}: "
                "tokenizer(..., truncation=True) cuts it"
            )
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        visible = real.unsqueeze(1).expand(-1, input_ids.size(1), -1)
        if config.source_visibility == "causal":
            # Padding sees itself: a query that sees nothing would have the weights NaN.
            itself = torch.eye(input_ids.size(1), dtype=torch.bool, device=real.device)
            visible = visible.tril() | itself
        kept: list[KeysValues] = []

        def met_by(_: int, keys: Tensor, values: Tensor) -> list[KeysValues]:
            kept.append((keys, values))
            return [(keys, values)]

        segments = self.segments_of(input_ids, real)
        states = self.run(input_ids, positions, segments, [(visible, positions)], met_by)
        return SourceOutput(states, real, tuple(kept))

    def segments_of(self, source: Tensor, real: Tensor) -> Tensor:
        """Return the segment ids of sources (N, S). Each field of a source ends with a separator."""
        config = self.config
        separators = ((source == config.sep_token_id) & real).long()
        field = separators.cumsum(1) - separators
        count = separators.sum(1, keepdim=True) + int(not self.has_placeholders)
        if config.num_roles:
            # Turn 1, just before the target, has role 1, turn 2 has role 0, and so on; see `Embeddings`.
            back = count - field
            spoken = back.clamp(max=config.num_turns - 1) * config.num_roles + back % 2
            return torch.where(field == 0, KNOWLEDGE_ROLE, spoken)
        ids = torch.tensor(config.source_segments, device=source.device)
        row = (field - count) % len(ids) if config.alternate_segments else field.clamp(max=len(ids) - 1)
        return ids[row]

    def write(self, new: Tensor, sources: SourceOutput, cache: Cache | None = None) -> Tensor:
        """Read new tokens of hypotheses, and predict the token after each of them.

        Args:
            new: the tokens (R, A).
            sources: the result of `read`.
            cache: keys and values of earlier content, to which those of the new tokens are added; None: no earlier
                content.

        Returns:
            Logits (R, A, V).
        """
        config, (rows, count) = self.config, new.shape
        past = 0 if cache is None else cache.get_seq_length()
        places = torch.arange(past + count, device=new.device) - self.unseen
        # (R, past + A)
        content = sources.source_mask.sum(1, keepdim=True) + places
        source = (sources.source_mask.long().cumsum(1) - 1).clamp(min=0)
        tokens, positions, places_of_queries = new, content[:, past:], places[past:]
        segments = torch.full_like(new, config.target_segment)
        if self.has_placeholders:
            tokens = torch.cat([new, torch.full_like(new, config.placeholder_token_id)], dim=1)
            positions = torch.cat([positions, positions + 1], dim=1)
            places_of_queries = places_of_queries.repeat(2)
            segments = torch.cat([segments, torch.full_like(new, config.placeholder_segment)], dim=1)
        # Visibility: all queries see the source and the content up to their own place; a placeholder also sees itself.
        queries = tokens.size(1)
        given = sources.source_mask.unsqueeze(1).expand(-1, queries, -1)
        before = ((places <= places_of_queries.unsqueeze(1)) & (places >= 0)).expand(rows, -1, -1)
        itself = torch.eye(queries, dtype=torch.bool, device=new.device)[:, count:].expand(rows, -1, -1)

        stretches = [(given, source), (before, content), (itself, positions[:, count:])]

        def met_by(index: int, keys: Tensor, values: Tensor) -> list[KeysValues]:
            kept = keys[:, :, :count], values[:, :, :count]
            kept = kept if cache is None else cache.update(*kept, index)
            return [sources.keys_values[index], kept, (keys[:, :, count:], values[:, :, count:])]

        states = self.run(tokens, positions, segments, stretches, met_by)
        return self.lm_head(states[:, -count:], self.embeddings.tokens.weight)

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        stretches: Sequence[tuple[Tensor, Tensor]],
        met_by: Callable[[int, Tensor, Tensor], Sequence[KeysValues]],
    ) -> Tensor:
        """Return the states of the last layer (R, Q, H).

        Args:
            tokens: ids of the tokens (R, Q).
            positions: ids of their positions (R, Q).
            segments: ids of their segments (R, Q).
            stretches: for each stretch of keys, which keys each query sees (R, Q, K), and their positions (R, K).
            met_by: a function from the index of a layer and the keys and values of its new tokens to those of each
                stretch.
        """
        plans = {
            pattern: (
                pattern.rotation(positions, self.config.head_dim),
                [self.bias(pattern, visible, positions, keys) for visible, keys in stretches],
            )
            for pattern in {layer.pattern for layer in self.layers}
        }
        x = self.embeddings(tokens, positions, segments)
        for index, layer in enumerate(self.layers):
            x = layer(x, *plans[layer.pattern], partial(met_by, index))
        return self.layer_norm(x)

    def bias(self, pattern: Pattern, visible: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias of the attention scores, (R, Q, K), (R, Q), (R, K) -> (R, 1 or h, Q, K)."""
        if pattern.window:
            distance = key_positions.unsqueeze(1) - query_positions.unsqueeze(2)
            visible = visible & (distance.abs() <= pattern.window // 2)
        hidden = ~visible.unsqueeze(1)
        if self.relative_position is not None:
            return self.relative_position(query_positions, key_positions).masked_fill(hidden, -math.inf)
        return torch.zeros_like(hidden, dtype=self.dtype).masked_fill(hidden, -math.inf)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: SourceOutput | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Predict the token after each token of targets.

        Args:
            input_ids: sources, see `read`; not needed with ``encoder_outputs``.
            attention_mask: the mask of the sources, see `read`.
            decoder_input_ids: the new tokens of targets (R, A), beginning with the start token; None: ``labels``,
                shifted right.
            encoder_outputs: the result of `read`.
            past_key_values: the keys and values of earlier tokens.
            labels: the tokens to predict (R, A), -100 to ignore; the mean loss is returned, too.
            token_type_ids: ignored: the segments follow from the separators, as in training.
        """
        if encoder_outputs is None:
            encoder_outputs = self.read(input_ids, attention_mask)
        if decoder_input_ids is None:
            first = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
            decoder_input_ids = torch.cat([first, labels[:, :-1]], dim=1)
            decoder_input_ids = decoder_input_ids.masked_fill(decoder_input_ids == -100, self.config.pad_token_id)
        # `generate` passes a cache for the target and one for the source; the latter is not needed.
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        logits = self.write(decoder_input_ids, encoder_outputs, cache)
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(loss=loss, logits=logits, past_key_values=past_key_values)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Cache | None = None,
        encoder_outputs: SourceOutput | None = None,
        **kwargs: Any,  # with this name, `generate` accepts all arguments of `forward`
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the tokens that the cache does not hold yet."""
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        new = {"decoder_input_ids": input_ids[:, past:], "encoder_outputs": encoder_outputs}
        return {**new, "past_key_values": past_key_values}

    def _get_logits_processor(self, generation_config: Any, *arguments: Any, **options: Any) -> LogitsProcessorList:
        processors = super()._get_logits_processor(generation_config, *arguments, **options)
        if not self.config.keep_unfinished:
            processors.append(EndAtLimit(self.config.sep_token_id, generation_config.max_length))
        return processors
