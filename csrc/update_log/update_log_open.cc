// Opening a log: what is there is read whole, what a crash has torn is cut off, the rest is made
// durable before anything builds on it. A crash at any moment leaves what the next opening takes
// for the same log.
//
// Above it: update_log.h. Below it: log_scan, log_mark.
#include <unistd.h>

#include <system_error>

#include "files/encoding.h"
#include "files/held_folder.h"
#include "update_log/update_log.h"

namespace hps {
namespace {

constexpr uint64_t kSmallestFile = 1024;
constexpr uint64_t kSmallestBuffer = 16384;

Status CheckOptions(const UpdateLogOptions& options) {
  const auto check = [](const char* name, uint64_t bytes, uint64_t least) {
    if (bytes >= least) return Status::Ok();
    return Status(StatusCode::kConfig, std::string("update log: ") + name + "=" +
                                           std::to_string(bytes) + " must be at least " +
                                           std::to_string(least));
  };
  HPS_RETURN_IF_ERROR(check("file_bytes", options.file_bytes, kSmallestFile));
  return check("buffer_bytes", options.buffer_bytes, kSmallestBuffer);
}

// Scans the log that the options name, as far as its mark says that it must be whole.
Status Scan(FileSystem* files, const UpdateLogOptions& options, const LogMarkFile& mark_file,
            uint64_t boot, LogContents* contents) {
  LogQuestion question;
  question.folder = options.folder;
  question.identity = options.identity;
  question.after = options.after;
  question.has_mark = mark_file.has_mark();
  if (question.has_mark && mark_file.identity() == options.identity) {
    const LogMark& mark = mark_file.mark();
    question.required = mark.Required(boot, options.after);
    question.last_record =
        question.required == mark.written ? mark.last_record : question.required.offset;
  }
  return ScanLog(files, question, contents);
}

}  // namespace

Status VerifyLog(FileSystem* files, const UpdateLogOptions& options, LogContents* contents) {
  std::unique_ptr<LogMarkFile> mark_file;
  HPS_RETURN_IF_ERROR(LogMarkFile::Open(files, options.folder, &mark_file));
  return Scan(files, options, *mark_file, files->BootNumber(), contents);
}

UpdateLog::UpdateLog(FileSystem* files, std::unique_ptr<FileSystem> held,
                     const UpdateLogOptions& options)
    : held_(std::move(held)),
      files_(held_ == nullptr ? files : held_.get()),
      options_(options),
      owner_(getpid()),
      buffer_(options.buffer_bytes) {}

Status UpdateLog::Open(FileSystem* files, const UpdateLogOptions& options,
                       std::unique_ptr<UpdateLog>* log) {
  HPS_RETURN_IF_ERROR(CheckOptions(options));
  UpdateLogOptions absolute = options;  // the working directory may change
  absolute.folder = AbsolutePath(options.folder);
  HPS_RETURN_IF_ERROR(CreateFolders(files, absolute.folder));
  std::unique_ptr<FileSystem> held;
  HPS_RETURN_IF_ERROR(files->HoldFolder(absolute.folder, &held));
  std::unique_ptr<UpdateLog> opened(new UpdateLog(files, std::move(held), absolute));
  std::unique_ptr<LogMarkFile> mark_file;
  HPS_RETURN_IF_ERROR(opened->GuardLock());
  HPS_RETURN_IF_ERROR(opened->Recover(&mark_file));
  HPS_RETURN_IF_ERROR(opened->StartThread(std::move(mark_file)));
  *log = std::move(opened);
  return Status::Ok();
}

// The LOCK is the store's, in the folder above; the log only looks whether it is still there.
Status UpdateLog::GuardLock() {
  const std::string path = ParentOf(options_.folder) + "/" + kLockName;
  if (!files_->Exists(path)) return files_->CheckHeld();
  HPS_RETURN_IF_ERROR(files_->Open(path, OpenMode::kRead, &lock_));
  files_->Guard(lock_.get());
  return files_->CheckHeld();
}

Status UpdateLog::Recover(std::unique_ptr<LogMarkFile>* mark_file) {
  HPS_RETURN_IF_ERROR(LogMarkFile::Open(files_, options_.folder, mark_file));
  const uint64_t boot = files_->BootNumber();
  LogContents contents;
  HPS_RETURN_IF_ERROR(Scan(files_, options_, **mark_file, boot, &contents));
  HPS_RETURN_IF_ERROR((*mark_file)->Begin(options_.identity));
  LogMark mark;
  mark.boot = boot;
  HPS_RETURN_IF_ERROR(MakeDurable(contents, mark, mark_file->get()));
  old_files_ = contents.files;
  names_ = contents.files;
  sizes_ = contents.sizes;
  dropped_bytes_ = contents.dropped_bytes;
  appended_ = logged_ = durable_ = contents.last;
  return Status::Ok();
}

Status UpdateLog::MakeDurable(const LogContents& contents, LogMark mark, LogMarkFile* mark_file) {
  for (const std::string& path : contents.leftovers) HPS_RETURN_IF_ERROR(files_->Unlink(path));
  for (const LogFile& kept : contents.files) {
    std::unique_ptr<File> file;
    HPS_RETURN_IF_ERROR(files_->Open(kept.path, OpenMode::kReadWrite, &file));
    const bool is_last = &kept == &contents.files.back();
    // What is torn, and what is reserved and was not used.
    if (is_last) HPS_RETURN_IF_ERROR(file->Truncate(kept.end));
    HPS_RETURN_IF_ERROR(file->SyncData());
  }
  HPS_RETURN_IF_ERROR(files_->SyncFolder(options_.folder));
  if (!contents.files.empty()) {
    const LogFile& last = contents.files.back();
    mark.written = mark.synced = {last.first, last.end};
    mark.last_record = last.last_record;
  }
  mark.number_written = mark.number_synced = contents.last;
  HPS_RETURN_IF_ERROR(mark_file->Write(mark));
  return mark_file->Sync();
}

Status UpdateLog::StartThread(std::unique_ptr<LogMarkFile> mark_file) {
  uint64_t end_before = 0;
  for (const LogFile& file : old_files_) {
    // One without a record gives its name to the next.
    if (file.first <= appended_) end_before = file.end;
  }
  writer_ = std::make_unique<LogWriter>(files_, options_.folder, std::move(mark_file), end_before);
  try {
    thread_ = std::thread([this] { Work(); });
  } catch (const std::system_error& error) {
    return Status(StatusCode::kStore,
                  options_.folder + ": the system grants no thread for the update log",
                  error.code().value());
  }
  return Status::Ok();
}

}  // namespace hps
