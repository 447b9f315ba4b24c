// A grid of warps as fibers on the host: runs a kernel's lanes in seeded orders that part them at
// every access of memory, or warp after warp while it counts sectors.
//
// Above it: tests/gpu_cache/simt_grid.py, through extern "C". Below it: kernels.cc; accesses.h,
// what is counted. One thread of the host runs all lanes; a lane that is not chosen stays where it
// is, between any two accesses of memory. Lanes of a warp meet at primitives, by the mask of each.
#include "grid.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <random>
#include <string>
#include <vector>

#include "accesses.h"

namespace grid {
namespace {

constexpr int kWarpLanes = 32;
constexpr int kBlockWarps = 2;
constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kMostKept = 1 << 13;  // accesses of a lane, where counts do not matter
constexpr int64_t kMaxSwitches = int64_t{1} << 23;

// How lanes are chosen.
enum Order : int {
  kWarpByWarp = 0,  // each warp to its end, its lanes in turn up to the next primitive
  kSeeded = 1,      // any lane, at any access; now and then a warp is left alone for long
  kStarving = 2,    // as kSeeded, and one warp is not run before all others are done
};

struct Lane {
  ucontext_t first = {};
  jmp_buf context;
  bool is_started = false, is_done = false;
  const char* primitive = nullptr;  // that it waits at
  uint32_t members = 0;
  uint64_t value = 0;
  uint64_t given[kWarpLanes] = {};  // what the members left at the last meeting
  Accesses accesses;
};

class Grid {
 public:
  explicit Grid(int num_warps)
      : num_warps_(num_warps), lanes_(static_cast<size_t>(num_warps) * kWarpLanes) {
    const size_t bytes = lanes_.size() * kStackBytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stacks_ = static_cast<char*>(memory);
  }
  ~Grid() { munmap(stacks_, lanes_.size() * kStackBytes); }
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  // Empty if all went well; else what did not.
  std::string Run(const Kernel& kernel, const void* args, int64_t count, Order order,
                  uint64_t seed) {
    kernel_ = &kernel;
    args_ = args;
    count_ = count;
    order_ = order;
    random_.seed(seed);
    error_.clear();
    sleeps_until_.assign(static_cast<size_t>(num_warps_), 0);
    for (size_t i = 0; i < lanes_.size(); ++i) Prepare(i);
    starved_ =
        order == kStarving ? static_cast<int>(random_() % static_cast<uint64_t>(num_warps_)) : -1;
    if (order == kWarpByWarp) {
      for (int warp = 0; warp < num_warps_ && error_.empty(); ++warp) RunWarp(warp);
    } else {
      RunMixed();
    }
    return error_;
  }

  bool is_running() const { return running_ >= 0; }
  int running() const { return running_; }
  int num_warps() const { return num_warps_; }
  Lane& lane() { return lanes_[static_cast<size_t>(running_)]; }
  const std::vector<Lane>& lanes() const { return lanes_; }
  bool IsOnStack(const void* address) const {
    const auto* at = static_cast<const char*>(address);
    return at >= stacks_ && at < stacks_ + lanes_.size() * kStackBytes;
  }

  // At an access of memory: others may come between.
  void MayPart() {
    if (order_ == kWarpByWarp || random_() % 4 != 0) return;
    Leave();
  }

  uint64_t Meet(const char* primitive, uint32_t members, uint64_t value) {
    Lane& own = lane();
    own.primitive = primitive;
    own.members = members;
    own.value = value;
    own.accesses.NoteMeeting();
    Leave();
    return 0;
  }

 private:
  static void Enter();

  void Prepare(size_t number) {
    Lane& lane = lanes_[number];
    lane.is_started = lane.is_done = false;
    lane.primitive = nullptr;
    lane.accesses.Clear(order_ == kWarpByWarp ? ~size_t{0} : kMostKept);
  }

  void Leave() {
    const int own = running_;
    if (_setjmp(lanes_[static_cast<size_t>(own)].context) == 0) _longjmp(scheduler_, 1);
  }

  void Go(int number) {
    running_ = number;
    Lane& lane = lanes_[static_cast<size_t>(number)];
    if (_setjmp(scheduler_) == 0) {
      if (lane.is_started) _longjmp(lane.context, 1);
      lane.is_started = true;
      getcontext(&lane.first);
      lane.first.uc_stack.ss_sp = stacks_ + static_cast<size_t>(number) * kStackBytes;
      lane.first.uc_stack.ss_size = kStackBytes;
      lane.first.uc_link = nullptr;
      makecontext(&lane.first, &Grid::Enter, 0);
      setcontext(&lane.first);
    }
    running_ = -1;
  }

  bool IsRunnable(size_t number) const {
    return !lanes_[number].is_done && lanes_[number].primitive == nullptr;
  }

  // Lets the members of a meeting go on once all of them are there; false if they have parted.
  bool Hold(size_t number) {
    const Lane& own = lanes_[number];
    if (own.primitive == nullptr) return true;
    const size_t first = number / kWarpLanes * kWarpLanes;
    if (!(own.members >> (number - first) & 1)) return Fail(number, "is no member of it");
    for (size_t i = 0; i < kWarpLanes; ++i) {
      if (!(own.members >> i & 1)) continue;
      const Lane& other = lanes_[first + i];
      if (other.is_done) return Fail(number, "another member is at its end");
      if (other.primitive == nullptr) return true;
      if (std::strcmp(other.primitive, own.primitive) != 0 || other.members != own.members) {
        return Fail(number, "another member is at " + std::string(other.primitive));
      }
    }
    const uint32_t members = own.members;
    uint64_t values[kWarpLanes] = {};
    for (size_t i = 0; i < kWarpLanes; ++i) {
      if (members >> i & 1) values[i] = lanes_[first + i].value;
    }
    for (size_t i = 0; i < kWarpLanes; ++i) {
      if (!(members >> i & 1)) continue;
      std::memcpy(lanes_[first + i].given, values, sizeof(values));
      lanes_[first + i].primitive = nullptr;
    }
    return true;
  }

  bool Fail(size_t number, const std::string& why) {
    error_ = std::string(kernel_->name) + ": lanes parted: lane " + std::to_string(number) +
             " is at " + lanes_[number].primitive + ", " + why;
    return false;
  }

  void RunWarp(int warp) {
    const size_t first = static_cast<size_t>(warp) * kWarpLanes;
    for (bool goes_on = true; goes_on && error_.empty();) {
      goes_on = false;
      for (size_t i = first; i < first + kWarpLanes; ++i) {
        if (!IsRunnable(i)) continue;
        goes_on = true;
        Go(static_cast<int>(i));
      }
      for (size_t i = first; i < first + kWarpLanes; ++i) {
        if (!Hold(i)) return;
      }
    }
    RequireDone();
  }

  bool IsAwake(size_t number, int64_t now) const {
    const size_t warp = number / kWarpLanes;
    return static_cast<int>(warp) != starved_ && sleeps_until_[warp] <= now;
  }

  // Every lane that can go on is chosen in the end: sleep is short against what a kernel takes.
  void RunMixed() {
    std::vector<size_t> ready;
    for (int64_t now = 0; error_.empty(); ++now) {
      if (now > kMaxSwitches) {
        error_ = std::string(kernel_->name) +
                 " does not end: a lane waits for what a lane that is "
                 "not run would do";
        return;
      }
      const bool sleeps = random_() % 512 == 0;
      if (sleeps)
        sleeps_until_[random_() % sleeps_until_.size()] =
            now + static_cast<int64_t>(random_() % 4096);
      if (now % 16 == 0 || ready.empty()) {
        if (!FindReady(now, &ready)) return RequireDone();
        if (ready.empty()) continue;
      }
      const size_t chosen = ready[random_() % ready.size()];
      if (!IsRunnable(chosen)) {
        ready.clear();
        continue;
      }
      Go(static_cast<int>(chosen));
      if (!lanes_[chosen].is_done && !Hold(chosen)) return;
    }
  }

  // False if no lane can go on.
  bool FindReady(int64_t now, std::vector<size_t>* ready) {
    ready->clear();
    bool any = false, any_else = false;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!IsRunnable(i)) continue;
      any = true;
      any_else = any_else || static_cast<int>(i / kWarpLanes) != starved_;
      if (IsAwake(i, now)) ready->push_back(i);
    }
    if (any && !any_else) starved_ = -1;
    return any;
  }

  void RequireDone() {
    for (size_t i = 0; i < lanes_.size() && error_.empty() && order_ != kWarpByWarp; ++i) {
      if (!lanes_[i].is_done) Fail(i, "and nobody comes");
    }
  }

  const int num_warps_;
  std::vector<Lane> lanes_;
  char* stacks_ = nullptr;
  jmp_buf scheduler_;
  const Kernel* kernel_ = nullptr;
  const void* args_ = nullptr;
  int64_t count_ = 0;
  Order order_ = kWarpByWarp;
  std::mt19937_64 random_;
  std::vector<int64_t> sleeps_until_;
  int starved_ = -1;
  int running_ = -1;
  std::string error_;
};

thread_local Grid* current = nullptr;
LevelTwo level_two;  // over all launches

void Grid::Enter() {
  Grid& grid = *current;
  grid.kernel_->run(grid.args_, grid.count_);
  grid.lane().is_done = true;
  _longjmp(grid.scheduler_, 1);
}

bool IsInside(const void* address) {
  return current != nullptr && current->is_running() && !current->IsOnStack(address);
}

}  // namespace

Index Thread() { return {static_cast<unsigned>(current->running() % (kBlockWarps * kWarpLanes))}; }
Index Block() { return {static_cast<unsigned>(current->running() / (kBlockWarps * kWarpLanes))}; }
Index BlockSize() { return {kBlockWarps * kWarpLanes}; }
Index GridSize() { return {static_cast<unsigned>(current->num_warps() / kBlockWarps)}; }
void BeginItem() { current->lane().accesses.BeginItem(); }

unsigned Ballot(unsigned members, bool vote) {
  current->Meet("a ballot", members, vote);
  unsigned votes = 0;
  const uint64_t* given = current->lane().given;
  for (int i = 0; i < kWarpLanes; ++i) votes |= static_cast<unsigned>(given[i] & 1) << i;
  return votes & members;
}

uint64_t ShuffleBits(unsigned members, uint64_t bits, int lane, int width) {
  const int own = current->running() % kWarpLanes;
  current->Meet("a shuffle", members, bits);
  return current->lane().given[own / width * width + lane % width];
}

void SyncWarp(unsigned members) { current->Meet("a sync", members, 0); }

void NoteAccess(Kind kind, const void* address, int64_t size, const void* place) {
  if (!IsInside(address)) return;
  current->lane().accesses.Add(kind, reinterpret_cast<uint64_t>(address), size,
                               reinterpret_cast<uint64_t>(place));
  current->MayPart();
}

}  // namespace grid

extern "C" {

// Empties the second-level cache, which then has room for so many sectors; 0: there is none.
void grid_empty_cache(int64_t num_sectors) {
  grid::level_two.Reset(static_cast<size_t>(num_sectors));
}

// Has it write everything back; counts [2] as LevelTwo adds to them.
void grid_flush_cache(int64_t* counts) { grid::level_two.Flush(counts); }

// 0: done. 1: `error` [200] says what went wrong. counts [kNumCounts] are added to; of_arrays
// [num_arrays, 2] too, the sectors and those of memory of arrays that begin at `arrays`, ascending.
int grid_run(const char* name, const void* args, int64_t args_size, int64_t count, int num_warps,
             int order, uint64_t seed, int64_t* counts, const uint64_t* arrays, int64_t num_arrays,
             int64_t* of_arrays, char* error) {
  using namespace grid;  // NOLINT: the entry
  std::string what = "no such kernel";
  for (int i = 0; i < kNumKernels; ++i) {
    if (std::strcmp(kKernels[i].name, name) != 0) continue;
    if (kKernels[i].args_size != args_size) {
      what = "args of another size";
      break;
    }
    Grid own(num_warps);
    current = &own;
    what = own.Run(kKernels[i], args, count, static_cast<Order>(order), seed);
    current = nullptr;
    std::vector<const Accesses*> lanes;
    for (const Lane& lane : own.lanes()) lanes.push_back(&lane.accesses);
    Arrays owners(arrays, num_arrays);
    CountWarps(lanes, kWarpLanes, &level_two, &owners, counts);
    for (int64_t k = 0; k < num_arrays; ++k) {
      of_arrays[2 * k] += owners.all()[static_cast<size_t>(k)].sectors;
      of_arrays[2 * k + 1] += owners.all()[static_cast<size_t>(k)].memory;
    }
    break;
  }
  std::strncpy(error, what.c_str(), 199);
  return what.empty() ? 0 : 1;
}

}  // extern "C"
