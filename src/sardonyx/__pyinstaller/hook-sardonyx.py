"""What PyInstaller cannot find in the sources of sardonyx: modules imported by name, and data."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

# Families of ops, kernels, passes and upgrades are imported when a model first uses them.
hiddenimports = collect_submodules(
    "sardonyx",
    filter=lambda name: not name.startswith("sardonyx.as_onnxruntime.shadow"),
    on_error="ignore",  # packages that need torch, where it is not installed
)
# Indexes of ops, schemas, pages, the built-in model; not the import cache, which needs the sources.
datas = collect_data_files(
    "sardonyx", excludes=["as_onnxruntime/shadow/**/*", "_import_cache.*", "**/*.pyi"]
)
# Gigabytes that only the GPU provider and training use: part of a program that imports them itself.
excludedimports = ["torch", "triton"]
