"""The ops that are quantized, by format, as onnxruntime.quantization.registry has them."""

from __future__ import annotations

from typing import Final

from sardonyx.quantization import qdq_rules
from sardonyx.quantization.qop_rules import rules
from sardonyx.quantization.quant_types import QuantizationMode

IntegerOpsRegistry: Final = dict(rules(QuantizationMode.IntegerOps))
QLinearOpsRegistry: Final = dict(rules(QuantizationMode.QLinearOps))
QDQRegistry: Final = {name: qdq_rules.rule_of(name) for name in qdq_rules.op_types()}
CommonOpsRegistry: Final = {
    name: rule for name, rule in IntegerOpsRegistry.items() if QLinearOpsRegistry.get(name) is rule
}
