// DeviceVerbs: what a verb over several tables of a device is given, packed in one call for all of
// them.
//
// Above it: hps/gpu_cache/device_batch.py, which says what is launched, in which order. Below it:
// launcher.h, device_plan.h, device_bags.h, the structs of csrc/gpu_cache. Each call is made within
// a verb of the caches, under the GIL.
#pragma once

#include <memory>

#include "bindings/cache_options.h"
#include "bindings/device_bags.h"
#include "bindings/device_keys.h"
#include "bindings/launcher.h"

namespace hps {

using Plans = std::vector<DevicePlanState*>;

class DeviceVerbs {
 public:
  DeviceVerbs(Launcher* launcher, BlockRing* ring, int32_t device_type, int32_t device_number)
      : launcher_(launcher), ring_(ring), device_{device_type, device_number} {}

  // Makes room for a batch of these keys a plan. How many keys are of the host.
  int64_t Prepare(const nb::list& plans, const DeviceKeys& keys) const;
  // Deduplicates the keys of plans that were prepared. Launches: entries of the id tables; keys;
  // words of flags.
  // Args:
  //   copied: memory on the device for the keys that are of the host.
  std::unique_ptr<TableBlock> Place(const nb::list& plans, const DeviceKeys& keys, uint64_t copied,
                                    uint64_t stream);
  // Which of the keys of tables have rows. One launch.
  std::unique_ptr<TableBlock> Contains(const nb::list& tables, const DeviceKeys& keys,
                                       uint64_t presence, uint64_t copied, uint64_t stream);
  // Looks windows up. Launches: window keys; words of flags; these, or buckets that are swept.
  std::unique_ptr<TableBlock> Find(const nb::list& plans, uint64_t told, uint64_t stream);
  // Reserves slots for the missing keys, which are known. Launches: window keys; missing keys of
  // tables with free slots; missing keys; those, one at least.
  // Args:
  //   told, told_keys, victims: of each table where its kernels tell the host; or nothing of all.
  std::unique_ptr<TableBlock> Reserve(const nb::list& plans, const std::vector<uint64_t>& told,
                                      const std::vector<uint64_t>& told_keys,
                                      const std::vector<uint64_t>& victims, uint64_t stream);
  // For a release, and what takes a reserve back. One launch: window keys.
  std::unique_ptr<TableBlock> Release(const nb::list& plans, uint64_t stream);
  // Publishes missing rows. One launch.
  // Args:
  //   images: of each table where they lie, in pinned memory that stays as it is until then.
  //   found: of each table its flags, which may change at once.
  std::unique_ptr<TableBlock> Fill(const nb::list& plans, const std::vector<uint64_t>& images,
                                   const std::vector<Vector<const uint8_t>>& found,
                                   const std::vector<bool>& creates,
                                   const std::vector<float>& rates, uint64_t stream);
  // One launch; null if there is no bag.
  std::unique_ptr<TableBlock> Pool(const DeviceBags& bags, uint64_t stream);

  // The elements of each array of SumsLayout that sums of these gradients need.
  std::vector<int64_t> SumSizes(const DeviceBags& bags) const;
  // The same of a step to come of plans whose gradients nobody has yet: weighted bags and means
  // need more.
  std::vector<int64_t> SizesToSum(const nb::list& plans) const;
  // Readies the plans for an update by these gradients, which stay as they are until it is queued.
  // Launches: bags; keys; bags; rows of run sums, and keys; the same.
  std::unique_ptr<TableBlock> Sum(const DeviceBags& bags, nb::object layout, uint64_t stream);

  // A launch for each kind of optimizer.
  std::unique_ptr<TableBlock> Try(const DeviceBags& bags, uint64_t stream);
  void NoteFailure(TableBlock* block, uint64_t failure) const;
  std::unique_ptr<TableBlock> Apply(const DeviceBags& bags, uint64_t failure, uint64_t stream);

 private:
  template <class Args>
  std::unique_ptr<TableBlock> Begin(size_t num_tables, size_t num_launches, uint64_t stream,
                                    size_t more_bytes = 0) const {
    return std::make_unique<TableBlock>(launcher_, ring_, stream, num_tables, num_launches,
                                        sizeof(Args), more_bytes);
  }
  std::vector<uint64_t> Addresses(const DeviceKeys& keys, uint64_t copied, uint64_t stream) const;
  std::unique_ptr<TableBlock> BeginKinds(const DeviceBags& bags, size_t args_bytes,
                                         uint64_t stream) const;

  Launcher* launcher_;
  BlockRing* ring_;
  TensorDevice device_;
};

}  // namespace hps
