"""Networks of transformers, torchvision and timm from their configurations, with random weights.

Widths are those of the published models, so that nodes have real sizes; depths are small, so that
all of them can be exported and run in minutes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

# Model types by the inputs that they take. Numbers of layers, in whatever words, become these.
_DEPTHS: Final = {
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_hidden_groups": 1, "vocab_size": 1000,
    "max_source_positions": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
# Of language models, whose published widths take gigabytes.
_WIDTHS: Final = {
    "hidden_size": 512, "n_embd": 512, "d_model": 512, "intermediate_size": 1536, "head_dim": 64,
    "num_attention_heads": 8, "n_head": 8, "n_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
ENCODERS: Final = (
    "albert bert big_bird convbert data2vec-text deberta deberta-v2 distilbert electra ernie "
    "flaubert ibert layoutlm megatron-bert mobilebert modernbert mpnet nystromformer "
    "rembert roberta roformer squeezebert xlm xlm-roberta xlnet camembert"
)
DECODERS: Final = (
    "gpt2 gpt_neo gpt_neox gptj opt bloom codegen falcon llama mistral qwen2 qwen3 gemma gemma2 "
    "phi phi3 stablelm olmo olmo2 cohere starcoder2 mpt persimmon granite glm mamba"
)
TRANSLATORS: Final = "t5 bart pegasus marian m2m_100 blenderbot-small"
IMAGES: Final = (
    "beit bit convnextv2 cvt deit dinov2 efficientnet focalnet hiera levit mobilenet_v1 mobilevit "
    "mobilevitv2 poolformer pvt pvt_v2 regnet segformer swiftformer swinv2 textnet vit_msn"
)
SOUNDS: Final = "wav2vec2 hubert wavlm unispeech sew sew-d data2vec-audio wav2vec2-conformer"
TORCHVISION: Final = (
    "alexnet deeplabv3_mobilenet_v3_large densenet121 efficientnet_v2_s fcn_resnet50 googlenet "
    "inception_v3 lraspp_mobilenet_v3_large maxvit_t mnasnet1_0 mobilenet_v3_large "
    "mobilenet_v3_small r2plus1d_18 regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d s3d "
    "shufflenet_v2_x1_0 squeezenet1_1 swin_v2_t vgg11_bn wide_resnet50_2"
)
TIMM: Final = (
    "botnet26t_256 cait_xxs24_224 coat_lite_tiny coatnet_0_rw_224 convmixer_768_32 "
    "crossvit_tiny_240 "
    "cspdarknet53 davit_tiny dla34 dpn68 eca_nfnet_l0 edgenext_xx_small efficientformer_l1 "
    "efficientvit_b0 efficientvit_m0 fastvit_t8 gernet_s ghostnet_100 gmlp_s16_224 hardcorenas_a "
    "hgnetv2_b0 hrnet_w18_small inception_next_tiny lcnet_050 levit_128s mambaout_femto "
    "mixer_s32_224 "
    "mixnet_s mobilenetv4_conv_small mobileone_s0 mvitv2_tiny nest_tiny nfnet_l0 pit_ti_224 "
    "pvt_v2_b0 repvgg_a0 res2net50_26w_4s resmlp_12_224 resnest14d rexnet_100 selecsls42 "
    "semnasnet_075 sequencer2d_s skresnet18 starnet_s1 swin_s3_tiny_224 tf_efficientnet_lite0 "
    "tiny_vit_5m_224 tinynet_a tnt_s_patch16_224 twins_pcpvt_small visformer_tiny volo_d1_224 "
    "vovnet39a xception41 xcit_nano_12_p16_224"
)
Example = dict[str, torch.Tensor]


class Positional(nn.Module):
    """A model of transformers that takes its inputs in order, and returns its first tensor."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """Return the first output."""
        result = self.model(**dict(zip(self.names, values, strict=True)), return_dict=False)
        first = result if isinstance(result, torch.Tensor) else result[0]
        return first if isinstance(first, torch.Tensor) else first[0]


def _configured(name: str) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(name)
    for key, value in _DEPTHS.items():
        if isinstance(getattr(config, key, None), int) or key.endswith("token_id"):
            setattr(config, key, value)
    if hasattr(config, "layer_types"):
        config.layer_types = config.layer_types[: _DEPTHS["num_hidden_layers"]]
    for key in ("attention_types", "attention_layers"):  # of GPT-Neo
        if getattr(config, key, None):
            setattr(config, key, [[["global", "local"], 1]] if key[-1] == "s" and "types" in key
                    else ["global", "local"])  # fmt: skip
    config.use_cache, config._attn_implementation = False, "eager"
    return config


def _ids(length: int) -> torch.Tensor:
    return torch.randint(3, 1000, (1, length))


def _text(auto: str, name: str) -> tuple[nn.Module, Example]:
    import transformers

    config = _configured(name)
    if auto == "AutoModelForCausalLM" and getattr(config, "hidden_size", 0) > 1024:
        for key in _WIDTHS.keys() & config.to_dict().keys():
            setattr(config, key, _WIDTHS[key])
    example = {"input_ids": _ids(64)}
    if name != "mamba":
        example["attention_mask"] = torch.ones(1, 64, dtype=torch.int64)
    return getattr(transformers, auto).from_config(config), example


def _translator(name: str) -> tuple[nn.Module, Example]:
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_config(_configured(name))
    return model, {"input_ids": _ids(64), "decoder_input_ids": _ids(16)}


def _image(name: str) -> tuple[nn.Module, Example]:
    import transformers

    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))
    size = getattr(model.config, "image_size", 224)
    return model, {"pixel_values": torch.randn(1, 3, *([size] * 2 if type(size) is int else size))}


def _sound(name: str) -> tuple[nn.Module, Example]:
    import transformers

    model = transformers.AutoModel.from_config(_configured(name))
    return model, {"input_values": torch.randn(1, 16000)}


def _torchvision(name: str) -> tuple[nn.Module, Example]:
    import torchvision

    sizes = {"r2plus1d_18": (8, 112, 112), "s3d": (16, 224, 224), "inception_v3": (299, 299)}
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    more |= {"weights_backbone": None} if name[:3] in ("dee", "fcn", "lra") else {}
    model = torchvision.models.get_model(name, weights=None, **more)
    return model, {"x": torch.randn(1, 3, *sizes.get(name, (224, 224)))}


def _timm(name: str) -> tuple[nn.Module, Example]:
    import timm

    model = timm.create_model(name, pretrained=False, exportable=True)
    return model, {"x": torch.randn(1, *model.default_cfg["input_size"])}


class First(nn.Module):
    """A network of which the first tensor is returned."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first output."""
        result = self.model(x)
        return result if isinstance(result, torch.Tensor) else next(iter(result.values()))


def _settled(model: nn.Module) -> nn.Module:
    """Return a model for inference whose norms and biases look trained."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval().requires_grad_(False)


def build(kind: str, name: str) -> tuple[nn.Module, Example]:
    """Return a network and an example of its inputs."""
    torch.manual_seed(0)
    model, example = _BUILDERS[kind](name)
    _settled(model)
    is_torch = kind in ("torchvision", "timm")
    return (First(model) if is_torch else Positional(model, list(example))).eval(), example


_BUILDERS: Final[dict[str, Callable[[str], tuple[nn.Module, Example]]]] = {
    "encoder": lambda name: _text("AutoModel", name),
    "decoder": lambda name: _text("AutoModelForCausalLM", name),
    "translator": _translator,
    "image": _image,
    "sound": _sound,
    "torchvision": _torchvision,
    "timm": _timm,
}
_NAMES: Final = {
    "encoder": ENCODERS, "decoder": DECODERS, "translator": TRANSLATORS, "image": IMAGES,
    "sound": SOUNDS, "torchvision": TORCHVISION, "timm": TIMM,
}  # fmt: skip


def networks() -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of every network."""
    for kind, names in _NAMES.items():
        for name in names.split():
            yield kind, name


# torchvision registers shapes of operators that only its compiled part has, which may be missing.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("_meta_registrations"))
