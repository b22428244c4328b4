# The warnings that our own code is kept free of.
function(sardonyx_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion)
endfunction()
