// What the tests of update_log share: a log to torture, records that are a pure function of their
// number, and the check of what a fault has left.
//
// Above it: the tests update_log_*. Below it: csrc/update_log, fault_file_system.h.
#pragma once

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/key_hash.h"
#include "fault_file_system.h"
#include "scratch_store.h"
#include "update_log/update_log.h"

namespace hps {

constexpr double kPatience = 30;  // seconds that nothing here may take

// The payload of a record. A refused one was taken back: it must never be found behind another.
inline std::string PayloadOf(uint64_t seed, uint64_t number, bool is_refused = false) {
  std::mt19937_64 random(MixKey(seed * 1000003 + number * 2 + (is_refused ? 1 : 0)));
  const uint64_t chance = random() % 16;  // few are longer than a piece of the buffer, or a file
  const uint64_t size = chance == 0 ? 0 : random() % (chance == 1 ? 7000 : 200);
  std::string payload(size, '\0');
  for (char& byte : payload) byte = static_cast<char>(random());
  return payload;
}

// Appends it in one to three parts.
inline Status AppendPayload(UpdateLog* log, const std::string& payload, uint64_t* number) {
  const uint64_t first = payload.size() / 3;
  const uint64_t second = payload.size() % 3 == 0 ? 0 : first;
  const char* bytes = payload.data();
  std::vector<LogPart> parts = {{bytes, first},
                                {bytes + first, second},
                                {bytes + first + second, payload.size() - first - second}};
  return log->Append(parts, number);
}

class LogLab {
 public:
  UpdateLogOptions Options(uint64_t after = 0) const {
    UpdateLogOptions options;
    options.folder = folder_.path() + "/log";
    options.identity = {77, 3};
    options.after = after;
    options.file_bytes = 2048;
    options.buffer_bytes = 16384;
    return options;
  }
  void Reset() const { folder_.Reset(); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    HPS_CHECK(PosixFileSystem()->List(Options().folder, &names).ok());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string Path(const std::string& name) const { return Options().folder + "/" + name; }

 private:
  ScratchFolder folder_;
};

// Counts the files that were used again.
class LogFiles : public FaultFileSystem {
 public:
  std::atomic<int64_t> num_used_again{0};

  Status Rename(const std::string& source, const std::string& target) override {
    HPS_RETURN_IF_ERROR(FaultFileSystem::Rename(source, target));
    const auto has = [](const std::string& path, std::string_view prefix) {
      return path.compare(path.rfind('/') + 1, prefix.size(), prefix) == 0;
    };
    num_used_again += has(source, kLogUsedPrefix) && has(target, kLogFilePrefix);
    return Status::Ok();
  }
};

// A life of a log: opened, written, killed or closed; and what was acknowledged in it.
struct LogLife {
  LogLife(const LogLab& where, uint64_t number) : lab(where), seed(number), random(number) {}
  ~LogLife() { Kill(); }

  const LogLab& lab;
  const uint64_t seed;
  std::mt19937_64 random;
  LogFiles files;
  std::unique_ptr<UpdateLog> log;
  uint64_t checkpoint = 0;     // a durable one holds the records up to here
  uint64_t logged = 0;         // acknowledged
  uint64_t durable = 0;        // acknowledged
  uint64_t attempted = 0;      // the highest number that was ever appended
  std::set<uint64_t> refused;  // numbers of records that were taken back
  std::set<uint64_t> gone;     // of those the ones for which that was said to be so
  int64_t num_cuts = 0;
  uint64_t steps_a_cut = 12;

  Status Open() {
    HPS_RETURN_IF_ERROR(UpdateLog::Open(&files, lab.Options(checkpoint), &log));
    attempted = std::max(attempted, log->appended());
    return Status::Ok();
  }
  // What is not written yet never will be.
  void Kill() {
    files.is_killed = true;
    log.reset();
    files.is_killed = false;
  }
  void Reset() {
    files.faults = {};
    files.num_calls = files.num_changes = files.num_struck = 0;
  }

  Status Append(bool is_refused = false) {
    attempted = std::max(attempted, log->appended() + 1);
    const std::string payload = PayloadOf(seed, log->appended() + 1, is_refused);
    uint64_t number = 0;
    return AppendPayload(log.get(), payload, &number);
  }
  Status Wait(bool is_durable) {
    bool is_covered = false;
    const uint64_t number = log->appended();
    HPS_RETURN_IF_ERROR(log->Wait(number, is_durable, kPatience, &is_covered));
    HPS_CHECK(is_covered);
    logged = std::max(logged, number);
    if (is_durable) durable = std::max(durable, number);
    return Status::Ok();
  }
  Status Refuse(uint64_t chance) {
    refused.insert(log->appended() + 1);
    HPS_RETURN_IF_ERROR(Append(true));
    if (chance % 3 > 0) {  // written already, or even synced
      bool is_covered = false;
      HPS_RETURN_IF_ERROR(log->Wait(log->appended(), chance % 3 > 1, kPatience, &is_covered));
    }
    HPS_RETURN_IF_ERROR(log->TakeBack(log->appended()));
    gone.insert(log->appended() + 1);
    return Status::Ok();
  }
  Status Cut(uint64_t number) {
    checkpoint = number;
    ++num_cuts;
    return log->Cut(number);
  }
  // One record, perhaps a refused one before it, perhaps a checkpoint after it.
  Status Step() {
    const uint64_t chance = random();
    if (chance % 5 == 0) HPS_RETURN_IF_ERROR(Refuse(chance / 5));
    HPS_RETURN_IF_ERROR(Append());
    const uint64_t wait = random() % 10;
    if (wait > 2) HPS_RETURN_IF_ERROR(Wait(wait > 7));
    if (random() % steps_a_cut != 0) return Status::Ok();
    return Cut(checkpoint + random() % (log->appended() - checkpoint + 1));
  }
  Status Steps(int count) {
    for (int i = 0; i < count; ++i) HPS_RETURN_IF_ERROR(Step());
    return Status::Ok();
  }
};

// All records that an opened log hands out, in small portions.
inline Status ReadAll(UpdateLog* log, std::vector<LogRecord>* records) {
  records->clear();
  std::vector<LogRecord> portion;
  do {
    HPS_RETURN_IF_ERROR(log->Read(500, &portion));
    records->insert(records->end(), portion.begin(), portion.end());
  } while (!portion.empty());
  return Status::Ok();
}

// What is wrong with the records that an opening has found: they must be those after the
// checkpoint, without a gap, up to `least` or beyond. "" if nothing is.
inline std::string CompareRecords(const LogLife& life, const std::vector<LogRecord>& records,
                                  uint64_t least) {
  uint64_t last = life.checkpoint;
  for (const LogRecord& record : records) {
    const std::string name = "record " + std::to_string(record.number);
    if (record.number != ++last) return name + " is found where another one is expected";
    if (record.payload == PayloadOf(life.seed, record.number)) continue;
    const bool was_refused = life.refused.count(record.number) > 0 &&
                             record.payload == PayloadOf(life.seed, record.number, true);
    if (!was_refused) return name + " has another payload";
    if (&record != &records.back()) return name + " was taken back and is found before others";
    if (record.number <= least) return name + " was taken back, and acknowledged when repeated";
    if (life.gone.count(record.number) > 0) return name + " was gone, and is found again";
  }
  if (last < least) {
    return "the last record is " + std::to_string(last) + ", but " + std::to_string(least) +
           " was acknowledged";
  }
  return last > life.attempted ? "there are more records than were appended" : "";
}

// Opens what a fault has left; all up to `least` must be there, nothing else may lie about, and the
// log must go on. What is wrong, or "".
inline std::string ReopenLog(LogLife* life, uint64_t least) {
  life->Reset();
  Status status = life->Open();
  if (!status.ok()) return "it does not open: " + status.message();
  std::vector<LogRecord> records;
  status = ReadAll(life->log.get(), &records);
  if (!status.ok()) return "it cannot be read: " + status.message();
  std::string wrong = CompareRecords(*life, records, least);
  if (!wrong.empty()) return wrong;
  const uint64_t last = records.empty() ? life->checkpoint : records.back().number;
  if (life->log->appended() != last || life->log->logged() != last ||
      life->log->durable() != last) {
    return "its numbers are not those of its last record";
  }
  for (const std::string& name : life->lab.Names()) {
    if (name != kLogMarkName && name.rfind(kLogFilePrefix, 0) != 0) return name + " lies about";
  }
  // A refused record at the end has become one that counts: what follows goes on behind it.
  const bool is_odd = !records.empty() && records.back().payload != PayloadOf(life->seed, last);
  life->refused.clear();
  life->gone.clear();
  for (int i = 0; i < 3; ++i) {
    status = life->Refuse(static_cast<uint64_t>(i));
    if (status.ok()) status = life->Append();
    if (!status.ok()) return "it does not go on: " + status.message();
  }
  status = life->log->Close();
  if (!status.ok()) return "it does not close: " + status.message();
  life->log.reset();
  status = life->Open();
  if (!status.ok()) return "it does not open again: " + status.message();
  if (is_odd) life->refused.insert(last);
  if (is_odd) life->gone.erase(last);
  status = ReadAll(life->log.get(), &records);
  if (!status.ok()) return "it cannot be read again: " + status.message();
  if (records.empty() || records.back().number != last + 3) return "it has not gone on";
  for (LogRecord& record : records) {
    if (is_odd && record.number == last) record.payload = PayloadOf(life->seed, last);
  }
  return CompareRecords(*life, records, last + 3);
}

}  // namespace hps
