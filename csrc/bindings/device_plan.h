// DeviceTable, DevicePlanState: what the verbs over several tables ask of each table on a device
// and of each batch, kept where they read it without asking Python; DeviceMemory, SumsLayout: the
// memory that they work on.
//
// Above it: device_verbs.h; hps/gpu_cache, whose DeviceRows and DevicePlan are these with more of
// Python's. Below it: device_keys.h, csrc/gpu_cache/sums.h. All is under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/device_keys.h"
#include "gpu_cache/sums.h"
#include "optimizer/safe_gradient.h"

namespace nb = nanobind;

namespace hps {

// A piece of a device's memory that many verbs work on, and the numbers of the streams for which
// the allocator knows that they work on it, too: to be told once of each is enough, for it looks
// when the memory comes back.
class DeviceMemory {
 public:
  explicit DeviceMemory(nb::object memory) : memory_(std::move(memory)) {}

  const nb::object& memory() const { return memory_; }
  // True the first time that it is asked of a stream.
  bool IsNewTo(uint64_t stream) {
    if (std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) return false;
    streams_.push_back(stream);
    return true;
  }

 private:
  nb::object memory_;
  std::vector<uint64_t> streams_;
};

// An object of Python's, and what it is here.
template <class T>
struct Owned {
  nb::object owner;
  T* ptr = nullptr;

  void Set(nb::object given) {
    ptr = given.is_none() ? nullptr : nb::cast<T*>(given);
    owner = std::move(given);
  }
};

// Names of the optimizers' kernels, behind "Try" and "Apply".
inline const char* NameOfKind(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "Sgd";
    case OptimizerKind::kAdagrad:
      return "Adagrad";
    case OptimizerKind::kRowWiseAdagrad:
      return "RowWiseAdagrad";
    case OptimizerKind::kAdam:
      return "Adam";
    case OptimizerKind::kFtrl:
      return "Ftrl";
  }
  return "";
}

struct DeviceTable {
  static constexpr int64_t kMostPins = 255;  // on a slot, one a plan

  DeviceTable(const nb::bytes& words, nb::object piece) {
    if (words.size() != sizeof(args)) throw nb::value_error("the bytes of CacheArgs are needed");
    std::memcpy(&args, words.c_str(), sizeof(args));
    memory.Set(std::move(piece));
    num_swept = (args.table.shape.num_buckets() + kTicksPerTurn - 1) / kTicksPerTurn;
  }

  // Gradients up to that magnitude need no trial. Kept of the last rate, which seldom changes.
  uint32_t SafeBits(float lr) {
    if (is_watched) return 0;
    if (!(safe_lr == lr)) {
      safe_bits = SafeGradientBits(args.kind, args.numbers, args.initializer, lr);
      safe_lr = lr;
    }
    return safe_bits;
  }

  CacheArgs args = {};
  Owned<DeviceMemory> memory;
  int64_t num_swept;        // buckets a tick of its clock
  int64_t epoch = 1;        // grows whenever a slot may have moved
  int64_t num_held = 0;     // plans that pin their window, or may
  uint32_t number = 0;      // by which its failure is known
  bool is_watched = false;  // by the host; what a step has left, the device's clock tells
  int64_t hits = 0;         // keys of batches that were pinned with others, not yet counted
  float safe_lr = std::nanf("");
  uint32_t safe_bits = 0;
};

enum class PlanState : int32_t {
  kKeys,       // deduplicated
  kFound,      // window looked up
  kReserving,  // a reserve is queued, and what it answers is not known
  kReserved,   // window pinned, missing keys hold slots without rows
  kPinned,     // window pinned, every row in place
};

// Where each array begins of those that sums of gradients work on, and for how many elements there
// is room: the arrays in the order of hps/gpu_cache/device_sums.py.
struct SumsLayout {
  enum Array : int32_t {
    kArrived,
    kUnordered,
    kOrigins,
    kKeys,
    kArrivals,
    kRowKeys,
    kWeights,
    kRunSums,
    kDivided,
    kNumArrays,
  };

  Owned<DeviceMemory> memory;
  uint64_t addresses[kNumArrays];
  int64_t room[kNumArrays];
  // Of the last sum: what its updates read beside this memory, until all are queued; on which
  // stream it was queued.
  nb::object tensors = nb::none();
  nb::object parts = nb::none();  // of the arena, of which some of them are views
  size_t num_pending = 0;         // plans whose updates are to come
  uint64_t stream = 0;
};

// Where a pooling's bags lie, as they were last read.
struct PoolingView {
  nb::object owner = nb::none();                          // a BagPooling, or None
  nb::object offsets = nb::none(), weights = nb::none();  // its tensors
  const int64_t* starts = nullptr;                        // null: values are of occurrences
  const float* factors = nullptr;
  int64_t num_bags = 0;  // or occurrences
  bool is_mean = false;
};

struct DevicePlanState {
  static constexpr uint64_t kMinIdTable = 64;

  explicit DevicePlanState(nb::object of) { table.Set(std::move(of)); }
  ~DevicePlanState() { EndUpdate(); }
  DevicePlanState(const DevicePlanState&) = delete;
  DevicePlanState& operator=(const DevicePlanState&) = delete;

  // At least the keys of the batch; exact once the host knows how many there are.
  int64_t bound_of_unique() const { return known_unique < 0 ? num_occurrences : known_unique; }
  // The same of the window.
  int64_t bound() const { return count >= 0 ? count : bound_of_unique() - first; }
  uint64_t id_entries() const { return batch.id_mask + 1; }
  static uint64_t IdEntries(int64_t count) {
    uint64_t entries = kMinIdTable;
    while (static_cast<int64_t>(entries) < 2 * count) entries *= 2;
    return entries;
  }
  // True if the window is all of the batch, as far as the host knows without waiting.
  bool is_surely_whole() const {
    return first == 0 && (count < 0 || (known_unique >= 0 && count == known_unique));
  }
  bool is_looked_up() const {
    return state == PlanState::kFound && epoch == table.ptr->epoch && has_rows < 0 && first == 0 &&
           count < 0;
  }
  void Hold() {
    if (!is_held) ++table.ptr->num_held;
    is_held = true;
  }
  void LetGo() {
    if (is_held) --table.ptr->num_held;
    is_held = false;
  }
  // The very tensor that the keys came as, which counts its changes, or None.
  void NoteGiven(const KeysOfTable& keys) {
    given_version = keys.version;
    given_data = keys.data;
    given = keys.version < 0 ? nb::none() : keys.owner;
  }
  // True if its keys came as that tensor of that device, which was not changed since and has the
  // memory that it had.
  bool IsOf(TensorDevice device, nb::handle keys) const {
    if (!given.is(keys) || given_version < 0 || VersionOfTensor(keys) != given_version) {
      return false;
    }
    const std::optional<TensorView> view = TensorView::On(device, keys);
    return view && view->data() == given_data && view->num_dims() == 1 &&
           view->shape(0) == num_occurrences;
  }
  // Nothing more is queued that reads of the last sum for it. Of the last plan of that sum what its
  // tables' updates read, to be kept until they are queued; else None.
  nb::object EndUpdate() {
    nb::object kept = nb::none();
    if (!std::exchange(is_summed, false)) return kept;
    if (--sums.ptr->num_pending == 0) {
      kept = std::exchange(sums.ptr->tensors, nb::none());
      sums.ptr->parts = nb::none();
    }
    sums.Set(nb::none());
    return kept;
  }
  // A batch without keys, of which nothing is known; it holds nothing.
  void Clear() {
    state = PlanState::kKeys;
    num_occurrences = first = count = known_unique = 0;
    has_rows = 0;
    pins_if_whole = false;
    ForgetNumbers();
    victims = missing = given = nb::none();
    pooling = {};
    EndUpdate();
  }
  int64_t num_missing() const { return num_occurrences == 0 ? 0 : numbers.num_missing; }
  // A look-up that was to pin has ended, and its numbers are known: true if it has pinned.
  bool EndPinning() {
    if (std::exchange(pins_if_whole, false) && state == PlanState::kFound && num_missing() == 0) {
      victims = missing = incoming = nb::none();
      state = PlanState::kPinned;
      has_rows = 1;
      table.ptr->hits += bound_of_unique();
    }
    return state == PlanState::kPinned;
  }
  // What a look-up has told.
  void ForgetNumbers() {
    has_numbers = false;
    asked = nb::none();
  }

  Owned<DeviceTable> table;
  Owned<DeviceMemory> memory;    // of which the batch's arrays are a part
  nb::object part = nb::none();  // that part, an ArenaPart
  BatchArgs batch = {};
  int64_t capacity = -1;  // keys that the arrays have room for
  PlanState state = PlanState::kKeys;
  int64_t epoch = -1;
  bool is_held = false;  // its table counts it among those that may pin their window
  int64_t num_occurrences = 0;
  bool pins_if_whole = false;    // a look-up is queued that pins if it finds all rows
  int64_t first = 0, count = 0;  // of the window; a negative count: all from `first` on
  int8_t has_rows = 0;           // all of the window's; negative: the device knows
  int64_t known_unique = 0;      // negative: the device knows
  // Numbers of the last look-up; or the copy by which they come to the host, and where in it.
  bool has_numbers = false;
  BatchNumbers numbers = {};
  nb::object asked = nb::none();
  int64_t asked_at = 0;
  // Of the last reserve, as bytes: rows that go down, missing keys, and memory for their rows.
  nb::object victims = nb::none(), missing = nb::none(), incoming = nb::none();
  // Where gradients were summed, and what the update, if it is not queued yet, sums up by itself.
  Owned<SumsLayout> sums;
  TermArgs terms = {};
  bool is_summed = false;
  // The very tensor of keys that it was made of, where it lay and how often it had been changed by
  // then.
  nb::object given = nb::none();
  const void* given_data = nullptr;
  int64_t given_version = -1;
  // By which the batch was pooled, and will be updated.
  PoolingView pooling;
  uint64_t mark = 0;  // of who looks whether a plan is named twice
};

}  // namespace hps
