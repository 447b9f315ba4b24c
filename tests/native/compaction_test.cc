// Compaction, step by step: crashes at every call, what is stored while rows are copied, the bound
// on space, tombstones, full disks, damage. Each ends with a store that opens at a whole
// checkpoint.
//
// Above it: ctest. Below it: compaction_lab.h, fault_file_system.h, csrc/ssd_store.
#include <cerrno>
#include <cstdio>
#include <new>
#include <random>
#include <thread>

#include "compaction_lab.h"
#include "fault_file_system.h"

namespace hps {
namespace {

constexpr uint64_t kKeys = 200;
constexpr uint64_t kPlainSegment = 64 + 48;  // what an empty segment takes: header and trailer

// A life with two compactions between checkpoints and one that renews a checkpoint. Notes the state
// of every checkpoint before it is tried, and how many were acknowledged.
Status Live(SsdStore* store, std::vector<State>* checkpoints, size_t* num_acknowledged) {
  State state = checkpoints->back();
  for (uint64_t value = 2; value <= 3; ++value) {
    HPS_RETURN_IF_ERROR(Put(store, Range(0, kKeys, 2), value, &state));
    HPS_RETURN_IF_ERROR(Drop(store, Range(value, kKeys, 7), &state));
    HPS_RETURN_IF_ERROR(Put(store, Range(value, kKeys, 14), value * 10, &state));
    if (value < 3) HPS_RETURN_IF_ERROR(store->Compact(0, 1));
    checkpoints->push_back(state);
    HPS_RETURN_IF_ERROR(Save(store));
    *num_acknowledged = checkpoints->size();
  }
  return store->Compact(0, 1);
}

// Opens without faults: the index of the checkpoint that the store is at, or -1; and it goes on.
int64_t Reopen(const CompactionLab& lab, const std::vector<State>& checkpoints,
               size_t num_acknowledged) {
  std::unique_ptr<SsdStore> store;
  if (!SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok()) return -1;
  State state;
  if (!Read(*store, kKeys, &state) || !IsWhole(lab)) return -1;
  HPS_CHECK(lab.BytesOnDisk() == store->Figures().files_bytes);  // leftovers are gone
  int64_t found = -1;
  for (size_t i = num_acknowledged - 1; i < checkpoints.size(); ++i) {
    if (state == checkpoints[i]) found = static_cast<int64_t>(i);
  }
  if (found < 0) return -1;
  HPS_CHECK(Put(store.get(), Range(0, kKeys, 3), 99, &state).ok());
  HPS_CHECK(store->Compact(0, 1).ok() && Save(store.get()).ok() && Holds(*store, kKeys, state));
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, kKeys, state) && IsWhole(lab));
  return found;
}

bool CrashAt(const CompactionLab& lab, int64_t call, bool loses_power, bool forgets_syncs,
             int64_t* violations) {
  lab.Reset();
  FaultFileSystem files;
  std::unique_ptr<SsdStore> store;
  std::vector<State> checkpoints(1);
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &checkpoints[0]).ok() && Save(store.get()).ok());
  files.faults.lie = forgets_syncs ? Lie::kForgottenSync : Lie::kNone;
  files.faults.is_crash = true;
  files.faults.fail_at_call = files.num_calls + call;
  size_t num_acknowledged = 1;
  const bool reached = !Live(store.get(), &checkpoints, &num_acknowledged).ok();
  if (!reached && call > 0) HPS_CHECK(store->Figures().compactions > 1);
  store.reset();
  std::mt19937_64 random(static_cast<uint64_t>(call));
  if (loses_power) files.LosePower(&random);
  *violations += Reopen(lab, checkpoints, num_acknowledged) < 0;
  return reached;
}

void TestCrashAtEveryCall(const CompactionLab& lab) {
  for (const bool loses_power : {false, true}) {
    int64_t violations = 0;
    int64_t call = 0;
    // Only the removal of files may fail unnoticed, so a life may end well after an early crash.
    for (int64_t untouched = 0; untouched < 25; ++call) {
      untouched = CrashAt(lab, call, loses_power, false, &violations) ? 0 : untouched + 1;
    }
    std::printf("crash%s: %lld calls\n", loses_power ? " and power loss" : "",
                static_cast<long long>(call));
    HPS_CHECK(call > 100 && violations == 0);
  }
}

void TestForgottenSyncsAreNoticed(const CompactionLab& lab) {
  int64_t violations = 0;
  for (int64_t call = 1000; call < 1008; ++call) CrashAt(lab, call, true, true, &violations);
  HPS_CHECK(violations > 0);
}

State StartState() {
  State state;
  for (const uint64_t key : Range(0, kKeys)) state[key] = 1;
  return state;
}

// What somebody else does in the middle of a compaction.
enum class Meddling {
  kChanges,
  kErasesAll,
  kCheckpoints,
  kRestores,
  kErasesLate,
  kOverwritesLate,
  kLast
};

// `visit` counts the reads since the first that was meddled with.
void Meddle(SsdStore* store, Meddling meddling, int visit, State* state) {
  const auto turn = static_cast<uint64_t>(visit);
  const bool is_late = meddling == Meddling::kErasesLate || meddling == Meddling::kOverwritesLate;
  if (is_late && visit == 0) {  // opens a segment that has a smaller number than the next output
    HPS_CHECK(Put(store, {0}, 5, state).ok());
  } else if (meddling == Meddling::kErasesLate) {
    // Even keys: the second output holds them, and the first has nothing dead.
    HPS_CHECK(Drop(store, {0}, state).ok());
    HPS_CHECK(Drop(store, Range(turn * 2 % 34, kKeys, 34), state).ok());
  } else if (meddling == Meddling::kOverwritesLate) {
    HPS_CHECK(Put(store, Range(turn % 17, kKeys, 17), 100 + turn, state).ok());
  }
  if (is_late || visit > 0) return;
  switch (meddling) {
    case Meddling::kChanges:
      HPS_CHECK(Put(store, Range(0, kKeys, 5), 7, state).ok());
      HPS_CHECK(Drop(store, Range(1, kKeys, 5), state).ok());
      HPS_CHECK(Drop(store, Range(2, kKeys, 5), state).ok());
      HPS_CHECK(Put(store, Range(2, kKeys, 10), 8, state).ok());
      break;
    case Meddling::kErasesAll:  // the inputs are dead, and only tombstones say so
      HPS_CHECK(Drop(store, Range(0, kKeys), state).ok());
      HPS_CHECK(Save(store).ok() && Save(store).ok());
      break;
    case Meddling::kCheckpoints:
      HPS_CHECK(Save(store).ok());
      HPS_CHECK(Drop(store, Range(3, kKeys, 5), state).ok());
      HPS_CHECK(Save(store).ok());
      break;
    default:
      HPS_CHECK(store->Restore({"start", 0}).ok());
      *state = StartState();
      HPS_CHECK(Put(store, Range(0, kKeys, 9), 6, state).ok());
  }
}

// Meddles at read number `read` of a compaction; false if there were fewer.
bool MeddleAt(const CompactionLab& lab, int64_t read, Meddling meddling) {
  lab.Reset();
  ReadHooks files;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &state).ok() && Save(store.get(), "start").ok());
  HPS_CHECK(Put(store.get(), Range(0, kKeys, 2), 2, &state).ok());
  HPS_CHECK(Drop(store.get(), Range(0, kKeys, 7), &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), Range(4, kKeys, 7), 3, &state).ok() && Save(store.get()).ok());
  int64_t num_reads = 0;
  int num_visits = 0;
  bool is_meddling = false;
  files.on_read = [&](const std::string&) {
    if (is_meddling || num_reads++ < read) return;
    is_meddling = true;
    std::thread([&] { Meddle(store.get(), meddling, num_visits++, &state); }).join();
    is_meddling = false;
  };
  HPS_CHECK(store->Compact(0, 1).ok());
  files.on_read = nullptr;
  HPS_CHECK(Holds(*store, kKeys, state) && Save(store.get()).ok());
  store.reset();
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok() && Holds(*store, kKeys, state));
  HPS_CHECK(store->Compact(0, 1).ok() && Holds(*store, kKeys, state));
  store.reset();
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, kKeys, state) && IsWhole(lab));
  HPS_CHECK(lab.BytesOnDisk() == store->Figures().files_bytes);
  return num_visits > 0;
}

void TestWhatIsStoredMeanwhileWins(const CompactionLab& lab) {
  for (int kind = 0; kind < static_cast<int>(Meddling::kLast); ++kind) {
    int64_t read = 0;
    while (MeddleAt(lab, read, static_cast<Meddling>(kind))) ++read;
    HPS_CHECK(read > 8);
  }
}

// A checkpoint that holds inputs and output at once: some keys are in the one, some in the other.
void TestCheckpointInTheMiddleOfAnInstall(const CompactionLab& lab) {
  constexpr uint64_t kMany = 300000;
  lab.Reset();
  ReadHooks files;
  StoreOptions options = lab.Options();
  options.segment_bytes = uint64_t{32} << 20;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, options, &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kMany), 1, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), Range(0, kMany, 3), 2, &state).ok() && Save(store.get()).ok());
  uint64_t most_segments = 0;
  int num_reads = 0;  // since the output stands among the segments
  files.on_read = [&](const std::string&) {
    if (store->table(0).Figures().num_segments < 3 || ++num_reads != 2) return;
    std::thread([&] {
      HPS_CHECK(Drop(store.get(), Range(0, kMany, 10), &state).ok() && Save(store.get()).ok());
    }).join();
    most_segments = store->Checkpoints().back().num_segments;
  };
  HPS_CHECK(store->Compact(0, 1).ok());
  HPS_CHECK(most_segments >= 3);  // two inputs and their output
  files.on_read = nullptr;
  store.reset();
  HPS_CHECK(SsdStore::Open(&files, options, &store).ok());
  HPS_CHECK(Holds(*store, kMany, state));
}

// A sync of a checkpoint fails in the middle of a compaction. False if it has fewer syncs.
bool FailSyncBesideACompaction(const CompactionLab& lab, int64_t sync, int* num_stopped) {
  lab.Reset();
  FaultFileSystem faulty;
  ReadHooks files(&faulty);
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  std::vector<State> checkpoints(1);
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &checkpoints[0]).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), Range(0, kKeys, 2), 2, &checkpoints[0]).ok() &&
            Save(store.get()).ok());
  State state = checkpoints[0];
  int num_reads = 0;
  Status saved;
  files.on_read = [&](const std::string&) {
    if (num_reads++ != 3) return;
    std::thread([&] {
      HPS_CHECK(Put(store.get(), Range(0, kKeys, 3), 3, &state).ok());
      faulty.faults.counted = Call::kSync;
      faulty.num_calls = 0;
      faulty.faults.fail_at_call = sync;
      saved = Save(store.get());
      faulty.faults.fail_at_call = -1;
    }).join();
  };
  const Status compacted = store->Compact(0, 1);
  HPS_CHECK(num_reads > 3);
  checkpoints.push_back(state);
  const bool has_stopped = !store->Append(0, RowsOf({1}, 9).data(), 1).ok();
  HPS_CHECK(has_stopped ? !saved.ok() && !compacted.ok() : compacted.ok());
  *num_stopped += has_stopped;
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  std::vector<NamedBlob> extras;
  HPS_CHECK(store->Extras({}, &extras).ok() && extras.size() == 1);
  HPS_CHECK(Holds(*store, kKeys, checkpoints[1]) ||
            (!saved.ok() && Holds(*store, kKeys, checkpoints[0])));
  HPS_CHECK(IsWhole(lab));
  return !saved.ok();
}

// Whether its record is on disk nobody knows then, so what either manifest names must stay.
void TestAFailedCommitBesideACompactionLosesNothing(const CompactionLab& lab) {
  int num_stopped = 0;
  int64_t sync = 0;
  while (FailSyncBesideACompaction(lab, sync, &num_stopped)) ++sync;
  HPS_CHECK(num_stopped > 3 && sync > num_stopped);  // one of them may be survived
}

bool IsWithinBound(const SsdStore& store) {
  const TableFigures figures = store.table(0).Figures();
  return figures.segment_bytes <= 2 * figures.live_bytes + 4 * store.table(0).FullSegmentBytes();
}

// Refuses memory at a read of a compaction. False if it has fewer reads.
bool RefuseMemoryAt(const CompactionLab& lab, int64_t read) {
  lab.Reset();
  ReadHooks files;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), Range(0, kKeys, 2), 2, &state).ok() && Save(store.get()).ok());
  int64_t num_reads = 0;
  const auto compact = [&] {
    num_reads = 0;
    files.on_read = [&](const std::string&) {
      if (num_reads++ == read) throw std::bad_alloc();
    };
    const Status status = store->Compact(0, 1);
    files.on_read = nullptr;
    return status;
  };
  const Status status = compact();
  if (num_reads <= read) return false;
  HPS_CHECK(status.os_error() == ENOMEM && store->Figures().compaction_failures == 1);
  HPS_CHECK(Holds(*store, kKeys, state));
  std::mt19937_64 random(11);
  for (uint64_t value = 3; value < 60; ++value) {
    std::vector<uint64_t> keys;
    for (int i = 0; i < 50; ++i) keys.push_back(random() % (1 + random() % kKeys));
    HPS_CHECK(Put(store.get(), keys, value, &state).ok() && IsWithinBound(*store));
  }
  HPS_CHECK(store->Figures().append_waits > 0 && store->Figures().compactions > 0);
  HPS_CHECK(store->Compact(0, 1).ok() && Save(store.get()).ok());
  HPS_CHECK(Holds(*store, kKeys, state) && IsWhole(lab));
  HPS_CHECK(lab.BytesOnDisk() == store->Figures().files_bytes);
  return true;
}

void TestRefusedMemoryEndsTheCompactionAlone(const CompactionLab& lab) {
  int64_t read = 0;
  while (RefuseMemoryAt(lab, read)) ++read;
  HPS_CHECK(read > 8);
}

void TestSegmentsStayUnderTheBound(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  std::mt19937_64 random(11);
  State state;
  for (uint64_t step = 1; step <= 600; ++step) {
    std::vector<uint64_t> keys;
    for (int i = 0; i < 50; ++i) keys.push_back(random() % (1 + random() % 2000));
    HPS_CHECK(Put(store.get(), keys, step, &state).ok());
    HPS_CHECK(IsWithinBound(*store));
    if (step % 50 == 0) HPS_CHECK(Save(store.get()).ok());
  }
  const StoreFigures figures = store->Figures();
  HPS_CHECK(figures.append_waits > 0 && figures.compactions > 5 && figures.bytes_compacted > 0);
  HPS_CHECK(figures.bytes_appended == 600 * 50 * (kRowBytes + 4));
  HPS_CHECK(Holds(*store, 2000, state));
}

// With the default segment_bytes: four segments of that size would be a gigabyte.
void TestASmallTableKeepsLittleThatIsDead(const CompactionLab& lab) {
  constexpr uint64_t kSmall = 20000;
  lab.Reset();
  StoreOptions options = lab.Options();
  options.segment_bytes = StoreOptions().segment_bytes;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  State state;
  uint64_t most_bytes = 0;
  uint64_t live_bytes = 0;
  for (uint64_t value = 1; value <= 90; ++value) {
    HPS_CHECK(Put(store.get(), Range(0, kSmall), value, &state).ok());
    const TableFigures figures = store->table(0).Figures();
    most_bytes = std::max(most_bytes, figures.segment_bytes);
    live_bytes = figures.live_bytes;
    HPS_CHECK(IsWithinBound(*store));
  }
  HPS_CHECK(store->Figures().bytes_appended > 40 * live_bytes);
  HPS_CHECK(most_bytes > uint64_t{24} << 20 && most_bytes < 2 * live_bytes + (uint64_t{40} << 20));
  HPS_CHECK(Holds(*store, kSmall, state));
}

// What it holds is bounded by what it has now, not by what it once had; also where the dead rows
// lie in a segment that was still open.
void TestATableThatHasShrunkHasSmallSegmentsAgain(const CompactionLab& lab) {
  constexpr uint64_t kMany = 76000;
  constexpr uint64_t kWide = 1024;  // so that the tombstones of all are few bytes
  lab.Reset();
  StoreOptions options = lab.Options();
  options.segment_bytes = StoreOptions().segment_bytes;
  options.tables[0].row_bytes = kWide;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  const std::vector<uint64_t> keys = Range(0, kMany);
  std::vector<char> rows(kMany * kWide);
  for (const uint64_t key : keys) std::memcpy(&rows[key * kWide], &key, 8);
  HPS_CHECK(store->Append(0, rows.data(), kMany).ok());
  const TableStore& table = store->table(0);
  HPS_CHECK(table.FullSegmentBytes() > uint64_t{16} << 20);
  const std::shared_ptr<const Segment> last = table.Segments().back();
  HPS_CHECK(!last->is_sealed && last->info.FileBytes(kWide) > uint64_t{10} << 20);
  HPS_CHECK(table.Segments().size() > 4 && table.Segments().size() < 12);
  std::vector<uint8_t> found(kMany);
  HPS_CHECK(store->Erase(0, keys.data(), kMany - 100, found.data()).ok());
  HPS_CHECK(last->is_sealed && table.FullSegmentBytes() < uint64_t{10} << 20);
  HPS_CHECK(!IsWithinBound(*store));
  HPS_CHECK(store->Append(0, rows.data(), 3).ok());
  HPS_CHECK(IsWithinBound(*store));
  HPS_CHECK(table.Fetch(keys.data(), kMany, rows.data(), found.data()).ok());
  for (const uint64_t key : keys) HPS_CHECK(found[key] == (key < 3 || key >= kMany - 100));
}

void TestSpaceComesBackAfterMassErase(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, 4000), 1, &state).ok() && Save(store.get()).ok());
  // A third of every segment: too little for the threshold, the tombstones have to ask for it.
  HPS_CHECK(Drop(store.get(), Range(0, 4000, 3), &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), Range(1, 600, 3), 2, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(store->Compact(0, 1).ok());
  TableFigures figures = store->table(0).Figures();
  HPS_CHECK(figures.segment_bytes == figures.live_bytes + figures.num_segments * kPlainSegment);
  HPS_CHECK(lab.BytesOnDisk() == figures.segment_bytes + 6000);  // and the dense blob
  HPS_CHECK(Holds(*store, 4000, state));
  HPS_CHECK(Drop(store.get(), Range(0, 4000), &state).ok() && Save(store.get()).ok());
  figures = store->table(0).Figures();
  HPS_CHECK(figures.num_segments == 0 && lab.BytesOnDisk() == 6000);
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, 4000, state));
}

void TestFullDiskNeitherLosesNorHangs(const CompactionLab& lab) {
  int num_failed = 0;
  int num_full = 0;
  for (int64_t space = 0; space < 40000; space += 900) {
    lab.Reset();
    FaultFileSystem files;
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
    State state;
    HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &state).ok() && Save(store.get()).ok());
    HPS_CHECK(Put(store.get(), Range(0, kKeys, 2), 2, &state).ok() && Save(store.get()).ok());
    files.faults.space_left = space;
    for (uint64_t value = 3; value < 30; ++value) {
      State attempted = state;
      const Status status = Put(store.get(), Range(value, kKeys, 4), value, &attempted);
      num_full += !status.ok();
      HPS_CHECK(status.ok() || status.os_error() == ENOSPC);
      if (!status.ok()) break;
      state = attempted;
    }
    const Status compacted = store->Compact(0, 1);
    HPS_CHECK(compacted.ok() || compacted.os_error() == ENOSPC);
    num_failed += store->Figures().compaction_failures > 0;
    files.faults.space_left = INT64_MAX;
    HPS_CHECK(Put(store.get(), Range(0, kKeys, 4), 50, &state).ok());  // all that was in doubt
    HPS_CHECK(Put(store.get(), Range(1, kKeys), 51, &state).ok());
    HPS_CHECK(store->Compact(0, 1).ok() && IsWithinBound(*store) && Save(store.get()).ok());
    HPS_CHECK(Holds(*store, kKeys, state) && IsWhole(lab));
    HPS_CHECK(lab.BytesOnDisk() == store->Figures().files_bytes);
  }
  std::printf("full disk: %d appends and %d compactions refused\n", num_full, num_failed);
  HPS_CHECK(num_full > 10 && num_failed > 10);
}

void Flip(const std::string& path, uint64_t offset) {
  std::unique_ptr<File> file;
  HPS_CHECK(PosixFileSystem()->Open(path, OpenMode::kReadWrite, &file).ok());
  char byte = 0;
  HPS_CHECK(file->Read(offset, 1, &byte).ok());
  byte ^= 1;
  HPS_CHECK(file->Write(offset, &byte, 1).ok());
}

// The one check behind fetches, scans, seals and compactions.
void TestTheCheckOfARecordNamesWhatIsWrong() {
  Segment segment;
  segment.path = "folder/segment";
  segment.row_bytes = kRowBytes;
  segment.info.number = 7;
  const std::vector<uint64_t> keys = {5, 6};
  const std::vector<char> rows = RowsOf(keys, 1);
  std::vector<char> records(2 * segment.stride());
  for (uint64_t i = 0; i < 2; ++i) {
    char* record = &records[i * segment.stride()];
    const uint32_t seed = RecordSeed(SegmentSeed(7), 40 + i);
    const uint32_t checksum = Crc32c(seed, &rows[i * kRowBytes], kRowBytes);
    std::memcpy(record, &rows[i * kRowBytes], kRowBytes);
    std::memcpy(record + kRowBytes, &checksum, 4);
  }
  const std::string place = "folder/segment: offset " + std::to_string(64 + 41 * segment.stride());
  HPS_CHECK(CheckRecords(segment, 40, 2, records.data(), keys.data()).ok());
  const std::vector<uint64_t> others = {5, 8};
  const Status other = CheckRecords(segment, 40, 2, records.data(), others.data());
  HPS_CHECK(other.code() == StatusCode::kCorruption);
  HPS_CHECK(other.message() == place + ": record 41 has key 6, key 8 expected");
  HPS_CHECK(CheckRecords(segment, 40, 2, records.data()).ok());  // where no key is expected
  records.back() ^= 1;
  const Status damaged = CheckRecords(segment, 40, 2, records.data(), others.data());
  HPS_CHECK(damaged.code() == StatusCode::kCorruption);
  HPS_CHECK(damaged.message().rfind(place + ": the checksum of record 41 is ", 0) == 0);
  HPS_CHECK(!CheckRecords(segment, 39, 1, records.data()).ok());  // in another place
}

void TestDamageIsNamedAndTheRestGoesOn(const CompactionLab& lab) {
  for (const bool is_live : {false, true}) {
    lab.Reset();
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
    State state;
    HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &state).ok() && Save(store.get()).ok());
    const auto first = store->table(0).Segments().front();
    HPS_CHECK(Put(store.get(), Range(0, kKeys, 2), 2, &state).ok());
    Flip(first->path, first->info.RecordOffset(is_live ? 1 : 2, kRowBytes) + 20);
    const Status status = store->Compact(0, 1);
    HPS_CHECK(status.ok() != is_live);
    const TableFigures figures = store->table(0).Figures();
    if (is_live) {
      HPS_CHECK(status.code() == StatusCode::kCorruption);
      HPS_CHECK(status.message().find(first->path) != std::string::npos);
      HPS_CHECK(std::filesystem::exists(first->path));
      const uint64_t dead = first->info.num_records / 2 * store->table(0).RowSpace();
      HPS_CHECK(figures.segment_bytes - figures.live_bytes <
                dead + (figures.num_segments + 1) * kPlainSegment);
    } else {
      HPS_CHECK(Holds(*store, kKeys, state) && figures.live_bytes * 2 > figures.segment_bytes);
    }
  }
}

}  // namespace
}  // namespace hps

int main() {
  const hps::CompactionLab lab;
  hps::TestCrashAtEveryCall(lab);
  hps::TestForgottenSyncsAreNoticed(lab);
  hps::TestWhatIsStoredMeanwhileWins(lab);
  hps::TestCheckpointInTheMiddleOfAnInstall(lab);
  hps::TestAFailedCommitBesideACompactionLosesNothing(lab);
  hps::TestRefusedMemoryEndsTheCompactionAlone(lab);
  hps::TestSegmentsStayUnderTheBound(lab);
  hps::TestASmallTableKeepsLittleThatIsDead(lab);
  hps::TestATableThatHasShrunkHasSmallSegmentsAgain(lab);
  hps::TestSpaceComesBackAfterMassErase(lab);
  hps::TestFullDiskNeitherLosesNorHangs(lab);
  hps::TestTheCheckOfARecordNamesWhatIsWrong();
  hps::TestDamageIsNamedAndTheRestGoesOn(lab);
  std::printf("ok\n");
  return 0;
}
