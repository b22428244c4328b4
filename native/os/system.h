// What the runtime asks of the operating system beyond the C++ standard library: pages, CPUs,
// sleeping threads and forks. One file per system implements it (linux.cc, macos.cc, windows.cc;
// posix.cc has what the first two share, linux_watch.cc the watch of pages); no other file calls
// the system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace sdx::os {

// Pages of memory. Sizes are multiples of page_bytes().

size_t page_bytes();

// New zeroed pages; null if out of memory.
void* map_pages(size_t bytes);
void unmap_pages(void* pages, size_t bytes);

// The pages with another size, possibly at another address, where it can without copying. Null if
// out of memory: the pages stay as they were.
void* resize_pages(void* pages, size_t bytes, size_t new_bytes);

// Addresses that take no memory until they are written; null if the system does not offer that.
void* reserve_pages(size_t bytes);

// Returns the memory of pages to the system. They stay mapped; what they hold is undefined.
void discard_pages(void* pages, size_t bytes);

// Whether every page of [begin, end) is mapped; `begin` is the address of a page.
bool is_mapped(uintptr_t begin, uintptr_t end);

// Watches whole pages of memory for writes, whoever writes; false if the system does not offer that
// for this memory. Pages must not be watched twice.
bool watch_pages(uintptr_t begin, uintptr_t end);
void unwatch_pages(uintptr_t begin, uintptr_t end);

enum class Writes { kNone, kSome, kUnknown };

// Whether watched pages were written since they were watched, or since the previous call. Unknown
// in a child process, and after the pages were mapped anew.
Writes take_writes(uintptr_t begin, uintptr_t end);

// Heap memory at a multiple of 64 bytes, its size one too; null if out of memory.
void* allocate_aligned(size_t bytes);
void free_aligned(void* memory);

// Threads.

// Sleeps until a wake_one() of the same word, unless the word is not `seen`; may return early.
void wait_while(std::atomic<int>& word, int seen);
void wake_one(std::atomic<int>& word);

// CPUs that the process may run on; 0 if unknown.
int affinity_cpus();

// The limit of CPU time that the process runs under, in CPUs; 0 without a limit.
double quota_cpus();

// Binds a thread to CPUs, where the system can; CPUs that do not exist are ignored.
void bind_thread(std::thread::native_handle_type thread, const std::vector<int>& cpus);

// Sleeps until the process ends.
[[noreturn]] void sleep_forever();

// Registers handlers of forks; null ones are not called. Systems without forks ignore them.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

}  // namespace sdx::os
