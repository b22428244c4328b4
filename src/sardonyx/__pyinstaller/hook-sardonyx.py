"""What PyInstaller cannot find in the sources of sardonyx: modules imported by name, and data."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

# Families of ops, kernels, passes and upgrades are imported when a model first uses them.
hiddenimports = collect_submodules(
    "sardonyx",
    filter=lambda name: not name.startswith("sardonyx.as_onnxruntime.shadow"),
    on_error="ignore",  # packages that need torch, where it is not installed
)
datas = collect_data_files("sardonyx", includes=["models/*", "include/*"])
# Gigabytes that only the GPU provider and training use: part of a program that imports them itself.
excludedimports = ["torch", "triton"]
