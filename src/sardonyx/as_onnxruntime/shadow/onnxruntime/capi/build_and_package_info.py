"""The package's name and the version of the interface."""

import sardonyx

__version__ = sardonyx.ORT_VERSION
package_name = "onnxruntime"
