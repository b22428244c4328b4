"""`FusionOptions`: which fusions the optimizer of transformers makes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from enum import Enum


class AttentionMaskFormat:
    """Formats of attention masks in fused ops. Fused ops here always add the model's own mask."""

    MaskIndexEnd = 0
    MaskIndexEndAndStart = 1
    AttentionMask = 2
    NoMask = 3


class AttentionOpType(Enum):
    """Ops that attention is fused into."""

    Attention = "Attention"
    MultiHeadAttention = "MultiHeadAttention"
    GroupQueryAttention = "GroupQueryAttention"
    PagedAttention = "PagedAttention"

    def __str__(self) -> str:
        return self.value


_DIFFUSION = ("unet", "vae", "clip")
# Flags of the command line that turn an option off.
_DISABLING = (
    "gelu", "layer_norm", "attention", "rotary_embeddings", "skip_layer_norm", "embed_layer_norm",
    "bias_skip_layer_norm", "bias_gelu", "shape_inference",
)  # fmt: skip
_OF_DIFFUSION = (
    "nhwc_conv", "group_norm", "skip_group_norm", "bias_splitgelu", "packed_qkv", "packed_kv",
    "bias_add",
)  # fmt: skip


class FusionOptions:
    """Fusions by name; all attributes may be changed."""

    def __init__(self, model_type: str) -> None:
        self.enable_gelu = True
        self.enable_layer_norm = True
        self.enable_attention = True
        self.enable_rotary_embeddings = True
        self.use_multi_head_attention = False
        self.disable_multi_head_attention_bias = False
        self.enable_skip_layer_norm = True
        self.enable_embed_layer_norm = model_type not in ("clip", "qwen3")
        self.enable_bias_skip_layer_norm = True
        self.enable_bias_gelu = True
        self.enable_gelu_approximation = False
        self.enable_qordered_matmul = True
        self.enable_shape_inference = True
        self.enable_gemm_fast_gelu = False
        self.group_norm_channels_last = True
        self.attention_mask_format = AttentionMaskFormat.AttentionMask
        if model_type == "bert":
            self.attention_mask_format = AttentionMaskFormat.MaskIndexEnd
        elif model_type in ("vit", "qwen3"):
            self.attention_mask_format = AttentionMaskFormat.NoMask
        self.attention_op_type: AttentionOpType | None = None
        if model_type in _DIFFUSION:
            for name in _OF_DIFFUSION:
                setattr(self, f"enable_{name}", True)

    def use_raw_attention_mask(self, use_raw_mask: bool = True) -> None:
        """Use masks of two dims, or sequence lengths."""
        formats = AttentionMaskFormat
        self.attention_mask_format = formats.AttentionMask if use_raw_mask else formats.MaskIndexEnd

    def disable_attention_mask(self) -> None:
        """Use no mask."""
        self.attention_mask_format = AttentionMaskFormat.NoMask

    def set_attention_op_type(self, attn_op_type: AttentionOpType) -> None:
        """Choose the op that attention is fused into."""
        self.attention_op_type = attn_op_type

    @staticmethod
    def parse(args: Namespace) -> FusionOptions:
        """Return the options of a command line, or an object of its flags; absent ones are off."""
        options = FusionOptions(args.model_type)

        def has(flag: str) -> bool:
            return bool(getattr(args, flag, False))

        diffusion = _OF_DIFFUSION if args.model_type in _DIFFUSION else ()
        for name in (*_DISABLING, *diffusion):
            if has(f"disable_{name}"):
                setattr(options, f"enable_{name}", False)
        options.use_multi_head_attention |= has("use_multi_head_attention")
        options.enable_gelu_approximation |= has("enable_gelu_approximation")
        options.enable_gemm_fast_gelu |= has("enable_gemm_fast_gelu")
        if has("use_mask_index") or has("use_raw_attention_mask"):
            options.use_raw_attention_mask(has("use_raw_attention_mask"))
        if has("no_attention_mask"):
            options.disable_attention_mask()
        options.group_norm_channels_last = not has("use_group_norm_channels_first")
        return options

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the flags that `parse` reads to a command line."""
        for name in (*_DISABLING, *_OF_DIFFUSION):
            text = f"no fusion of {name.replace('_', ' ')}"
            parser.add_argument(f"--disable_{name}", action="store_true", help=text)
        for name in (
            "enable_gelu_approximation", "enable_gemm_fast_gelu", "use_mask_index",
            "use_raw_attention_mask", "no_attention_mask", "use_multi_head_attention",
            "use_group_norm_channels_first",
        ):  # fmt: skip
            parser.add_argument(f"--{name}", action="store_true", help=name.replace("_", " "))
