// Notices writes to memory without reading it, by write protection that the kernel removes itself.
#pragma once

#include <cstdint>
#include <memory>

namespace sdx {

// Whole pages of private anonymous memory. Linux keeps per page whether it was written since the
// last question (userfaultfd's asynchronous write protection and PAGEMAP_SCAN, Linux 6.7), whoever
// wrote: threads, system calls, other processes by process_vm_writev. A device that was given the
// memory for longer, such as an RDMA adapter, is not noticed.
class WriteWatch {
 public:
  struct Pages {
    const unsigned char* begin;
    int64_t bytes;
  };
  // The whole pages of a span of memory: none, at its beginning, if there are none.
  static Pages pages_in(const unsigned char* data, int64_t bytes);

  // A watch of the whole pages of [data, data + bytes), which those who ask for the same bytes
  // share; null if there are none, or the system or the memory does not allow it.
  static std::shared_ptr<WriteWatch> of(const void* data, int64_t bytes);

  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  // The part of the memory that is watched.
  const unsigned char* begin() const { return reinterpret_cast<const unsigned char*>(begin_); }
  int64_t bytes() const { return int64_t(end_ - begin_); }

  // A number that differs from that of an earlier call if the memory was written since, and may
  // differ otherwise; 0 if that is not known any more. Thread-safe.
  uint64_t generation();

 private:
  WriteWatch(uintptr_t begin, uintptr_t end) : begin_(begin), end_(end) {}

  uintptr_t begin_, end_;
  uint64_t generation_ = 0;
};

}  // namespace sdx
