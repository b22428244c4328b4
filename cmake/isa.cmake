# Kernels are compiled once per ISA, each into a library and a namespace of its own. The dispatch at
# run time is in native/kernels/registry.cc.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(SARDONYX_ISAS base avx2 avx512 avx512vnni CACHE STRING "ISAs to build kernels for, plainest first")
else()
  set(SARDONYX_ISAS base CACHE STRING "ISAs to build kernels for, plainest first")
endif()
set(SARDONYX_KERNEL_LEVEL -O3 CACHE STRING "How far kernels are optimized")
set(SARDONYX_FLAGS_base "")
set(SARDONYX_FLAGS_avx2 -march=x86-64-v3)
set(SARDONYX_FLAGS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
set(SARDONYX_FLAGS_avx512vnni ${SARDONYX_FLAGS_avx512} -mavx512vnni -mavx512bf16)

# A static library per ISA of kernels/tables.cc and these sources; the target links all of them.
function(sardonyx_kernels target)
  set(isas "")
  foreach(isa IN LISTS SARDONYX_ISAS)
    set(library ${target}_${isa})
    add_library(${library} STATIC native/kernels/tables.cc ${ARGN})
    target_include_directories(${library} PRIVATE native)
    target_compile_definitions(${library} PRIVATE SDX_ISA=${isa})
    target_compile_options(${library} PRIVATE
      ${SARDONYX_FLAGS_${isa}} ${SARDONYX_KERNEL_LEVEL} -fno-exceptions -fno-rtti -fno-math-errno -fno-trapping-math
      -ffp-contract=fast -Wall -Wextra -Wshadow -Wno-psabi)
    add_custom_command(TARGET ${library} POST_BUILD VERBATIM
      COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/isa_symbols.py
              ${CMAKE_NM} $<TARGET_FILE:${library}> ${isa})
    target_link_libraries(${library} PUBLIC sardonyx_base)
    target_link_libraries(${target} PUBLIC ${library})
    string(APPEND isas "ISA(${isa})\n")
  endforeach()
  file(CONFIGURE OUTPUT isas.inc CONTENT "${isas}")
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
