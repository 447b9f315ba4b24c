// What callers do: append, take back, wait, replay, cut, close.
//
// Above it: update_log.h. Below it: log_buffer, log_writer, log_reader; the thread's half is
// update_log_thread.cc.
#include "update_log/update_log.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <iterator>

namespace hps {
namespace {

constexpr double kLongestWait = 1e8;  // seconds; three years

Status Misuse(const std::string& what) {
  return Status(StatusCode::kConfig, "update log: " + what);
}

}  // namespace

UpdateLog::~UpdateLog() { (void)Close().ok(); }

Status UpdateLog::CheckOwner() const {
  return getpid() == owner_ ? Status::Ok() : ForkedError(options_.folder, owner_);
}

void UpdateLog::Abandon() {
  (void)waiting_.release();
  (void)writer_.release();  // its files are the parent's, and closed with this process
}

Status UpdateLog::CheckOpen() const {
  HPS_RETURN_IF_ERROR(failure_);
  if (!is_closed_) return Status::Ok();
  return Status(StatusCode::kStore, options_.folder + ": the update log has been closed", EBADF);
}

Status UpdateLog::Append(const std::vector<LogPart>& parts, uint64_t* number) {
  uint64_t length = 0;
  for (const LogPart& part : parts) length += part.size;
  const uint64_t bytes = FrameBytes(length);
  if (length >= kTakenBack || bytes > buffer_.largest_frame()) {
    return Status(StatusCode::kCapacity,
                  "update log: a record of " + std::to_string(length) +
                      " bytes does not fit into the buffer, which takes " +
                      std::to_string(buffer_.largest_frame() - kFrameHeaderBytes) +
                      "; change fewer rows at once, or give the log a larger buffer_bytes");
  }
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<std::mutex> turn(append_turn_);
  LogBuffer::Room room;
  {
    Lock lock(mutex_);
    bool starts_file = false;
    HPS_RETURN_IF_ERROR(MakeRoom(bytes, &starts_file, &lock));
    *number = appended_ + 1;
    room = buffer_.Take(starts_file ? LogPosition{*number, kLogFileHeaderBytes} : end_, bytes,
                        starts_file);
  }
  const uint64_t file_seed = LogFileSeed(options_.identity, room.place.first);
  CopyFrame(room, *number, FrameSeed(file_seed, room.place.offset), parts);
  const Lock lock(mutex_);
  last_record_ = room.place.offset;
  AddFrame(std::move(room), bytes);
  appended_ = *number;
  has_appended_ = true;
  newest_bytes_ = bytes;
  sizes_.Add(*number, bytes);
  work_.notify_one();
  return Status::Ok();
}

// Every record leaves room behind it for the frame that takes it back. A file without a record
// grows for the first one: another one would have its name.
Status UpdateLog::MakeRoom(uint64_t bytes, bool* starts_file, Lock* lock) {
  while (true) {
    HPS_RETURN_IF_ERROR(CheckOpen());
    const uint64_t end = end_.offset + bytes + kFrameHeaderBytes;
    const uint64_t spare_end = kLogFileHeaderBytes + bytes + kFrameHeaderBytes;
    *starts_file = file_end_ == 0 || (end > file_end_ && end_.first <= appended_);
    if (!*starts_file && end > file_end_) {
      HPS_RETURN_IF_ERROR(WaitForSpace(end, &growth_wanted_, &file_end_, lock));
    } else if (*starts_file && spare_end > spare_bytes_) {
      HPS_RETURN_IF_ERROR(WaitForSpace(spare_end, &spare_wanted_, &spare_bytes_, lock));
    } else if (buffer_.HasRoom(bytes, *starts_file)) {
      return Status::Ok();
    } else {
      changed_.wait(*lock);
    }
  }
}

Status UpdateLog::WaitForSpace(uint64_t bytes, uint64_t* wanted, const uint64_t* reserved,
                               Lock* lock) {
  *wanted = bytes;
  refusal_ = Status::Ok();
  work_.notify_one();
  changed_.wait(*lock, [&] { return *reserved >= bytes || !refusal_.ok() || !CheckOpen().ok(); });
  *wanted = 0;
  return refusal_;
}

void UpdateLog::AddFrame(LogBuffer::Room room, uint64_t bytes) {
  if (room.starts_file) {
    file_end_ = spare_bytes_;
    spare_bytes_ = 0;
    is_start_pending_ = true;
    is_refused_ahead_ = false;
  }
  end_ = {room.place.first, room.place.offset + bytes};
  buffer_.Add(std::move(room), bytes);
}

Status UpdateLog::TakeBack(uint64_t number) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<std::mutex> turn(append_turn_);
  Lock lock(mutex_);
  HPS_RETURN_IF_ERROR(CheckOpen());
  if (number != appended_ || newest_bytes_ == 0 || number <= cut_) {
    return Misuse("only the record that was appended last can be taken back, once; " +
                  std::to_string(number) + " is not that");
  }
  const LogPosition place{end_.first, end_.offset - newest_bytes_};
  sizes_.Remove(number, newest_bytes_);
  newest_bytes_ = 0;
  LowerNumbers(number - 1);
  if (buffer_.Remove(place)) {
    end_ = place;
    if (end_ < target_) target_ = end_;
    last_record_ = target_record_ = place.offset;
    return Status::Ok();
  }
  while (!buffer_.HasRoom(kFrameHeaderBytes, false)) {
    changed_.wait(lock);
    HPS_RETURN_IF_ERROR(CheckOpen());
  }
  LogBuffer::Room room = buffer_.Take(end_, kFrameHeaderBytes, false);
  const uint64_t file_seed = LogFileSeed(options_.identity, end_.first);
  PutTakenBack(room, number, FrameSeed(file_seed, end_.offset));
  AddFrame(std::move(room), kFrameHeaderBytes);
  last_record_ = end_.offset;
  sync_wanted_ = end_;
  work_.notify_one();
  changed_.wait(lock, [&] { return !(synced_ < sync_wanted_) || !failure_.ok(); });
  return failure_;
}

void UpdateLog::LowerNumbers(uint64_t number) {
  for (uint64_t* each : {&appended_, &target_number_, &logged_, &sync_number_, &durable_}) {
    *each = std::min(*each, number);
  }
}

Status UpdateLog::Wait(uint64_t number, bool is_durable, double seconds, bool* is_covered) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  Lock lock(mutex_);
  if (is_durable && std::min(number, appended_) > durable_wanted_) {
    durable_wanted_ = std::min(number, appended_);
    work_.notify_one();
  }
  const auto covers = [&] { return number <= std::max(cut_, is_durable ? durable_ : logged_); };
  const std::chrono::duration<double> longest(std::clamp(seconds, 0.0, kLongestWait));
  changed_.wait_for(lock, longest, [&] { return covers() || !CheckOpen().ok(); });
  HPS_RETURN_IF_ERROR(failure_);
  *is_covered = covers();
  return *is_covered ? Status::Ok() : CheckOpen();
}

Status UpdateLog::Read(uint64_t max_bytes, std::vector<LogRecord>* records) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<std::mutex> turn(append_turn_);
  {
    const Lock lock(mutex_);
    HPS_RETURN_IF_ERROR(CheckOpen());
    if (has_appended_) return Misuse("it is read before the first append, not after it");
  }
  records->clear();
  for (uint64_t bytes = 0;; has_next_ = false) {
    HPS_RETURN_IF_ERROR(FindNext());
    if (!has_next_) return Status::Ok();
    bytes += reader_->payload().size();
    if (!records->empty() && bytes > max_bytes) return Status::Ok();
    records->push_back({reader_->number(), std::string(reader_->payload())});
  }
}

// has_next_: the reader is at a record that was not handed out. False: there is none left.
Status UpdateLog::FindNext() {
  while (!has_next_ && next_old_file_ < old_files_.size()) {
    const LogFile& file = old_files_[next_old_file_];
    if (reader_ == nullptr) {
      bool is_whole = false;
      reader_ = std::make_unique<LogReader>();
      HPS_RETURN_IF_ERROR(reader_->Open(files_, file.path, file.first, &is_whole));
      if (!is_whole) return Corruption(file.path, 0, "the header has changed since it was read");
    }
    bool is_found = false;
    HPS_RETURN_IF_ERROR(reader_->Next(&is_found));
    has_next_ = is_found && reader_->number() > options_.after;
    if (is_found) continue;
    if (reader_->offset() != file.end) {
      return Corruption(file.path, reader_->offset(), "a record has changed since it was read");
    }
    reader_.reset();
    ++next_old_file_;
  }
  return Status::Ok();
}

Status UpdateLog::Cut(uint64_t number) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<std::mutex> turn(cut_turn_);
  std::vector<LogFile> covered;
  uint64_t most_used = 0;
  {
    const Lock lock(mutex_);
    if (number > appended_) {
      return Misuse("record " + std::to_string(number) +
                    " cannot be in a checkpoint; the last is " + std::to_string(appended_));
    }
    cut_ = std::max(cut_, number);
    sizes_.Cut(cut_, appended_);
    size_t count = 0;
    while (count + 1 < names_.size() && names_[count + 1].first <= cut_ + 1) ++count;
    const auto end = names_.begin() + static_cast<ptrdiff_t>(count);
    covered.assign(std::make_move_iterator(names_.begin()), std::make_move_iterator(end));
    names_.erase(names_.begin(), end);
    // As much as the log will need until the next cut, if all goes on so; after a rush less and
    // less. A closed log needs none.
    most_used_ = is_closed_ ? 0 : std::max(num_begun_, most_used_ / 2);
    most_used = most_used_;
    num_begun_ = 0;
    changed_.notify_all();
  }
  writer_->Forget(number);
  for (size_t i = 0; i < covered.size(); ++i) {
    const Status status = writer_->Retire(covered[i].first);
    if (status.ok()) continue;
    const Lock lock(mutex_);  // the next cut tries again
    names_.insert(names_.begin(), covered.begin() + static_cast<ptrdiff_t>(i), covered.end());
    return status;
  }
  return writer_->KeepUsed(most_used);
}

Status UpdateLog::FreeSpace() {
  HPS_RETURN_IF_ERROR(CheckOwner());
  return writer_->KeepUsed(0);
}

Status UpdateLog::Close() {
  if (getpid() != owner_) {
    Abandon();
    return Status::Ok();
  }
  const std::lock_guard<std::mutex> turn(close_turn_);
  if (!thread_.joinable()) return Status::Ok();
  {
    const Lock lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }
  {
    const std::lock_guard<std::mutex> no_append(append_turn_);
    const Lock lock(mutex_);
    durable_wanted_ = appended_;
    is_stopping_ = true;
    reader_.reset();
    work_.notify_one();
  }
  thread_.join();
  HPS_RETURN_IF_ERROR(failure_);
  return writer_->Close();
}

uint64_t UpdateLog::appended() const {
  const Lock lock(mutex_);
  return appended_;
}

uint64_t UpdateLog::logged() const {
  const Lock lock(mutex_);
  return std::max(logged_, cut_);
}

uint64_t UpdateLog::durable() const {
  const Lock lock(mutex_);
  return std::max(durable_, cut_);
}

uint64_t UpdateLog::num_bytes() const {
  const Lock lock(mutex_);
  return sizes_.bytes();
}

}  // namespace hps
