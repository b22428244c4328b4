# Links the module against stub libraries of an older glibc (tools/build_wheels.py makes them), so that it runs wherever
# that one or a newer one is installed. The C++ library is linked in: newer compilers need newer ones than systems have.
set(SARDONYX_GLIBC "" CACHE PATH "Folder of an older glibc's stub libraries, empty for the one that is installed")

if(SARDONYX_GLIBC)
  file(GLOB stubs ${SARDONYX_GLIBC}/lib*.so.*)
  list(JOIN stubs " " stubs)
  # At the end of the linker's command line, after all that uses them.
  set(CMAKE_CXX_STANDARD_LIBRARIES
    "-Wl,--start-group -l:libstdc++.a ${stubs} ${SARDONYX_GLIBC}/libc_nonshared.a -Wl,--end-group -lgcc_s -lgcc")
endif()

function(sardonyx_link_glibc target)
  if(SARDONYX_GLIBC)
    target_sources(${target} PRIVATE native/os/old_glibc.cc)
    target_link_options(${target} PRIVATE -nodefaultlibs -Wl,--exclude-libs,ALL -Wl,--as-needed -Wl,--gc-sections)
  endif()
endfunction()
