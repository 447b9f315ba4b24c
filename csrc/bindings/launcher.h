// Launcher: queues kernels and copies by functions of the driver's interface, of which it is told
// the addresses; BlockRing: pinned memory, and a device's beside it, that verbs use in turns;
// TableBlock: what a verb's kernels over several tables are given.
//
// Above it: device_verbs.h, gpu_kernels.cc. Below it: csrc/gpu_cache/tables.h. Nothing of CUDA is
// known here when this is compiled. Stand-ins of a device give addresses of their own functions,
// which take the same arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gpu_cache/tables.h"

namespace nb = nanobind;

namespace hps {

struct LaunchableKernel {
  void* function = nullptr;  // as the driver names it
  int64_t lanes = 1;         // an item
  size_t args_bytes = 0;     // of the struct that it is given
};

class Launcher {
 public:
  // Arguments and result as cuLaunchKernel and cuMemcpyHtoDAsync_v2 have them.
  using LaunchFunction = int (*)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned shared_bytes, void* stream, void** params, void** extra);
  using CopyFunction = int (*)(uint64_t target, const void* source, size_t bytes, void* stream);

  // Args:
  //   launch, copy: addresses of the two functions.
  //   functions: by name, what the driver calls each kernel.
  //   most_blocks: of a launch; items beyond them are strided over.
  Launcher(uint64_t launch, uint64_t copy, const std::map<std::string, uint64_t>& functions,
           int64_t most_blocks);

  // ValueError if there is none of that name.
  const LaunchableKernel& Find(std::string_view name) const;

  // Queues a kernel over items [0, count), if there are any; `args` is its struct, taken by value.
  // Without the GIL.
  // Raises:
  //   std::runtime_error: the driver's number for what is wrong.
  void Launch(const LaunchableKernel& kernel, const void* args, int64_t count, uint64_t stream);
  // Queues a copy from pinned memory. The same.
  void Copy(uint64_t target, const void* source, size_t bytes, uint64_t stream);

  int64_t num_launches() const { return num_launches_; }

 private:
  LaunchFunction launch_;
  CopyFunction copy_;
  int64_t most_blocks_;
  int64_t num_launches_ = 0;
  std::map<std::string, LaunchableKernel, std::less<>> kernels_;
};

// What is in use of one chunk of pinned memory and of one of the device's, of the same size. Which
// chunk comes next, and when a chunk may be used again, is Python's to say: hps/gpu_cache/ring.py.
class BlockRing {
 public:
  explicit BlockRing(nb::object next) : next_(std::move(next)) {}

  struct Piece {
    uint8_t* pinned;
    uint64_t on_device;
  };
  // With the GIL, within a verb.
  // Args:
  //   goes_there: what is written goes to the piece's place on the device; else to another place.
  Piece Take(size_t bytes, bool goes_there);

 private:
  static constexpr size_t kAlignment = 256;

  // next(bytes, goes_there) -> (address of pinned memory, address on the device, bytes)
  nb::object next_;
  uint8_t* pinned_ = nullptr;
  uint64_t on_device_ = 0;
  size_t size_ = 0, used_ = 0;
};

// A kernel's argument structs of several tables, of each launch where the items of the tables end,
// and more that they point to. Filled in pinned memory, and sent with the first launch, within one
// verb.
class TableBlock {
 public:
  TableBlock(Launcher* launcher, BlockRing* ring, uint64_t stream, size_t num_tables,
             size_t num_launches, size_t args_bytes, size_t more_bytes = 0);

  template <class Args>
  Args* args() {
    return reinterpret_cast<Args*>(piece_.pinned + ends_bytes_);
  }
  void SetItems(size_t launch, size_t table, int64_t count);
  // `more_bytes`, to be filled, and where they will be on the device.
  uint8_t* more() { return piece_.pinned + more_at_; }
  uint64_t more_on_device() const { return piece_.on_device + more_at_; }

  // Tables, as a kernel is given them.
  Tables TablesOf(size_t launch) const;
  // Names of kernels and numbers of their launches, in turns.
  void Queue(const nb::args& launches);
  // A kernel with a struct of its own, behind what was sent.
  void QueueOther(std::string_view kernel, const void* args, int64_t count);
  // Of each kind of optimizer among the tables the kernel that is called so; one launch a kind.
  void QueueKinds(const std::string& prefix);

  std::vector<std::string> kinds;  // of each launch, where a launch is a kind's
  nb::list kept;                   // what is read and kept by nobody else until it is queued

 private:
  struct Launch {
    const LaunchableKernel* kernel;
    size_t number;
  };
  void Queue(const std::vector<Launch>& launches);
  void Send();

  Launcher* launcher_;
  uint64_t stream_;
  size_t num_tables_, num_launches_, ends_bytes_, more_at_, bytes_;
  BlockRing::Piece piece_;
  bool is_sent_ = false;
};

}  // namespace hps
