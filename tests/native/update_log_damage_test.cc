// Recipes T1 and B1 of the update log: files cut off anywhere, bits flipped anywhere, blocks
// swapped. Damage is refused with the name of the file, or it lies in the final record, which then
// counts as torn. Two others have no effect: damage of the mark, and a cut that takes nothing but
// records that were taken back. With the argument "full" every offset and many bits are tried.
//
// Above it: ctest, tests/torture/run.py. Below it: update_log_lab.h, recipe.h.
#include <algorithm>
#include <cstring>
#include <map>

#include "recipe.h"
#include "update_log_lab.h"

namespace hps {
namespace {

using Files = std::map<std::string, std::string>;  // bytes by name

// The last one: killed in a file that was used before, whose old records lie behind the new ones.
enum class Ending { kClosed, kKilled, kTakenBack, kKilledInUsed };

// A log of several files, whole, and what must be read from it.
struct Whole {
  Files files;
  std::vector<LogRecord> records;
  uint64_t checkpoint = 0;
  std::string newest;     // file
  uint64_t final_at = 0;  // where in it the final record begins; its end if it was taken back
  uint64_t end = 0;       // of its frames
  std::map<std::string, uint64_t> counted;  // the end of each file's records that count
};

std::string BytesOf(const LogLab& lab, const std::string& name) {
  std::string bytes;
  HPS_CHECK(ReadWholeFile(PosixFileSystem(), lab.Path(name), &bytes).ok());
  return bytes;
}

Whole MakeWhole(const LogLab& lab, uint64_t seed, Ending ending) {
  lab.Reset();
  LogLife life(lab, seed);
  HPS_CHECK(life.Open().ok());
  if (ending == Ending::kKilledInUsed) {
    for (int i = 0; i < 200; ++i) HPS_CHECK(life.Append().ok());
    HPS_CHECK(life.Wait(false).ok() && life.Cut(200).ok());
  }
  for (uint64_t i = 0; i < 40; ++i) {
    if (i % 6 == 0) HPS_CHECK(life.Refuse(i / 6).ok());
    HPS_CHECK(life.Append().ok());
    if (i % 3 == 0) HPS_CHECK(life.Wait(i % 9 == 0).ok());
    if (i == 12) HPS_CHECK(life.Cut(life.log->appended() - 3).ok());
  }
  if (ending == Ending::kTakenBack) HPS_CHECK(life.Refuse(2).ok());
  HPS_CHECK(life.Wait(false).ok());
  const bool is_used = ending == Ending::kKilledInUsed;
  for (const int64_t before = life.files.num_used_again; is_used;) {
    const bool has_begun = life.files.num_used_again > before;
    HPS_CHECK(life.Append().ok() && life.Wait(false).ok());
    if (has_begun) break;
  }
  if (ending == Ending::kKilled || is_used) {
    life.Kill();
  } else {
    HPS_CHECK(life.log->Close().ok());
  }
  Whole whole;
  whole.checkpoint = life.checkpoint;
  for (const std::string& name : lab.Names()) {
    if (name.starts_with(kLogSpareName)) continue;
    whole.files[name] = BytesOf(lab, name);
    if (name != kLogMarkName) whole.newest = name;
  }
  HPS_CHECK(whole.files.size() >= 4);
  for (const auto& [name, bytes] : whole.files) {
    LogReader reader;
    uint64_t first = 0;
    bool is_found = false;
    if (!ParseFileName(name, kLogFilePrefix, &first)) continue;
    HPS_CHECK(reader.Open(PosixFileSystem(), lab.Path(name), first, &is_found).ok() && is_found);
    while (is_found) {
      whole.counted[name] = reader.offset();
      HPS_CHECK(reader.Next(&is_found).ok());
    }
    const bool has_leftovers = reader.offset() < bytes.size();
    HPS_CHECK(!has_leftovers || (is_used && name == whole.newest));
    whole.final_at = reader.last_record();
    whole.end = reader.offset();
  }
  HPS_CHECK((whole.final_at == whole.end) == (ending == Ending::kTakenBack));
  HPS_CHECK(life.Open().ok() && ReadAll(life.log.get(), &whole.records).ok());
  HPS_CHECK(CompareRecords(life, whole.records, life.logged).empty() && whole.records.size() > 3);
  return whole;
}

// What befell a log: which files, and the first byte in each that is not what it was.
using Damage = std::map<std::string, uint64_t>;

struct Verdicts {
  int64_t refused = 0;
  int64_t torn = 0;
  int64_t harmless = 0;
};

std::string Told(const Verdicts& verdicts) {
  return std::to_string(verdicts.refused) + " refused, " + std::to_string(verdicts.torn) +
         " torn at the end, " + std::to_string(verdicts.harmless) + " harmless";
}

bool AreEqual(const std::vector<LogRecord>& left, const std::vector<LogRecord>& right,
              size_t count) {
  if (left.size() != count) return false;
  for (size_t i = 0; i < count; ++i) {
    if (left[i].number != right[i].number || left[i].payload != right[i].payload) return false;
  }
  return true;
}

// Opens the damaged log; what is wrong with what comes of it, or "".
std::string Judge(const LogLab& lab, const Whole& whole, const Files& files, const Damage& damage,
                  Verdicts* verdicts) {
  lab.Reset();
  FaultFileSystem quick;  // without faults; its syncs take no time
  HPS_CHECK(quick.CreateFolder(lab.Options().folder).ok());
  for (const auto& [name, bytes] : files) {
    HPS_CHECK(WriteNewFile(&quick, lab.Path(name), bytes).ok());
  }
  std::unique_ptr<UpdateLog> log;
  std::vector<LogRecord> records;
  Status status = UpdateLog::Open(&quick, lab.Options(whole.checkpoint), &log);
  if (status.ok()) status = ReadAll(log.get(), &records);
  const auto& [hit, place] = *damage.begin();
  const bool may_be_harmless = hit == kLogMarkName ||
                               (files.at(hit).size() == place && whole.counted.at(hit) == place) ||
                               (hit == whole.newest && place >= whole.end);
  if (status.ok() && AreEqual(records, whole.records, whole.records.size())) {
    ++verdicts->harmless;
    return may_be_harmless ? "" : "damage was not found";
  }
  if (status.ok()) {
    bool is_final = true;
    for (const auto& [name, offset] : damage) {
      is_final = is_final && name == whole.newest && offset >= whole.final_at;
    }
    ++verdicts->torn;
    const bool is_prefix = AreEqual(records, whole.records, whole.records.size() - 1);
    return is_final && is_prefix ? "" : "wrong records were handed out, or some are missing";
  }
  ++verdicts->refused;
  if (status.code() != StatusCode::kCorruption) return "no corruption: " + status.message();
  for (const auto& [name, offset] : damage) {
    if (status.message().rfind(lab.Path(name) + ": offset ", 0) == 0) return "";
  }
  return "another file is blamed: " + status.message();
}

constexpr uint64_t kTail = 100;

void Truncate(const LogLab& lab, const Whole& whole, uint64_t stride, Recipe* recipe,
              Verdicts* verdicts) {
  for (const auto& [name, bytes] : whole.files) {
    // Every offset of the tail: the final record, and some of what is before it.
    const uint64_t tail =
        name == whole.newest ? whole.final_at - std::min(whole.final_at, kTail) : bytes.size();
    for (uint64_t size = recipe->runs % stride; size < bytes.size();
         size += size < tail ? stride : 1 + stride / 64) {
      Files files = whole.files;
      files[name].resize(size);
      ++recipe->runs;
      const std::string wrong = Judge(lab, whole, files, {{name, size}}, verdicts);
      recipe->Note(wrong.empty() ? "" : name + " cut: " + wrong, 0, static_cast<int64_t>(size));
    }
  }
}

// A byte of all files, equally likely.
std::pair<std::string, uint64_t> AnyByte(const Files& files, std::mt19937_64* random) {
  uint64_t total = 0;
  for (const auto& [name, bytes] : files) total += bytes.size();
  uint64_t at = (*random)() % total;
  for (const auto& [name, bytes] : files) {
    if (at < bytes.size()) return {name, at};
    at -= bytes.size();
  }
  return {};
}

// Gives the frame around a byte the checksum of what it holds now, if only its payload differs.
bool MendChecksum(const std::string& name, uint64_t at, const UpdateLogOptions& options,
                  std::string* bytes) {
  uint64_t first = 0;
  if (!ParseFileName(name, kLogFilePrefix, &first)) return false;
  for (uint64_t place = kLogFileHeaderBytes; place + kFrameHeaderBytes <= bytes->size();) {
    FrameHeader header;
    std::memcpy(&header, bytes->data() + place, sizeof(header));
    const uint64_t size =
        header.length == kTakenBack ? kFrameHeaderBytes : FrameBytes(header.length);
    if (at >= place + size) {
      place += size;
      continue;
    }
    if (at < place + kFrameHeaderBytes) return false;
    const uint64_t seed = LogFileSeed(options.identity, first);
    header.checksum =
        Crc32c(FrameHeaderChecksum(FrameSeed(seed, place), header.length, header.number),
               bytes->data() + place + kFrameHeaderBytes, size - kFrameHeaderBytes);
    std::memcpy(bytes->data() + place, &header, sizeof(header));
    return true;
  }
  return false;
}

// Makes a record that follows the newest of what a used file held behind it.
void PlantRecord(const UpdateLogOptions& options, const Whole& whole, std::string* bytes) {
  FrameHeader header;
  header.length = 64;
  header.number = whole.records.back().number + 1;
  const uint64_t first = std::stoull(whole.newest.substr(kLogFilePrefix.size()));
  const uint32_t seed = FrameSeed(LogFileSeed(options.identity, first), whole.end);
  HPS_CHECK(whole.end + FrameBytes(header.length) <= bytes->size());
  header.checksum = Crc32c(FrameHeaderChecksum(seed, header.length, header.number),
                           bytes->data() + whole.end + kFrameHeaderBytes, header.length);
  std::memcpy(bytes->data() + whole.end, &header, sizeof(header));
}

void FlipBits(const LogLab& lab, const Whole& whole, int64_t count, std::mt19937_64* random,
              Recipe* recipe, Verdicts* verdicts) {
  const uint64_t final_bytes = whole.end - std::min(whole.final_at, whole.end);
  for (int64_t i = 0; i < count; ++i) {
    Files files = whole.files;
    auto [name, at] = AnyByte(files, random);
    // The final record is a small part of the files, and the only one that may count as torn.
    if (i % 8 == 0 && final_bytes > 0) {
      name = whole.newest;
      at = whole.final_at + (*random)() % final_bytes;
    }
    files[name][at] = static_cast<char>(files[name][at] ^ (1 << (*random)() % 8));
    ++recipe->runs;
    const std::string wrong = Judge(lab, whole, files, {{name, at}}, verdicts);
    recipe->Note(wrong.empty() ? "" : name + ": " + wrong, 0, static_cast<int64_t>(at));
  }
}

void SwapBlocks(const LogLab& lab, const Whole& whole, int64_t count, std::mt19937_64* random,
                Recipe* recipe, Verdicts* verdicts) {
  constexpr uint64_t kBlock = 64;
  for (int64_t i = 0; i < count; ++i) {
    Files files = whole.files;
    const auto [one, left] = AnyByte(files, random);
    const auto [other, right] = AnyByte(files, random);
    if (left + kBlock > files[one].size() || right + kBlock > files[other].size()) continue;
    const std::string block = whole.files.at(one).substr(left, kBlock);
    files[one].replace(left, kBlock, whole.files.at(other), right, kBlock);
    files[other].replace(right, kBlock, block);
    if (files == whole.files || one == kLogMarkName || other == kLogMarkName) continue;
    Damage damage;
    for (const auto& [name, bytes] : whole.files) {
      const auto differs = std::mismatch(bytes.begin(), bytes.end(), files[name].begin());
      if (differs.first == bytes.end()) continue;
      damage[name] = static_cast<uint64_t>(differs.first - bytes.begin());
    }
    ++recipe->runs;
    recipe->Note(Judge(lab, whole, files, damage, verdicts), i, static_cast<int64_t>(left));
  }
}

// A mark that says that nothing was ever written: truncated files pass for shorter logs.
void PlantEmptyMark(const LogLab& lab, Whole* whole) {
  lab.Reset();
  HPS_CHECK(PosixFileSystem()->CreateFolder(lab.Options().folder).ok());
  std::unique_ptr<LogMarkFile> mark;
  HPS_CHECK(LogMarkFile::Open(PosixFileSystem(), lab.Options().folder, &mark).ok());
  HPS_CHECK(mark->Begin(lab.Options().identity).ok());
  whole->files[kLogMarkName] = BytesOf(lab, kLogMarkName);
}

constexpr Ending kEndings[] = {Ending::kClosed, Ending::kKilled, Ending::kTakenBack,
                               Ending::kKilledInUsed};

void RunT1(const LogLab& lab, uint64_t num_seeds, uint64_t stride, Account* account) {
  Recipe recipe;
  Verdicts verdicts;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    for (const Ending ending : kEndings) {
      Truncate(lab, MakeWhole(lab, seed, ending), stride, &recipe, &verdicts);
    }
  }
  account->Add("T1", recipe, 100, "files of update logs cut off: " + Told(verdicts));
  HPS_CHECK(verdicts.refused > 0 && verdicts.torn > 0);
  Recipe planted;
  Whole whole = MakeWhole(lab, 1, Ending::kClosed);
  PlantEmptyMark(lab, &whole);
  Truncate(lab, whole, 97, &planted, &verdicts);
  account->AddPlanted("T1", planted, "a cut log passes for a shorter one");
}

void RunB1(const LogLab& lab, uint64_t seed, int64_t num_flips, int64_t num_swaps,
           Account* account) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Recipe flips;
  Recipe swaps;
  Verdicts verdicts;
  for (const Ending ending : kEndings) {
    const Whole whole = MakeWhole(lab, seed, ending);
    FlipBits(lab, whole, num_flips, &random, &flips, &verdicts);
    SwapBlocks(lab, whole, num_swaps, &random, &swaps, &verdicts);
  }
  account->Add("B1", flips, 100, "bits flipped in update logs");
  account->Add("B1", swaps, 50, "blocks of update logs swapped; both: " + Told(verdicts));
  HPS_CHECK(verdicts.refused > 0 && verdicts.torn > 0 && verdicts.harmless > 0);
  Recipe planted;
  const Whole whole = MakeWhole(lab, seed, Ending::kClosed);
  for (int i = 0; i < 100; ++i) {
    Files files = whole.files;
    const auto [name, at] = AnyByte(files, &random);
    files[name][at] = static_cast<char>(files[name][at] ^ 1);
    if (!MendChecksum(name, at, lab.Options(), &files[name])) continue;
    planted.Note(Judge(lab, whole, files, {{name, at}}, &verdicts), i, static_cast<int64_t>(at));
  }
  account->AddPlanted("B1", planted, "checksums of the log are mended to fit the damage");
  Recipe leftovers;
  const Whole used = MakeWhole(lab, seed, Ending::kKilledInUsed);
  Files files = used.files;
  PlantRecord(lab.Options(), used, &files[used.newest]);
  leftovers.Note(Judge(lab, used, files, {{used.newest, used.end}}, &verdicts), 0, 0);
  account->AddPlanted("B1", leftovers, "what a used file held has the next record's number");
}

}  // namespace
}  // namespace hps

int main(int argc, char** argv) {
  const bool is_full = hps::IsFull(argc, argv);
  const hps::LogLab lab;
  hps::Account account;
  hps::RunT1(lab, is_full ? 2 : 1, is_full ? 1 : 131, &account);
  hps::RunB1(lab, 1, is_full ? 3500 : 150, is_full ? 700 : 30, &account);
  return account.ExitCode();
}
