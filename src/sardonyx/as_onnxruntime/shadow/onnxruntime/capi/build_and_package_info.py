"""What was built: the package's name and the version of the interface."""

from sardonyx import ORT_VERSION as __version__

package_name = "onnxruntime"

__all__ = ["__version__", "package_name"]
