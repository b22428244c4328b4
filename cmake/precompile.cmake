# Headers that most sources of a target include, parsed once: <immintrin.h> alone takes 0.3 s. Not with a compiler
# launcher: ccache keeps no objects that a precompiled header was used for.
function(sardonyx_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
