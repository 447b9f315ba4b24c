// Array: a growable buffer that never initialises and never shrinks; for batch-sized scratch
// memory.
//
// Above it: batch_plan. Below it: malloc. std::vector writes zeros that the next line overwrites,
// which costs as much as the work itself on buffers of megabytes. Contents are lost when it grows.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace hps {

template <typename T>
class Array {
 public:
  Array() = default;
  ~Array() { std::free(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

  // Makes room for `count` elements; what was there is lost if that needs more memory. Throws
  // std::bad_alloc, and is empty, if there is none: a batch's size is the caller's, who may go on.
  T* Reserve(int64_t count) {
    if (count <= capacity_) return data_;
    std::free(data_);
    capacity_ = 0;
    const int64_t wanted = count + count / 4;
    const uint64_t bytes = (static_cast<uint64_t>(wanted) * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    capacity_ = wanted;
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace hps
