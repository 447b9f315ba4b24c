// What the update log promises when nothing fails: records come back, one sync serves all who wait,
// appends go on beside slow writes and syncs, and nobody waits longer than told.
//
// Above it: ctest, also under the thread sanitizer. Below it: update_log_lab.h, forwarding_files.h.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <future>

#include "forwarding_files.h"
#include "update_log_lab.h"

namespace hps {
namespace {

// Files whose writes or syncs wait while a gate is shut.
class GatedFiles : public ForwardingFiles {
 public:
  class Gate {
   public:
    void Shut(bool is_shut) {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_shut_ = is_shut;
      changed_.notify_all();
    }
    void Pass() {
      std::unique_lock<std::mutex> lock(mutex_);
      ++num_passing_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !is_shut_; });
    }
    // Until so many have come to the gate.
    void Await(int64_t count) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return num_passing_ >= count; });
    }
    int64_t num_passing() {
      const std::lock_guard<std::mutex> lock(mutex_);
      return num_passing_;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_shut_ = false;
    int64_t num_passing_ = 0;
  };

  GatedFiles() : ForwardingFiles(&fault_files_) {}
  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override;

  Gate writes;  // of records
  Gate syncs;   // of files of records

 private:
  FaultFileSystem fault_files_;  // without faults; its syncs take no time
};

class GatedFile final : public File {
 public:
  GatedFile(GatedFiles* owner, std::unique_ptr<File> file)
      : File(file->path()), owner_(owner), file_(std::move(file)) {}
  Status Read(uint64_t offset, uint64_t size, void* bytes) override {
    return file_->Read(offset, size, bytes);
  }
  Status Write(uint64_t offset, const void* bytes, uint64_t size) override {
    if (offset >= kLogFileHeaderBytes) owner_->writes.Pass();
    return file_->Write(offset, bytes, size);
  }
  Status Allocate(uint64_t offset, uint64_t size) override { return file_->Allocate(offset, size); }
  Status Truncate(uint64_t size) override { return file_->Truncate(size); }
  Status SyncData() override {
    owner_->syncs.Pass();
    return file_->SyncData();
  }
  Status Size(uint64_t* size) override { return file_->Size(size); }
  Status TryLock(bool exclusive, bool* taken) override { return file_->TryLock(exclusive, taken); }
  Status IsLinked(bool* linked) override { return file_->IsLinked(linked); }

 private:
  GatedFiles* owner_;
  std::unique_ptr<File> file_;
};

Status GatedFiles::Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) {
  HPS_RETURN_IF_ERROR(files_->Open(path, mode, file));
  const bool has_records =
      path.find(std::string("/") + std::string(kLogFilePrefix)) != std::string::npos;
  if (has_records) *file = std::make_unique<GatedFile>(this, std::move(*file));
  return Status::Ok();
}

std::unique_ptr<UpdateLog> Open(FileSystem* files, const UpdateLogOptions& options) {
  std::unique_ptr<UpdateLog> log;
  const Status status = UpdateLog::Open(files, options, &log);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  HPS_CHECK(status.ok());
  return log;
}

uint64_t Append(UpdateLog* log, const std::string& payload) {
  uint64_t number = 0;
  HPS_CHECK(log->Append({{payload.data(), payload.size()}}, &number).ok());
  return number;
}

bool Wait(UpdateLog* log, uint64_t number, bool is_durable, double seconds = kPatience) {
  bool is_covered = false;
  HPS_CHECK(log->Wait(number, is_durable, seconds, &is_covered).ok());
  return is_covered;
}

bool IsRefused(const Status& status, const std::string& words) {
  return status.code() == StatusCode::kConfig && status.message().find(words) != std::string::npos;
}

std::vector<std::string> NamesOf(const LogLab& lab, std::string_view prefix) {
  std::vector<std::string> names = lab.Names();
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

void TestOneSyncServesAllWhoWait(const LogLab& lab) {
  lab.Reset();
  GatedFiles files;
  const std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  files.syncs.Shut(true);
  std::vector<std::future<bool>> waiters;
  const auto add = [&] {
    const uint64_t number = Append(log.get(), "a record");
    waiters.push_back(
        std::async(std::launch::async, [&, number] { return Wait(log.get(), number, true); }));
  };
  add();
  files.syncs.Await(1);
  for (int i = 0; i < 8; ++i) add();
  HPS_CHECK(Wait(log.get(), 9, false, 0.05) == false);  // the thread is in the sync
  HPS_CHECK(log->durable() == 0);
  files.syncs.Shut(false);
  for (std::future<bool>& waiter : waiters) HPS_CHECK(waiter.get());
  HPS_CHECK(log->durable() == 9 && files.syncs.num_passing() == 2);
}

void TestAppendsGoOnBesideASlowWriteUntilTheBufferIsFull(const LogLab& lab) {
  lab.Reset();
  GatedFiles files;
  UpdateLogOptions options = lab.Options();
  options.file_bytes = 1 << 20;
  const std::unique_ptr<UpdateLog> log = Open(&files, options);
  Append(log.get(), "first");
  HPS_CHECK(Wait(log.get(), 1, false));
  files.writes.Shut(true);
  const int64_t num_writes = files.writes.num_passing();
  Append(log.get(), "second");
  files.writes.Await(num_writes + 1);
  const std::string payload(1000, 'x');
  for (int i = 0; i < 11; ++i) Append(log.get(), payload);  // 11 of the 16 KiB
  HPS_CHECK(log->appended() == 13 && log->logged() == 1);
  std::atomic<int> num_appended{0};
  std::future<void> rest = std::async(std::launch::async, [&] {
    for (; num_appended < 20; ++num_appended) Append(log.get(), payload);
  });
  HPS_CHECK(rest.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  HPS_CHECK(num_appended < 8);  // it waits, and takes no more memory
  files.writes.Shut(false);
  rest.get();
  HPS_CHECK(Wait(log.get(), 33, true) && log->logged() == 33);
}

void TestACloseRefusesAnAppendThatWaitsAndKeepsTheRest(const LogLab& lab) {
  lab.Reset();
  GatedFiles files;
  UpdateLogOptions options = lab.Options();
  options.file_bytes = 1 << 20;
  std::unique_ptr<UpdateLog> log = Open(&files, options);
  files.writes.Shut(true);
  const std::string payload(4000, 'x');
  for (int i = 0; i < 3; ++i) Append(log.get(), payload);
  std::future<Status> waiting = std::async(std::launch::async, [&] {
    uint64_t number = 0;
    Status status;
    while (status.ok()) status = log->Append({{payload.data(), payload.size()}}, &number);
    return status;
  });
  HPS_CHECK(waiting.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  std::future<Status> closing = std::async(std::launch::async, [&] { return log->Close(); });
  HPS_CHECK(waiting.get().os_error() == EBADF);
  HPS_CHECK(closing.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  files.writes.Shut(false);
  HPS_CHECK(closing.get().ok() && log->durable() == log->appended() && log->appended() >= 3);
  const uint64_t appended = log->appended();
  HPS_CHECK(Open(&files, options)->appended() == appended);
}

void TestAWaitEndsWhenItsTimeIsUp(const LogLab& lab) {
  lab.Reset();
  GatedFiles files;
  const std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  files.syncs.Shut(true);
  Append(log.get(), "a record");
  HPS_CHECK(Wait(log.get(), 1, false) && !Wait(log.get(), 1, true, 0.02));
  HPS_CHECK(!Wait(log.get(), 1, true, -1) && !Wait(log.get(), 2, false, 0));
  HPS_CHECK(Wait(log.get(), 0, true, 0));
  files.syncs.Shut(false);
  HPS_CHECK(Wait(log.get(), 1, true));
}

void TestACheckpointStandsForASync(const LogLab& lab) {
  lab.Reset();
  GatedFiles files;
  const std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  for (int i = 0; i < 40; ++i) Append(log.get(), std::string(300, 'x'));
  HPS_CHECK(Wait(log.get(), 40, false) && log->num_bytes() == 40 * FrameBytes(300));
  const size_t num_files = NamesOf(lab, kLogFilePrefix).size();
  files.syncs.Shut(true);
  HPS_CHECK(log->Cut(39).ok() && log->durable() == 39 && Wait(log.get(), 39, true));
  HPS_CHECK(log->num_bytes() == FrameBytes(300) && num_files > 4);
  HPS_CHECK(NamesOf(lab, kLogFilePrefix).size() <= 2);
  HPS_CHECK(files.syncs.num_passing() == 0);
  files.syncs.Shut(false);
  HPS_CHECK(Wait(log.get(), 40, true) && files.syncs.num_passing() <= 2);  // not of what went
  HPS_CHECK(log->Cut(40).ok() && log->num_bytes() == 0 && log->Cut(12).ok());
  HPS_CHECK(IsRefused(log->Cut(41), "the last is 40") && log->num_bytes() == 0);
}

void TestARecordThatWasTakenBackLeavesItsNumber(const LogLab& lab) {
  lab.Reset();
  FaultFileSystem files;
  std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  HPS_CHECK(IsRefused(log->TakeBack(0), "0 is not that"));
  Append(log.get(), "one");
  const uint64_t bytes = log->num_bytes();
  Append(log.get(), "refused, and durable before");
  HPS_CHECK(Wait(log.get(), 2, true) && IsRefused(log->TakeBack(1), "1 is not that"));
  HPS_CHECK(log->TakeBack(2).ok() && log->appended() == 1 && log->logged() == 1);
  HPS_CHECK(log->durable() == 1 && log->num_bytes() == bytes);
  HPS_CHECK(IsRefused(log->TakeBack(1), "once"));
  HPS_CHECK(!Wait(log.get(), 2, true, 0) && Append(log.get(), "two") == 2);
  HPS_CHECK(Wait(log.get(), 2, true));
  Append(log.get(), "refused at the end");
  HPS_CHECK(log->TakeBack(3).ok() && log->Close().ok());
  log = Open(&files, lab.Options());
  std::vector<LogRecord> records;
  HPS_CHECK(ReadAll(log.get(), &records).ok() && records.size() == 2);
  HPS_CHECK(records[0].payload == "one" && records[1].payload == "two");
}

void TestReplayComesBeforeTheFirstAppend(const LogLab& lab) {
  lab.Reset();
  FaultFileSystem files;
  std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  for (int i = 0; i < 20; ++i) Append(log.get(), std::string(100, 'x'));
  HPS_CHECK(log->Close().ok() && log->Close().ok());
  log = Open(&files, lab.Options(12));
  std::vector<LogRecord> records;
  HPS_CHECK(log->Read(250, &records).ok() && records.size() == 2 && records[0].number == 13);
  HPS_CHECK(log->Read(1, &records).ok() && records.size() == 1 && records[0].number == 15);
  HPS_CHECK(log->num_bytes() == 8 * FrameBytes(100) && log->appended() == 20);
  HPS_CHECK(Append(log.get(), "more") == 21);
  HPS_CHECK(IsRefused(log->Read(1000, &records), "before the first append"));
  HPS_CHECK(log->Close().ok());
  std::unique_ptr<UpdateLog> other;
  UpdateLogOptions options = lab.Options(5);
  HPS_CHECK(UpdateLog::Open(&files, options, &other).ok());  // its files still have record 6
  other.reset();
  options.identity.store = 78;
  HPS_CHECK(UpdateLog::Open(&files, options, &other).code() == StatusCode::kCorruption);
  options = lab.Options();
  options.identity.epoch = 4;
  log = Open(&files, options);
  HPS_CHECK(log->appended() == 0 && lab.Names() == std::vector<std::string>{kLogMarkName});
}

void TestARecordLargerThanTheBufferIsRefused(const LogLab& lab) {
  lab.Reset();
  FaultFileSystem files;
  std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  const std::string fits(3 * 4096 - kFrameHeaderBytes, 'x');
  const std::string larger = fits + 'x';
  uint64_t number = 0;
  const Status refused = log->Append({{larger.data(), larger.size()}}, &number);
  HPS_CHECK(refused.code() == StatusCode::kCapacity && log->appended() == 0);
  for (int i = 0; i < 4; ++i) HPS_CHECK(Append(log.get(), fits) == static_cast<uint64_t>(i) + 1);
  HPS_CHECK(log->Close().ok());
  log = Open(&files, lab.Options());
  std::vector<LogRecord> records;
  HPS_CHECK(ReadAll(log.get(), &records).ok() && records.size() == 4);
  HPS_CHECK(records[3].payload == fits);
}

// Of records of 300 bytes six fill a file.
void AppendAndCut(UpdateLog* log, uint64_t count) {
  uint64_t number = 0;
  for (uint64_t i = 0; i < count; ++i) number = Append(log, std::string(300, 'x'));
  HPS_CHECK(Wait(log, number, false) && log->Cut(number).ok());
}

void TestFilesOfACheckpointAreUsedAgain(const LogLab& lab) {
  lab.Reset();
  LogFiles files;
  std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  AppendAndCut(log.get(), 60);
  const size_t num_kept = NamesOf(lab, kLogUsedPrefix).size();
  HPS_CHECK(num_kept >= 8 && files.num_used_again == 0);
  AppendAndCut(log.get(), 60);
  HPS_CHECK(files.num_used_again >= 8 && NamesOf(lab, kLogUsedPrefix).size() <= num_kept + 2);
  for (int i = 0; i < 6; ++i) AppendAndCut(log.get(), 1);  // after a rush fewer and fewer wait
  HPS_CHECK(NamesOf(lab, kLogUsedPrefix).size() <= 2);     // one of them is the next file
  AppendAndCut(log.get(), 60);
  AppendAndCut(log.get(), 60);
  HPS_CHECK(NamesOf(lab, kLogUsedPrefix).size() >= 8 && log->FreeSpace().ok());
  HPS_CHECK(NamesOf(lab, kLogUsedPrefix).size() <= 1);
  AppendAndCut(log.get(), 60);
  HPS_CHECK(log->Close().ok() && NamesOf(lab, "spare").empty());
}

// What a file held before lies behind its new records; nothing of it comes back.
void TestWhatAUsedFileHeldIsNoRecord(const LogLab& lab) {
  lab.Reset();
  LogLife life(lab, 1);
  HPS_CHECK(life.Open().ok());
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 40; ++i) HPS_CHECK(life.Append().ok());
    HPS_CHECK(life.Wait(round == 1).ok() && life.Cut(life.log->appended()).ok());
  }
  const int64_t num_used_again = life.files.num_used_again;
  while (life.files.num_used_again == num_used_again) {
    HPS_CHECK(life.Append().ok() && life.Wait(false).ok());
  }
  life.Kill();
  const std::string newest = NamesOf(lab, kLogFilePrefix).back();
  std::unique_ptr<File> file;
  uint64_t size = 0;
  HPS_CHECK(PosixFileSystem()->Open(lab.Path(newest), OpenMode::kRead, &file).ok());
  HPS_CHECK(file->Size(&size).ok() && life.Open().ok() && life.log->dropped_bytes() == 0);
  uint64_t end = 0;
  HPS_CHECK(file->Size(&end).ok() && end < size);
  const std::string wrong = (life.Kill(), ReopenLog(&life, life.logged));
  if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
  HPS_CHECK(wrong.empty() && life.log->appended() == life.logged + 3);
}

void TestAFullDiskTakesTheFilesThatWait(const LogLab& lab) {
  lab.Reset();
  LogFiles files;
  std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  AppendAndCut(log.get(), 60);
  AppendAndCut(log.get(), 61);  // the newest file is not half full: no other one is being made
  HPS_CHECK(NamesOf(lab, kLogUsedPrefix).size() > 2);
  files.SetSpace(0);
  AppendAndCut(log.get(), 12);  // goes on in files that it has
  uint64_t number = 0;
  const std::string large(5000, 'x');
  const Status refused = log->Append({{large.data(), large.size()}}, &number);
  HPS_CHECK(refused.os_error() == ENOSPC && NamesOf(lab, kLogUsedPrefix).empty());
  files.SetSpace(INT64_MAX);
  HPS_CHECK(log->Append({{large.data(), large.size()}}, &number).ok() && log->Close().ok());
}

// Many threads at once: every number is handed out once, and all records come back whole.
void TestThreadsShareALog(const LogLab& lab) {
  lab.Reset();
  FaultFileSystem files;
  UpdateLogOptions options = lab.Options();
  options.file_bytes = 1 << 16;
  options.buffer_bytes = 1 << 20;
  std::unique_ptr<UpdateLog> log = Open(&files, options);
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRecords = 200;
  std::vector<std::future<void>> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.push_back(std::async(std::launch::async, [&, thread] {
      for (uint64_t i = 0; i < kRecords; ++i) {
        const uint64_t name = thread * kRecords + i;
        const uint64_t number =
            Append(log.get(), std::to_string(name) + std::string(name % 8 * 600, '.'));
        if (i % 7 == thread) HPS_CHECK(Wait(log.get(), number, i % 2 == 0));
      }
    }));
  }
  for (int i = 0; i < 20; ++i) HPS_CHECK(log->num_bytes() < (1 << 21) && log->Cut(0).ok());
  for (std::future<void>& thread : threads) thread.get();
  HPS_CHECK(log->Close().ok() && log->durable() == kThreads * kRecords);
  log = Open(&files, lab.Options());
  std::vector<LogRecord> records;
  HPS_CHECK(ReadAll(log.get(), &records).ok() && records.size() == kThreads * kRecords);
  std::set<uint64_t> names;
  for (const LogRecord& record : records) {
    const uint64_t name = std::stoull(record.payload);
    HPS_CHECK(record.payload == std::to_string(name) + std::string(name % 8 * 600, '.'));
    HPS_CHECK(names.insert(name).second);
  }
}

void TestAnIdleLogTakesNoTime(const LogLab& lab) {
  lab.Reset();
  FaultFileSystem files;
  const std::unique_ptr<UpdateLog> log = Open(&files, lab.Options());
  Append(log.get(), "a record");
  HPS_CHECK(Wait(log.get(), 1, true));
  rusage before;
  rusage after;
  HPS_CHECK(getrusage(RUSAGE_SELF, &before) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  HPS_CHECK(getrusage(RUSAGE_SELF, &after) == 0);
  HPS_CHECK(after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw < 20);
}

}  // namespace
}  // namespace hps

int main() {
  const hps::LogLab lab;
  hps::TestOneSyncServesAllWhoWait(lab);
  hps::TestAppendsGoOnBesideASlowWriteUntilTheBufferIsFull(lab);
  hps::TestACloseRefusesAnAppendThatWaitsAndKeepsTheRest(lab);
  hps::TestAWaitEndsWhenItsTimeIsUp(lab);
  hps::TestACheckpointStandsForASync(lab);
  hps::TestARecordThatWasTakenBackLeavesItsNumber(lab);
  hps::TestReplayComesBeforeTheFirstAppend(lab);
  hps::TestARecordLargerThanTheBufferIsRefused(lab);
  hps::TestFilesOfACheckpointAreUsedAgain(lab);
  hps::TestWhatAUsedFileHeldIsNoRecord(lab);
  hps::TestAFullDiskTakesTheFilesThatWait(lab);
  hps::TestThreadsShareALog(lab);
  hps::TestAnIdleLogTakesNoTime(lab);
  return 0;
}
