// The structs of DLPack; nanobind declares only the unversioned ones.
#pragma once

#include <cstdint>

namespace sdx::dlpack {

struct DLTensor {
  void* data;
  int32_t device, device_number;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* dims;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Unversioned {
  static constexpr const char* kName = "dltensor";
  static constexpr const char* kUsed = "used_dltensor";
  DLTensor tensor;
  void* context;
  void (*deleter)(Unversioned*);
};

struct Versioned {
  static constexpr const char* kName = "dltensor_versioned";
  static constexpr const char* kUsed = "used_dltensor_versioned";
  uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  uint64_t flags;
  DLTensor tensor;
};

// What a class of tensors has as `__dlpack_c_exchange_api__`: functions that neither run Python
// code nor wait for a device. They return 0, or set a Python error.
struct Exchange {
  static constexpr const char* kName = "dlpack_exchange_api";
  uint32_t major, minor;
  Exchange* previous;
  int (*allocate)(DLTensor* prototype, Versioned** made, void* error,
                  void (*set_error)(void* error, const char* kind, const char* message));
  int (*managed_of)(void* object, Versioned** made);
  int (*object_of)(Versioned* tensor, void** made);
  int (*tensor_of)(void* object, DLTensor* made);  // valid while the object is; may be null
  int (*current_stream)(int32_t device, int32_t device_number, void** stream);
};

constexpr uint32_t kMajor = 1;
constexpr int32_t kCpu = 1;

}  // namespace sdx::dlpack
