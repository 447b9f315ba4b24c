// The files in order, each frame checked. A record that is not whole is recognised here: as torn,
// which ends the log, or as damage, as the mark tells. (The check of one frame: log_reader.cc.)
//
// Above it: log_scan.h. Below it: log_reader.
#include "update_log/log_scan.h"

#include <algorithm>

#include "update_log/log_reader.h"

namespace hps {
namespace {

class LogScan {
 public:
  LogScan(FileSystem* files, const LogQuestion& question, LogContents* contents)
      : files_(files), question_(question), contents_(contents) {}

  Status Run();

 private:
  struct Candidate {
    std::string path;
    uint64_t first = 0;
    bool has_header = false;
  };

  // The log's files by their numbers; those of other epochs become leftovers.
  Status ListFiles();
  // Files whose records are all in the checkpoint, as the next one's name says.
  void PassOverCovered();
  Status ReadFiles();
  Status ReadRecords(const Candidate& candidate, LogReader* reader);
  // The log ends at `place`, unless it must not: `path` is the file with the damage.
  Status EndAt(LogPosition place, const std::string& path, const std::string& what);
  Status CheckEnd();

  FileSystem* files_;
  const LogQuestion& question_;
  LogContents* contents_;
  std::vector<Candidate> candidates_;
  bool is_torn_ = false;
};

Status LogScan::Run() {
  contents_->last = question_.after;
  HPS_RETURN_IF_ERROR(ListFiles());
  if (!candidates_.empty() && !question_.has_mark) {
    return Corruption(question_.folder + "/" + kLogMarkName, 0,
                      "the mark that belongs to the log's files is missing or damaged; put it back "
                      "with them, or remove all files of the log to go on from the checkpoint");
  }
  PassOverCovered();
  HPS_RETURN_IF_ERROR(ReadFiles());
  HPS_RETURN_IF_ERROR(CheckEnd());
  if (contents_->last <= question_.after) {
    for (const LogFile& file : contents_->files) contents_->leftovers.push_back(file.path);
    contents_->files.clear();
  }
  contents_->last = std::max(contents_->last, question_.after);
  return Status::Ok();
}

Status LogScan::ListFiles() {
  std::vector<std::string> names;
  HPS_RETURN_IF_ERROR(files_->List(question_.folder, &names));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    uint64_t first = 0;
    if (ParseFileName(name, kLogFilePrefix, &first)) numbers.push_back(first);
    const bool is_spare = name == kLogSpareName || ParseFileName(name, kLogUsedPrefix, &first);
    if (is_spare) contents_->leftovers.push_back(question_.folder + "/" + name);
  }
  std::sort(numbers.begin(), numbers.end());
  for (const uint64_t first : numbers) {
    Candidate candidate{LogFilePath(question_.folder, first), first, false};
    LogReader reader;
    HPS_RETURN_IF_ERROR(reader.Open(files_, candidate.path, first, &candidate.has_header));
    if (candidate.has_header && reader.header().identity.store != question_.identity.store) {
      return Corruption(candidate.path, 16,
                        "the file belongs to the log of another store; remove it from here");
    }
    if (candidate.has_header && !(reader.header().identity == question_.identity)) {
      contents_->leftovers.push_back(candidate.path);
    } else {
      candidates_.push_back(std::move(candidate));
    }
  }
  return Status::Ok();
}

void LogScan::PassOverCovered() {
  size_t covered = 0;
  while (covered + 1 < candidates_.size() &&
         candidates_[covered + 1].first <= question_.after + 1) {
    contents_->leftovers.push_back(candidates_[covered++].path);
  }
  candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(covered));
}

Status LogScan::ReadFiles() {
  size_t i = 0;
  for (; i < candidates_.size() && !is_torn_; ++i) {
    const Candidate& candidate = candidates_[i];
    const bool is_first = contents_->files.empty();
    const uint64_t expected = is_first ? question_.after + 1 : contents_->last + 1;
    if (is_first && candidate.first > expected) {
      HPS_RETURN_IF_ERROR(EndAt({candidate.first, 0}, candidate.path,
                                "the file begins with record " + std::to_string(candidate.first) +
                                    ", but record " + std::to_string(expected) +
                                    " is still needed"));
      break;
    }
    if (!is_first && candidate.first != expected) {
      const LogFile& before = contents_->files.back();
      HPS_RETURN_IF_ERROR(EndAt({before.first, before.end}, before.path,
                                "record " + std::to_string(expected) +
                                    " is expected here; the next file begins with record " +
                                    std::to_string(candidate.first)));
      break;
    }
    LogReader reader;
    bool has_header = false;
    HPS_RETURN_IF_ERROR(reader.Open(files_, candidate.path, candidate.first, &has_header));
    if (!has_header) {
      HPS_RETURN_IF_ERROR(EndAt({candidate.first, 0}, candidate.path,
                                "the header of a file of the update log is expected here"));
      break;
    }
    // Without it a file that is too short could still end with the right number: that of a record
    // which the missing part takes back.
    if (!is_first && reader.header().end_before != contents_->files.back().end) {
      const LogFile& before = contents_->files.back();
      HPS_RETURN_IF_ERROR(EndAt({before.first, before.end}, before.path,
                                "more is expected here; the next file says that this one ends at " +
                                    std::to_string(reader.header().end_before)));
      break;
    }
    HPS_RETURN_IF_ERROR(ReadRecords(candidate, &reader));
  }
  for (; i < candidates_.size(); ++i) {
    contents_->leftovers.push_back(candidates_[i].path);
    LogReader reader;
    bool has_header = false;
    HPS_RETURN_IF_ERROR(
        reader.Open(files_, candidates_[i].path, candidates_[i].first, &has_header));
    contents_->dropped_bytes += reader.size();
  }
  return Status::Ok();
}

Status LogScan::ReadRecords(const Candidate& candidate, LogReader* reader) {
  bool is_found = true;
  uint64_t last = candidate.first - 1;
  while (true) {
    HPS_RETURN_IF_ERROR(reader->Next(&is_found));
    if (!is_found) break;
    last = reader->number();
    if (last > question_.after) contents_->sizes.Add(last, reader->frame_bytes());
  }
  const LogPosition end{candidate.first, reader->offset()};
  contents_->last = last;
  contents_->files.push_back({candidate.path, end.first, end.offset, reader->last_record()});
  if (end.offset == reader->size()) return Status::Ok();
  // A later file, or bytes behind the place where the mark saw the end: then it was not the last.
  // (Or the file was used before, and they are left over.)
  const bool is_final =
      candidate.path == candidates_.back().path && end.first == question_.required.first &&
      end.offset == question_.last_record && reader->size() <= question_.required.offset;
  contents_->dropped_bytes += reader->torn_bytes();
  is_torn_ = true;
  if (is_final) return Status::Ok();
  return EndAt(end, candidate.path,
               "record " + std::to_string(last + 1) + " is expected whole here");
}

Status LogScan::EndAt(LogPosition place, const std::string& path, const std::string& what) {
  is_torn_ = true;
  return place < question_.required ? Corruption(path, place.offset, what) : Status::Ok();
}

// The files end cleanly, but perhaps too early.
Status LogScan::CheckEnd() {
  const LogPosition& required = question_.required;
  if (is_torn_ || required.first == 0) return Status::Ok();
  if (contents_->files.empty()) {
    return Corruption(LogFilePath(question_.folder, required.first), 0, "the file is missing");
  }
  const LogFile& file = contents_->files.back();
  const bool is_final = file.first == required.first && file.end == question_.last_record;
  if (is_final) return Status::Ok();
  return EndAt({file.first, file.end}, file.path,
               "record " + std::to_string(contents_->last + 1) + " is expected here");
}

}  // namespace

Status ScanLog(FileSystem* files, const LogQuestion& question, LogContents* contents) {
  return LogScan(files, question, contents).Run();
}

}  // namespace hps
