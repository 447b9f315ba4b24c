// A reader that begins with the index of another one: across a compaction that a checkpoint falls
// into, whose output holds records that were live when they were copied and gone in both
// checkpoints; and with a segment of so many keys that several threads learn it.
//
// Above it: ctest. Below it: compaction_lab.h, csrc/ssd_store/table_follow.cc.
#include <cstdio>
#include <set>

#include "compaction_lab.h"

namespace hps {
namespace {

constexpr uint64_t kKeys = 2000;
// Of the first segment, once its record is copied: erased, as the next one is; written again.
constexpr uint64_t kCopied = 5, kWritten = 7;

constexpr uint64_t kManyKeys = 100000;
constexpr uint64_t kLearned = 20000;  // at once, by two threads: each takes 8,192 keys at least

std::unique_ptr<SsdStore> OpenReader(StoreOptions options, FileSystem* files, SsdStore* beside,
                                     bool shares) {
  options.read_only = true;
  options.beside = beside;
  options.shares_index = shares;
  std::unique_ptr<SsdStore> reader;
  HPS_CHECK(SsdStore::Open(files, options, &reader).ok());
  return reader;
}

// Two segments half stale, rewritten as one; as the second is read, `meddle` is called once.
void CompactBeside(SsdStore* store, ReadHooks* files, State* state,
                   const std::function<void()>& meddle) {
  const auto segments = store->table(0).Segments();
  const uint64_t size = segments[0]->info.num_records;
  HPS_CHECK(Put(store, Range(size - 70, size), 2, state).ok());
  HPS_CHECK(Put(store, Range(2 * size - 70, 2 * size), 2, state).ok() && Save(store).ok());
  bool has_meddled = false;
  files->on_read = [&, second = segments[1]->path](const std::string& path) {
    if (has_meddled || path != second) return;
    has_meddled = true;
    std::thread(meddle).join();
  };
  HPS_CHECK(store->Compact(0, 1).ok() && has_meddled);
  files->on_read = nullptr;
}

// The later checkpoint from the index of the earlier one, which was taken in the midst of the
// compaction: the same rows, and of segments that both have no footer is read but those that say
// what is gone.
void TestAnOutputThatACheckpointFellInto(const CompactionLab& lab, bool shares) {
  lab.Reset();
  ReadHooks files;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &state).ok() && Save(store.get()).ok());
  const std::string untouched = store->table(0).Segments()[4]->path;
  std::unique_ptr<SsdStore> earlier;
  State before;
  CompactBeside(store.get(), &files, &state, [&] {
    HPS_CHECK(Put(store.get(), {kWritten}, 4, &state).ok());
    HPS_CHECK(Drop(store.get(), {kCopied, kCopied + 1}, &state).ok() && Save(store.get()).ok());
    before = state;
    earlier = OpenReader(lab.Options(), PosixFileSystem(), nullptr, false);
  });
  HPS_CHECK(Put(store.get(), {kCopied + 1}, 3, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Holds(*earlier, kKeys, before) && before.count(kCopied) == 0);
  bool is_read_anew = false;
  ReadHooks watched;
  watched.on_read = [&](const std::string& path) { is_read_anew |= path == untouched; };
  const std::unique_ptr<SsdStore> later =
      OpenReader(lab.Options(), &watched, earlier.get(), shares);
  HPS_CHECK(!is_read_anew);
  HPS_CHECK(Holds(*later, kKeys, state) && Holds(*earlier, kKeys, before));
  HPS_CHECK(later->table(0).Snapshot().num_rows == state.size());
}

std::vector<int64_t> LiveOf(const SsdStore& store) {
  std::vector<int64_t> live;
  for (const auto& segment : store.table(0).Segments()) live.push_back(segment->live);
  return live;
}

// Rows, and how many each segment still has, are those of a reader that began with nothing.
void TestASegmentThatSeveralThreadsLearn(const CompactionLab& lab, bool shares) {
  lab.Reset();
  StoreOptions options = lab.Options();
  options.segment_bytes = uint64_t{1} << 20;
  options.num_threads = 2;
  options.keep_last = 2;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kManyKeys), 1, &state).ok() && Save(store.get()).ok());
  const std::unique_ptr<SsdStore> earlier = OpenReader(options, PosixFileSystem(), nullptr, false);
  const State before = state;
  const uint64_t step = kManyKeys / kLearned;
  HPS_CHECK(Put(store.get(), Range(step - 1, kManyKeys + 500, step), 2, &state).ok());
  HPS_CHECK(Drop(store.get(), Range(0, kManyKeys, 100), &state).ok() && Save(store.get()).ok());
  HPS_CHECK(store->table(0).Segments().back()->info.num_records > kLearned);
  const std::unique_ptr<SsdStore> anew = OpenReader(options, PosixFileSystem(), nullptr, false);
  bool is_read_anew = false;
  ReadHooks watched;
  const std::string untouched = store->table(0).Segments()[0]->path;
  watched.on_read = [&](const std::string& path) { is_read_anew |= path == untouched; };
  const std::unique_ptr<SsdStore> later = OpenReader(options, &watched, earlier.get(), shares);
  HPS_CHECK(!is_read_anew && LiveOf(*later) == LiveOf(*anew));
  watched.on_read = nullptr;
  const uint64_t end = kManyKeys + 500;
  HPS_CHECK(Holds(*later, end, state) && Holds(*earlier, end, before));
}

}  // namespace
}  // namespace hps

int main() {
  const hps::CompactionLab lab;
  for (const bool shares : {false, true}) {
    hps::TestAnOutputThatACheckpointFellInto(lab, shares);
    hps::TestASegmentThatSeveralThreadsLearn(lab, shares);
  }
  std::printf("ok\n");
  return 0;
}
