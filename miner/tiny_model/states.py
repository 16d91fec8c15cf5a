"""Last hidden states at a few positions only: what the warm start needs, in half of the work.

One token in twenty is learned from. The others matter only by the keys and values that they give,
so in the last layer, half of a network of two, nothing else is computed for them.
"""

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, apply_rotary_pos_emb


def states_at(model: Qwen3ForCausalLM, ids: Tensor, positions: Tensor) -> Tensor:
    """The model's last hidden states, normed, at some positions.

    Args:
        model: one without sliding windows.
        ids: token ids, shape (rows, tokens); what fills a row stands on its right.
        positions: index of tokens in their row, shape (rows, positions).

    Returns: shape (rows, positions, hidden size).
    """
    inner = model.model
    hidden = inner.embed_tokens(ids)
    rotary = inner.rotary_emb(hidden, torch.arange(ids.shape[1])[None])
    *early, last = inner.layers
    for layer in early:
        hidden = layer(hidden, position_embeddings=rotary)  # causal without a mask
    hidden_there = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
    hidden_there = hidden_there + _attention(last, hidden, hidden_there, positions, rotary)
    hidden_there = hidden_there + last.mlp(last.post_attention_layernorm(hidden_there))
    states: Tensor = inner.norm(hidden_there)
    return states


def _attention(
    layer: Qwen3DecoderLayer,
    hidden: Tensor,
    hidden_there: Tensor,
    positions: Tensor,
    rotary: tuple[Tensor, Tensor],
) -> Tensor:
    """Output of a layer's attention at `positions`, whose states before it are `hidden_there`."""
    attention, norm = layer.self_attn, layer.input_layernorm

    def heads(projected: Tensor) -> Tensor:  # (rows, tokens, size) -> (rows, tokens, heads, ...)
        return projected.view(*projected.shape[:2], -1, attention.head_dim)

    normed = norm(hidden)
    queries = attention.q_norm(heads(attention.q_proj(norm(hidden_there)))).transpose(1, 2)
    keys = attention.k_norm(heads(attention.k_proj(normed))).transpose(1, 2)
    values = heads(attention.v_proj(normed)).transpose(1, 2)
    _, keys = apply_rotary_pos_emb(keys, keys, *rotary)
    queries, _ = apply_rotary_pos_emb(queries, queries, *(part[0][positions] for part in rotary))
    seen = torch.arange(hidden.shape[1]) <= positions[..., None]
    mixed = torch.nn.functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=seen[:, None],
        scale=attention.scaling,
        enable_gqa=True,
    )
    added: Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return added
