// What the system refuses: a thread for compaction, memory in the middle of an erase; and the last
// place that an index can name. Each is one typed error, and nothing stored is lost.
//
// Above it: ctest. Below it: compaction_lab.h, csrc/ssd_store; this program's own operator new.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "common/thread_pool.h"
#include "compaction_lab.h"

namespace {

// Of this thread: so many allocations are granted, then one is refused; below zero: all granted.
thread_local int64_t num_granted = -1;

void* Allocate(std::size_t size) {
  if (num_granted == 0) {
    num_granted = -1;
    throw std::bad_alloc();
  }
  num_granted -= num_granted > 0;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: the compiler would take the pair of new and free for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) { return Allocate(size); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return Allocate(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace hps {
namespace {

// While it lives, new threads ask for more memory than any machine has.
class NoThreads {
 public:
  NoThreads() {
    HPS_CHECK(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge;
    HPS_CHECK(pthread_attr_init(&huge) == 0);
    HPS_CHECK(pthread_attr_setstacksize(&huge, std::size_t{1} << 46) == 0);
    HPS_CHECK(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() { HPS_CHECK(pthread_setattr_default_np(&before_) == 0); }

 private:
  pthread_attr_t before_;
};

void TestARefusedThreadIsAnErrorOfTheOpening(const CompactionLab& lab) {
  lab.Reset();
  State state;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Put(store.get(), Range(0, 500), 1, &state).ok() && Save(store.get()).ok());
  store.reset();
  StoreOptions options = lab.Options();
  options.compacts_in_background = true;
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    const NoThreads none;
    const Status status = SsdStore::Open(PosixFileSystem(), options, &store);
    HPS_CHECK(status.code() == StatusCode::kStore && status.os_error() == EAGAIN);
    HPS_CHECK(status.message().find("compact_in_background=False") != std::string::npos);
    HPS_CHECK(store == nullptr);
    HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());  // as it advises
    HPS_CHECK(Holds(*store, 500, state));
    store.reset();
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  HPS_CHECK(sigismember(&before, SIGINT) == sigismember(&after, SIGINT));
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  HPS_CHECK(Holds(*store, 500, state));
}

void TestAPoolOfRefusedThreadsDoesTheWorkWithThoseItHas() {
  std::unique_ptr<ThreadPool> pool;
  {
    const NoThreads none;
    pool = std::make_unique<ThreadPool>(4);
  }
  HPS_CHECK(pool->num_threads() == 1);
  std::atomic<int> sum{0};
  DealOut(pool.get(), 100, [&](size_t number, int) { sum += static_cast<int>(number); });
  HPS_CHECK(sum == 4950);
}

// Six places for segments, a small one each.
StoreOptions FewPlaces(const CompactionLab& lab) {
  StoreOptions options = lab.Options();
  options.most_places = 7 * 4096;
  return options;
}

void TestMoreRecordsThanPlacesStopTheStoreAndLoseNothing(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), FewPlaces(lab), &store).ok());
  State state;
  const uint64_t capacity = store->table(0).SegmentCapacity();
  HPS_CHECK(Put(store.get(), Range(0, 5 * capacity), 1, &state).ok() && Save(store.get()).ok());
  const State saved = state;
  HPS_CHECK(Put(store.get(), Range(5 * capacity, 6 * capacity), 1, &state).ok());
  HPS_CHECK(store->table(0).Figures().num_segments == 6);
  const Status status = store->Append(0, RowsOf({1 << 20}, 1).data(), 1);
  HPS_CHECK(status.code() == StatusCode::kStore && status.os_error() == EOVERFLOW);
  HPS_CHECK(status.message().find("'ads'") != std::string::npos);
  HPS_CHECK(status.message().find("24576 records") != std::string::npos);
  HPS_CHECK(status.message().find("open it again") != std::string::npos);
  const Status next = store->Append(0, RowsOf({0}, 1).data(), 1);
  HPS_CHECK(next.code() == StatusCode::kStore && next.os_error() == EIO);
  HPS_CHECK(Holds(*store, 7 * capacity, state));
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), FewPlaces(lab), &store).ok());
  HPS_CHECK(Holds(*store, 7 * capacity, saved));
  store.reset();
  StoreOptions fewer = lab.Options();
  fewer.most_places = 5 * 4096;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), fewer, &store).os_error() == EOVERFLOW);
}

// Its output needs two places and there is one left: a failure like a full disk, not the end of the
// store, and the one place is there for others.
void TestACompactionWithoutPlacesForItsOutputChangesNothing(const CompactionLab& lab) {
  lab.Reset();
  StoreOptions options = lab.Options();
  options.segment_bytes = 200000;
  options.most_places = 8 * 4096;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  State state;
  const uint64_t capacity = store->table(0).SegmentCapacity();
  HPS_CHECK(capacity > 5000 && capacity < 8192);
  HPS_CHECK(Put(store.get(), Range(0, 3 * capacity), 1, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Drop(store.get(), Range(0, 3 * capacity, 20), &state).ok() && Save(store.get()).ok());
  const uint64_t num_segments = store->table(0).Figures().num_segments;
  for (int attempt = 0; attempt < 3; ++attempt) {
    HPS_CHECK(store->Compact(0, 1).os_error() == EOVERFLOW);
    HPS_CHECK(store->table(0).Figures().num_segments == num_segments);
    HPS_CHECK(Holds(*store, 3 * capacity, state));
  }
  HPS_CHECK(Put(store.get(), Range(0, 100), 2, &state).ok());
  HPS_CHECK(Drop(store.get(), Range(0, 2 * capacity), &state).ok() && Save(store.get()).ok());
  HPS_CHECK(store->Compact(0, 1).ok() && store->Figures().compactions > 0);
  HPS_CHECK(Holds(*store, 3 * capacity, state) && IsWhole(lab));
}

// Refuses one allocation of an erase; what is gone then must be gone after the next opening, too.
// False if the erase had fewer.
bool RefuseMemoryInErase(const CompactionLab& lab, int64_t call) {
  constexpr uint64_t kMany = 10000;  // three holds of the table's lock
  lab.Reset();
  StoreOptions options = lab.Options();
  options.segment_bytes = uint64_t{1} << 20;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kMany), 1, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), {kMany}, 1, &state).ok());  // opens a segment for the tombstones
  const std::vector<uint64_t> keys = Range(0, kMany);
  std::vector<uint8_t> found(kMany);
  bool is_struck = false;
  num_granted = call;
  try {
    HPS_CHECK(store->Erase(0, keys.data(), kMany, found.data()).ok());
  } catch (const std::bad_alloc&) {
    is_struck = true;
  }
  num_granted = -1;
  HPS_CHECK(Read(*store, kMany + 1, &state) && state.count(kMany) == 1);
  for (const uint64_t key : keys) HPS_CHECK(found[key] == 1 - state.count(key));
  HPS_CHECK(Save(store.get()).ok());
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  HPS_CHECK(Holds(*store, kMany + 1, state));
  return is_struck;
}

void TestRefusedMemoryInAnEraseBringsNoRowBack(const CompactionLab& lab) {
  int64_t call = 0;
  while (RefuseMemoryInErase(lab, call)) ++call;
  std::printf("erase: memory refused at %lld allocations\n", static_cast<long long>(call));
  HPS_CHECK(call >= 2);
}

}  // namespace
}  // namespace hps

int main() {
  const hps::CompactionLab lab;
  hps::TestARefusedThreadIsAnErrorOfTheOpening(lab);
  hps::TestAPoolOfRefusedThreadsDoesTheWorkWithThoseItHas();
  hps::TestMoreRecordsThanPlacesStopTheStoreAndLoseNothing(lab);
  hps::TestACompactionWithoutPlacesForItsOutputChangesNothing(lab);
  hps::TestRefusedMemoryInAnEraseBringsNoRowBack(lab);
  std::printf("ok\n");
  return 0;
}
