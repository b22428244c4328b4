"""Layers of convolution networks, against the FMA limit or memory.

python -m bench.conv [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench.steps import Array, Case, Made, floats, main, one, parser

KERNELS: Final = (
    "conv_f32", "conv_winograd_f32", "conv_depthwise_f32", "conv_transpose_f32",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: image, weights, stride."""

    name: str
    size: int  # of the image, along both axes
    channels: int
    maps: int
    kernel: int
    stride: int = 1
    group: int = 1
    op: str = "Conv"

    def attrs(self) -> dict[str, Any]:
        pad = self.kernel // 2 if self.op == "Conv" and self.kernel % 2 else 0
        return {"strides": [self.stride] * 2, "pads": [pad] * 4, "group": self.group}

    def weights(self) -> Array:
        shape = (self.maps, self.channels // self.group)
        if self.op == "ConvTranspose":
            shape = (self.channels, self.maps // self.group)
        return floats(*shape, self.kernel, self.kernel)

    def made(self) -> Made:
        x = floats(1, self.channels, self.size, self.size)
        return one(self.op, {"x": x}, lambda i: [self.weights()], **self.attrs())

    @property
    def family(self) -> str:
        """What the layer is held against others as."""
        if self.op == "ConvTranspose":
            return "transposed"
        if self.group == self.channels:
            return "depthwise"
        return "1x1" if self.kernel == 1 else "grouped" if self.group > 1 else "convolution"

    def case(self) -> Case:
        text = f"{self.name} {self.size}² {self.channels}->{self.maps}"
        goal = 0.9 if self.kernel == 1 and (self.size // self.stride) ** 2 >= 64 else 0.8
        return Case(self.family, text, KERNELS, self.made, goal)


LAYERS: Final = (
    Layer("resnet first", 224, 3, 64, 7, 2),
    Layer("resnet 3x3", 56, 64, 64, 3),
    Layer("resnet 1x1", 56, 64, 256, 1),
    Layer("resnet 1x1", 56, 256, 64, 1),
    Layer("resnet 3x3/2", 56, 128, 128, 3, 2),
    Layer("resnet 3x3", 28, 128, 128, 3),
    Layer("resnet 1x1/2", 56, 256, 512, 1, 2),
    Layer("resnet 1x1", 28, 512, 128, 1),
    Layer("resnet 3x3", 14, 256, 256, 3),
    Layer("resnet 1x1", 14, 1024, 256, 1),
    Layer("resnet 3x3", 7, 512, 512, 3),
    Layer("resnet 1x1", 7, 512, 2048, 1),
    Layer("mobile first", 224, 3, 32, 3, 2),
    Layer("mobile 1x1", 112, 32, 16, 1),
    Layer("mobile 1x1", 112, 16, 96, 1),
    Layer("mobile 1x1", 56, 24, 144, 1),
    Layer("mobile 1x1", 56, 144, 24, 1),
    Layer("mobile 1x1", 14, 384, 64, 1),
    Layer("mobile 1x1", 7, 960, 160, 1),
    Layer("mobile dw", 112, 32, 32, 3, 1, 32),
    Layer("mobile dw/2", 112, 96, 96, 3, 2, 96),
    Layer("mobile dw", 56, 144, 144, 3, 1, 144),
    Layer("mobile dw", 28, 192, 192, 3, 1, 192),
    Layer("mobile dw", 14, 384, 384, 3, 1, 384),
    Layer("mobile dw", 7, 960, 960, 3, 1, 960),
    Layer("efficient dw", 28, 240, 240, 5, 1, 240),
    Layer("efficient dw/2", 56, 144, 144, 5, 2, 144),
    Layer("convnext dw", 56, 96, 96, 7, 1, 96),
    Layer("convnext dw", 14, 384, 384, 7, 1, 384),
    Layer("yolo first", 640, 3, 16, 3, 2),
    Layer("yolo 3x3/2", 320, 16, 32, 3, 2),
    Layer("yolo 3x3", 160, 16, 16, 3),
    Layer("yolo 3x3", 80, 32, 32, 3),
    Layer("yolo 3x3", 80, 80, 80, 3),
    Layer("yolo 3x3", 40, 64, 64, 3),
    Layer("yolo 3x3", 20, 128, 128, 3),
    Layer("unet 3x3", 256, 32, 32, 3),
    Layer("unet 3x3", 128, 64, 64, 3),
    Layer("unet 3x3", 16, 512, 512, 3),
    Layer("unet up", 16, 512, 256, 2, 2, 1, "ConvTranspose"),
    Layer("unet up", 128, 64, 32, 2, 2, 1, "ConvTranspose"),
    Layer("resnext 3x3", 56, 128, 128, 3, 1, 32),
    Layer("regnet 3x3", 28, 192, 192, 3, 1, 8),
)  # fmt: skip


def cases() -> list[Case]:
    """All layers."""
    return [layer.case() for layer in LAYERS]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
