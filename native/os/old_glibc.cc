// What the C++ library takes of glibc 2.32 and older ones lack (cmake/glibc.cmake).

// Whether reference counts may be incremented without atomic instructions: never.
extern "C" {
[[gnu::visibility("hidden")]] extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}
