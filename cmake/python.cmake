# Finds Python and nanobind, both for scikit-build-core and for a plain `cmake -B build`.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module NumPy)

if(NOT SKBUILD)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
endif()
find_package(nanobind CONFIG REQUIRED)

# The version stands in pyproject.toml alone.
file(STRINGS pyproject.toml version_line REGEX "^version = ")
string(REGEX REPLACE "^version = \"(.*)\"$" "\\1" SARDONYX_VERSION "${version_line}")
