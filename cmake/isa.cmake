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

# Families that an ISA makes no faster use the kernels of another one, if that is built. AVX512_VNNI and AVX512_BF16
# speed up what multiplies bytes or pairs of bf16: for the other families the compiler makes the same code as for
# avx512. In text, features and custom 3 % of the instructions or less have AVX-512 vectors; speeds were not compared.
set(SARDONYX_OTHER_avx512vnni avx512)
set(SARDONYX_SAME_avx512vnni custom estimators features gather matrix moe move normalize optimizer pooling random reduce resize
  sample select signal softmax text trees)
set(SARDONYX_OTHER_avx512 avx2)
set(SARDONYX_SAME_avx512 custom features text)

# Reduces `sources` to those that are compiled for an ISA, and adds the kernel tables of all its families.
function(sardonyx_families isa)
  file(STRINGS native/kernels/list.inc families REGEX "^FAMILY")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS native/kernels/list.inc)
  set(declarations "")
  set(tables "")
  foreach(family IN LISTS families)
    string(REGEX REPLACE "FAMILY\\((.*)\\)" "\\1" family "${family}")
    set(of ${isa})
    while(family IN_LIST SARDONYX_SAME_${of} AND SARDONYX_OTHER_${of} IN_LIST SARDONYX_ISAS)
      set(of ${SARDONYX_OTHER_${of}})
    endwhile()
    if(NOT of STREQUAL isa)
      list(FILTER sources EXCLUDE REGEX "kernels/${family}[./]")
    endif()
    string(APPEND declarations "namespace ${of} { extern const KernelTable ${family}_kernels; }\n")
    string(APPEND tables "  &${of}::${family}_kernels,\n")
  endforeach()
  configure_file(native/kernels/tables.cc.in ${CMAKE_CURRENT_BINARY_DIR}/tables/${isa}.cc @ONLY)
  set(sources ${sources} ${CMAKE_CURRENT_BINARY_DIR}/tables/${isa}.cc PARENT_SCOPE)
endfunction()

# A static library per ISA of these sources and the tables of kernels; the target links all of them.
function(sardonyx_kernels target)
  set(isas "")
  foreach(isa IN LISTS SARDONYX_ISAS)
    set(library ${target}_${isa})
    set(sources ${ARGN})
    set(level ${SARDONYX_KERNEL_LEVEL})
    if(isa STREQUAL base AND level STREQUAL "-O3" AND SARDONYX_ISAS MATCHES ";")
      set(level -O2)  # CPUs of the last ten years have a better ISA, and the code is a quarter smaller
    endif()
    sardonyx_families(${isa})
    add_library(${library} STATIC ${sources})
    target_include_directories(${library} PRIVATE native)
    target_compile_definitions(${library} PRIVATE SDX_ISA=${isa})
    target_compile_options(${library} PRIVATE
      ${SARDONYX_FLAGS_${isa}} ${level} -fno-exceptions -fno-rtti -fno-math-errno -fno-trapping-math
      -ffp-contract=fast -Wall -Wextra -Wshadow -Wno-psabi)
    sardonyx_precompile(${library} ${PROJECT_SOURCE_DIR}/native/simd/vec.h)
    add_custom_command(TARGET ${library} POST_BUILD VERBATIM
      COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/isa_symbols.py
              ${CMAKE_NM} $<TARGET_FILE:${library}> ${isa})
    target_link_libraries(${library} PUBLIC sardonyx_base)
    if(SARDONYX_OTHER_${isa} IN_LIST SARDONYX_ISAS)
      target_link_libraries(${library} PUBLIC ${target}_${SARDONYX_OTHER_${isa}})
    endif()
    target_link_libraries(${target} PUBLIC ${library})
    string(APPEND isas "ISA(${isa})\n")
  endforeach()
  file(CONFIGURE OUTPUT isas.inc CONTENT "${isas}")
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
