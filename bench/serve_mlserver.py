"""MLServer with onnxruntime, which bench/serve.py compares with.

python bench/serve_mlserver.py MODEL.onnx
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Onnx(MLModel):  # type: ignore[misc]
    """A runtime as MLServer's own for scikit-learn: one request is one run."""

    async def load(self) -> bool:
        """Open the session."""
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the model."""
        feed = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        results = zip(names, self.session.run(names, feed), strict=True)
        outputs = [NumpyCodec.encode_output(name, result) for name, result in results]
        return InferenceResponse(model_name=self.name, outputs=outputs)


def main(model: str) -> None:
    """Serve the model with MLServer's defaults: a process for HTTP and one for the runs."""
    from serve_rivals import free_port

    port = free_port()
    folder = Path(tempfile.mkdtemp())
    settings = {
        "name": "m",
        "implementation": "serve_mlserver.Onnx",
        "parameters": {"uri": str(Path(model).resolve())},
    }
    (folder / "model-settings.json").write_text(json.dumps(settings))
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    more = {"host": "127.0.0.1", "debug": False, "logging_settings": None}
    (folder / "settings.json").write_text(json.dumps({**ports, **more}))
    print(f"HTTP http://127.0.0.1:{port}/v2/models/m/infer", flush=True)
    os.chdir(folder)  # it leaves files where it runs
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    code = "from mlserver.cli.main import main; main()"
    os.execv(sys.executable, [sys.executable, "-c", code, "start", str(folder)])


if __name__ == "__main__":
    main(sys.argv[1])
