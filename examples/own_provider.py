"""A provider of your own: a device whose memory nobody else looks into, and a loader for it."""

import tempfile

import numpy as np
import onnx

import sardonyx
from sardonyx.place import DeviceProvider, No, Yes


class Memory:
    """A tensor on the device: a handle and a shape, as a driver would give them."""

    def __init__(self, array):
        self.secret, self.shape = array, array.shape


class Loader(sardonyx.DataLoader):
    """Reads weights straight from their file into the device's memory."""

    def can_load(self, device):
        return device == Acme.device

    def allocate(self, reference):
        return Memory(np.empty(reference.shape, reference.dtype.np))

    def load(self, reference, destination):
        if reference.path is None or reference.dtype.bits < 8:  # in no file, or packed there
            destination.secret[...] = reference.array()
            return
        into = destination.secret.reshape(-1).view(np.uint8)
        with open(reference.path, "rb", buffering=0) as file:
            file.seek(reference.offset)
            print(f"{reference.name}: {file.readinto(into.data)} bytes from its file")


KERNELS = {("", "MatMul"): np.matmul, ("", "Relu"): lambda x: np.maximum(x, 0)}


class Program:
    """Nodes that run on the device, one after the other."""

    kernel = "acme"

    def __init__(self, provider, region):
        self.provider, self.region, self.weights = provider, region, {}

    def prepare(self, check):
        values = [v for n in self.region.nodes for v in n.inputs if v is not None and v.is_const]
        wanted = [sardonyx.WeightReference(v.name, v.const) for v in values]
        manager = sardonyx.LoaderManager([self.provider.loader()])
        there = manager.place(wanted, self.provider.device, self.provider.to_device, check)
        self.weights = dict(zip(values, there, strict=True))

    def __call__(self, values, run, places):
        known = {**self.weights, **dict(zip(self.region.inputs, values, strict=True))}
        for node in self.region.nodes:
            inputs = [known[v] for v in node.inputs]
            if node.op.name == "Copy":  # over the border, one way or the other
                leaves = node.attrs["to"] == b"cpu"
                result = (self.provider.to_host if leaves else self.provider.to_device)(inputs[0])
            else:
                result = Memory(KERNELS[node.op.key](*(memory.secret for memory in inputs)))
            known[node.outputs[0]] = result
        return [known[v] for v in self.region.outputs]


class Acme(DeviceProvider):
    """Takes what it has kernels for; the CPU runs the rest."""

    name, device = "acme", "acme:0"

    def claims(self, node):
        is_known = node.op.key in KERNELS and all(v.tensor.dtype.name == "f32" for v in node.inputs)
        return Yes() if is_known else No(f"acme has no kernel for {node.op} of these types")

    def to_device(self, array):
        return Memory(array.copy())

    def to_host(self, memory):
        return memory.secret.copy()

    def loader(self):
        return Loader()

    def compile_region(self, region):
        return Program(self, region)


MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 3] x) => (float[n, 3] y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
    { a = MatMul(x, w) b = Relu(a) y = Softmax(b) }""")
with tempfile.TemporaryDirectory() as folder:
    onnx.save(MODEL, f"{folder}/model.onnx")
    sardonyx.register_provider("AcmeExecutionProvider", lambda options: Acme())
    session = sardonyx.InferenceSession(f"{folder}/model.onnx", providers=["AcmeExecutionProvider"])
    print(session.get_providers(), session.run(None, {"x": np.eye(3, dtype=np.float32)[:1]})[0])
    sardonyx.unregister_provider("AcmeExecutionProvider")
