// The lanes of a device's lane group as fibers on the host: runs the device's own text, and notices
// when lanes part at a warp primitive.
//
// Above it: native tests of gpu_cache. Below it: ucontext. Include it before any header of csrc, in
// a translation unit of its own: it makes the names that csrc/table/device_group.h needs, and a
// build of its own. Lanes run one after the other up to the next primitive, in an order that
// changes from one to the next, so that a lane that relies on another one's writes without asking
// for them sees the wrong ones in some order.
#pragma once

#define HPS_BUILD build_simt

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

// What a lane waits for: lanes agree on it, or have parted.
struct Meeting {
  const char* primitive = "";
  uint32_t members = 0;
  int64_t item = 0;

  bool operator==(const Meeting& other) const {
    return std::strcmp(primitive, other.primitive) == 0 && members == other.members &&
           item == other.item;
  }
};

class Warp {
 public:
  explicit Warp(int num_lanes) : lanes_(static_cast<size_t>(num_lanes)) {
    for (Lane& lane : lanes_) lane.stack = std::make_unique<char[]>(kStackBytes);
#if defined(__SANITIZE_THREAD__)
    scheduler_fiber_ = __tsan_get_current_fiber();
    for (Lane& lane : lanes_) lane.fiber = __tsan_create_fiber(0);
#endif
  }
  ~Warp() {
#if defined(__SANITIZE_THREAD__)
    for (Lane& lane : lanes_) __tsan_destroy_fiber(lane.fiber);
#endif
  }
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;

  // Every lane calls body(item) for every item below `count`, as a kernel that strides over them.
  // False if the lanes parted; what() says how.
  bool Run(int64_t count, const std::function<void(int64_t)>& body) {
    Warp* const before = current_;
    current_ = this;
    what_.clear();
    body_ = &body;
    count_ = count;
    for (size_t i = 0; i < lanes_.size(); ++i) Start(static_cast<int>(i));
    while (what_.empty() && RunToMeeting()) {
    }
    current_ = before;
    return what_.empty();
  }

  const std::string& what() const { return what_; }
  int64_t num_meetings() const { return num_meetings_; }

  static Warp& current() { return *current_; }
  static bool is_inside() { return current_ != nullptr; }

  // Of the lane that runs.
  int lane() const { return running_; }

  // Leaves `value` where the others can see it, and waits for them.
  uint64_t Meet(const char* primitive, uint32_t members, uint64_t value) {
    Lane& own = lanes_[static_cast<size_t>(running_)];
    own.value = value;
    own.meeting = {primitive, members, own.item};
    const auto lane = static_cast<size_t>(running_);
    Switch(lane, kToScheduler);
    return lane;
  }

  uint64_t ValueOf(int lane) const { return lanes_[static_cast<size_t>(lane)].given; }
  int num_lanes() const { return static_cast<int>(lanes_.size()); }

 private:
  static constexpr size_t kStackBytes = 256 << 10;
  static constexpr bool kToScheduler = true;

  struct Lane {
    std::unique_ptr<char[]> stack;
    ucontext_t context = {};
    Meeting meeting;
    int64_t item = 0;
    uint64_t value = 0;  // left at the meeting it waits for
    uint64_t given = 0;  // left at the last meeting that was held
    bool is_done = false;
#if defined(__SANITIZE_THREAD__)
    void* fiber = nullptr;
#endif
  };

  static void Enter() {
    Warp& warp = *current_;
    const auto number = static_cast<size_t>(warp.running_);
    Lane& own = warp.lanes_[number];
    for (own.item = 0; own.item < warp.count_; ++own.item) (*warp.body_)(own.item);
    own.is_done = true;
    warp.Switch(number, kToScheduler);
  }

  void Start(int number) {
    Lane& lane = lanes_[static_cast<size_t>(number)];
    lane.is_done = false;
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = kStackBytes;
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, &Warp::Enter, 0);
  }

  void Switch(size_t number, bool to_scheduler) {
    Lane& lane = lanes_[number];
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to_scheduler ? scheduler_fiber_ : lane.fiber, 0);
#endif
    if (to_scheduler) {
      swapcontext(&lane.context, &scheduler_);
    } else {
      swapcontext(&scheduler_, &lane.context);
    }
  }

  // True while lanes have something left to do.
  bool RunToMeeting() {
    const auto count = static_cast<int>(lanes_.size());
    const bool falls = num_meetings_ % 2 == 1;
    for (int i = 0; i < count; ++i) {
      running_ = (falls ? count - 1 - i : i) ^ static_cast<int>(num_meetings_ / 2 % 2);
      if (running_ >= count) running_ = count - 1;
      Switch(static_cast<size_t>(running_), !kToScheduler);
    }
    running_ = -1;
    ++num_meetings_;
    return HoldMeeting();
  }

  bool HoldMeeting() {
    const Lane& first = lanes_.front();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      lane.given = lane.value;
      if (lane.is_done == first.is_done && (first.is_done || lane.meeting == first.meeting)) {
        continue;
      }
      what_ =
          "lane 0 is at " + NameOf(first) + ", lane " + std::to_string(i) + " at " + NameOf(lane);
      return false;
    }
    return !first.is_done;
  }

  static std::string NameOf(const Lane& lane) {
    if (lane.is_done) return "its end";
    return std::string(lane.meeting.primitive) + " of item " + std::to_string(lane.meeting.item);
  }

  static inline thread_local Warp* current_ = nullptr;

  std::vector<Lane> lanes_;
  ucontext_t scheduler_ = {};
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t count_ = 0;
  int running_ = -1;
  int64_t num_meetings_ = 0;
  std::string what_;
#if defined(__SANITIZE_THREAD__)
  void* scheduler_fiber_ = nullptr;
#endif
};

struct ThreadIdx {
  unsigned x;
};

// Outside of a warp there is one lane.
inline ThreadIdx LaneIdx() {
  return {Warp::is_inside() ? static_cast<unsigned>(Warp::current().lane()) : 0u};
}

inline unsigned Ballot(unsigned members, bool vote) {
  Warp& warp = Warp::current();
  warp.Meet("a ballot", members, vote);
  unsigned votes = 0;
  for (int lane = 0; lane < warp.num_lanes(); ++lane) {
    votes |= static_cast<unsigned>(warp.ValueOf(lane)) << lane;
  }
  return votes;
}

template <class T>
inline T Shuffle(unsigned members, T value, int lane, int width) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  Warp& warp = Warp::current();
  const int own = warp.lane();
  warp.Meet("a shuffle", members, bits);
  const uint64_t other = warp.ValueOf(own / width * width + lane % width);
  std::memcpy(&value, &other, sizeof(T));
  return value;
}

inline void SyncWarp(unsigned members) { Warp::current().Meet("a sync", members, 0); }

}  // namespace simt

#define threadIdx (::simt::LaneIdx())
#define __ballot_sync(members, vote) ::simt::Ballot(members, vote)
#define __shfl_sync(members, value, lane, width) ::simt::Shuffle(members, value, lane, width)
#define __syncwarp(members) ::simt::SyncWarp(members)
