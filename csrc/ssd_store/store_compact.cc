// SsdStore's compaction: when a table is worked on, who waits for it, and a full run.
//
// Above it: store.h. Below it: compaction, table_store. One compaction at a time, in the thread, in
// an append without one, or in Compact. What the tables name stays under a bound:
// live rows' bytes / (1 - threshold) + four full segments a table, and a full segment is a quarter
// of the live rows (8 MiB at least, segment_bytes at most). Two segments below it the thread
// takes whatever gives most back, one below it an append waits until as much is free as it needs;
// the last is for the output, which for a moment stands beside its inputs. An erase may break the
// bound from the other side, and leave larger segments than the table would make now, whose output
// may be larger, too: then appends may not make it worse. If compaction fails (a full disk,
// damage), appends go through: an append that the disk can take is never refused or kept waiting
// for the sake of the bound, and one that it cannot take says so itself.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <set>
#include <system_error>

#include "ssd_store/store.h"

namespace hps {
namespace {

constexpr uint64_t kSpareForThread = kSpareSegments - 2;
constexpr uint64_t kSpareForAppends = kSpareSegments - 1;  // the last is for the output
constexpr uint64_t kDueShare = 8;  // of a full segment, stored between two looks
constexpr std::chrono::seconds kPauseAfterFailure{1};

}  // namespace

Status SsdStore::StartCompactor() {
  if (!options_.compacts_in_background) return Status::Ok();
  is_due_ = true;
  // Signals are for the threads of the process that holds the store, not for this one.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    compactor_ = std::thread([this] { RunCompactor(); });
  } catch (const std::system_error&) {
    status = Status(StatusCode::kStore,
                    options_.path +
                        ": the system grants no thread for compaction; raise the "
                        "limit of threads, or open with compact_in_background=False",
                    EAGAIN);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void SsdStore::RunCompactor() {
  std::unique_lock<std::mutex> lock(writer_);
  while (!is_closed_ && failure_.empty()) {
    if (!is_due_) {
      progress_.wait(lock);
      continue;
    }
    is_due_ = false;
    const size_t first = waiting_table_;
    lock.unlock();
    bool has_gained = false;
    for (size_t i = 0; i < tables_.size() && !has_gained; ++i) {
      const size_t table = (first + i) % tables_.size();
      if (!CompactOnce(table, Runner::kThread, UINT64_MAX, &has_gained).ok()) break;
    }
    lock.lock();
    is_due_ = is_due_ || has_gained;
    if (!is_failing_) continue;
    is_due_ = true;
    progress_.wait_for(lock, kPauseAfterFailure, [this] { return is_closed_.load(); });
  }
  progress_.notify_all();
}

void SsdStore::NoteChange(size_t table, uint64_t bytes) {
  due_bytes_ += bytes;
  if (due_bytes_ >= tables_[table]->FullSegmentBytes() / kDueShare) WakeCompactor();
}

void SsdStore::WakeCompactor() {
  due_bytes_ = 0;
  is_due_ = true;
  progress_.notify_all();
}

uint64_t SsdStore::SpaceBound(size_t table, uint64_t live_bytes, uint64_t num_spare) const {
  const double share = static_cast<double>(live_bytes) / (1.0 - options_.compaction_threshold);
  return static_cast<uint64_t>(share) + num_spare * tables_[table]->FullSegmentBytes();
}

// For an append that holds mutations_: no other mutation comes between.
void SsdStore::WaitForSpace(size_t table, uint64_t bytes, std::unique_lock<std::mutex>* lock) {
  TableStore& target = *tables_[table];
  const uint64_t before = target.Figures().segment_bytes;
  const auto lacks_space = [&] {
    const TableFigures figures = target.Figures();
    const uint64_t bound = SpaceBound(table, figures.live_bytes, kSpareForAppends);
    return figures.segment_bytes + bytes > std::max(bound, before) && CheckWritable().ok();
  };
  if (!lacks_space()) return;
  ++num_append_waits_;
  waiting_table_ = table;
  pace_.Hurry(true);
  while (lacks_space()) {
    if (options_.compacts_in_background) {
      CompactionPlan plan;
      const double threshold = options_.compaction_threshold;
      const bool can_gain = target.IsCompacting() ||
                            target.Plan(CompactionNeed::kSpace, threshold, UINT64_MAX, &plan);
      if (is_failing_ || !can_gain) break;
      WakeCompactor();
      progress_.wait_for(*lock, kPauseAfterFailure);
      continue;
    }
    lock->unlock();
    bool has_gained = false;
    const Status status = CompactOnce(table, Runner::kAppend, UINT64_MAX, &has_gained);
    lock->lock();
    if (!status.ok() || !has_gained) break;
  }
  pace_.Hurry(false);
}

// One output's worth of work on a table, or none. The thread may throw nothing, and a compaction
// that has begun must end, or appends would wait for it: so memory that is refused is an error like
// a full disk.
Status SsdStore::CompactOnce(size_t table, Runner runner, uint64_t below, bool* has_gained) {
  const std::lock_guard<std::mutex> step(compaction_);
  std::unique_ptr<Compaction> compaction;
  Status status;
  try {
    status = BeginCompaction(table, runner, below, has_gained, &compaction);
    if (compaction == nullptr) return status;
    status = compaction->Run(&pace_, runner == Runner::kThread);
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kStore,
                    options_.path + ": the system has no memory left for a compaction", ENOMEM);
  }
  return EndCompaction(table, std::move(compaction), status);
}

// *compaction stays empty if there is nothing to do.
Status SsdStore::BeginCompaction(size_t table, Runner runner, uint64_t below, bool* has_gained,
                                 std::unique_ptr<Compaction>* compaction) {
  TableStore& target = *tables_[table];
  const std::lock_guard<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckWritable());
  *has_gained = target.DropDead(&retired_);
  const TableFigures figures = target.Figures();
  const uint64_t bound = SpaceBound(table, figures.live_bytes, kSpareForThread);
  CompactionNeed need = CompactionNeed::kRoutine;
  if (figures.segment_bytes > bound) need = CompactionNeed::kSpace;
  if (runner == Runner::kCompact) need = CompactionNeed::kAll;
  CompactionPlan plan;
  if (!target.Plan(need, options_.compaction_threshold, below, &plan)) {
    std::vector<std::string> holders;
    if (*has_gained) (void)RemoveUnneeded(&holders).ok();
    if (*has_gained) progress_.notify_all();
    return Status::Ok();
  }
  const Status numbered = TakeNumber(&plan.output.number);
  is_failing_ = is_failing_ || !numbered.ok();
  HPS_RETURN_IF_ERROR(numbered);
  output_number_ = plan.output.number;
  *compaction = std::make_unique<Compaction>(&context_, &target, std::move(plan));
  target.Begin((*compaction)->plan());
  *has_gained = true;
  return Status::Ok();
}

// Without a compaction: memory was refused before there was one.
Status SsdStore::EndCompaction(size_t table, std::unique_ptr<Compaction> compaction,
                               Status status) {
  const std::lock_guard<std::mutex> lock(writer_);
  const bool has_memory = status.os_error() != ENOMEM;
  const uint64_t damaged = compaction != nullptr && has_memory ? compaction->damaged() : 0;
  if (compaction != nullptr && compaction->has_failed_sync()) status = Settle(status);
  if (compaction != nullptr) tables_[table]->End(compaction->plan(), status.ok(), &retired_);
  if (status.os_error() == ECANCELED) {
    status = Status::Ok();  // nothing was gained, nothing was lost
  } else {
    num_compactions_ += status.ok();
    num_compaction_failures_ += !status.ok();
    if (!status.ok() && damaged != 0) tables_[table]->SetAside(damaged);
    is_failing_ = !status.ok() && damaged == 0;
  }
  output_number_ = 0;
  compaction.reset();  // its files are nobody's now, unless a table or a checkpoint names them
  try {
    std::vector<std::string> holders;
    (void)RemoveUnneeded(&holders).ok();
  } catch (const std::bad_alloc&) {
    // What stays is removed next time.
  }
  progress_.notify_all();
  return status;
}

Status SsdStore::Compact(size_t first, size_t end) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  uint64_t below = 0;
  {
    const std::lock_guard<TurnLock> turn(mutations_);
    const std::lock_guard<std::mutex> lock(writer_);
    HPS_RETURN_IF_ERROR(CheckCommittable());
    for (size_t table = first; table < end; ++table) {
      HPS_RETURN_IF_ERROR(tables_[table]->Seal());
      tables_[table]->TakeBack();
    }
    below = next_number_;
  }
  Status damage;
  for (size_t table = first; table < end; ++table) {
    for (bool has_gained = true; has_gained;) {
      const Status status = CompactOnce(table, Runner::kCompact, below, &has_gained);
      if (!status.ok() && status.code() != StatusCode::kCorruption) return status;
      if (damage.ok()) damage = status;
    }
  }
  const std::lock_guard<TurnLock> turn(mutations_);
  const std::lock_guard<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckWritable());
  HPS_RETURN_IF_ERROR(RenewCheckpoint());
  return damage;
}

CompactionSpace SsdStore::SpaceOfCompact(size_t first, size_t end) const {
  const std::lock_guard<std::mutex> lock(writer_);
  const Checkpoint* current = manifest_.state().Current();
  std::set<uint64_t> held;
  for (const auto& [id, checkpoint] : manifest_.state().checkpoints) {
    if (current != nullptr && id == current->id) continue;  // renewed, or the next one's
    for (const TableCut& table : checkpoint.tables) {
      for (const SegmentInfo& info : table.segments) held.insert(info.number);
    }
  }
  CompactionSpace space;
  for (size_t table = first; table < end; ++table) {
    const uint64_t record = RowSpace(tables_[table]->schema().row_bytes);
    for (const std::shared_ptr<Segment>& segment : tables_[table]->AllToRewrite()) {
      const uint64_t bytes = segment->info.FileBytes(segment->row_bytes);
      space.written_bytes += segment->live * record;
      (held.count(segment->info.number) > 0 ? space.held_bytes : space.freed_bytes) += bytes;
    }
  }
  return space;
}

// The same cut under a new record, which names the segments of now; the old record goes. Not for a
// cut that was deleted while it was current: it is to be listed no more.
Status SsdStore::RenewCheckpoint() {
  const Checkpoint* current = manifest_.state().Current();
  if (is_changed_ || current == nullptr || current->is_deleted) return Status::Ok();
  Checkpoint renewed;
  renewed.id = manifest_.state().open.next_checkpoint;
  renewed.tag = current->tag;
  renewed.created = current->created;
  renewed.extras = current->extras;
  renewed.dropped = {current->id};
  std::erase_if(renewed.extras, [](const Extra& extra) { return extra.name == kWrittenName; });
  HPS_RETURN_IF_ERROR(SyncCut(&renewed));
  const std::vector<uint64_t> before = current->FileNumbers();
  const std::vector<uint64_t> after = renewed.FileNumbers();
  if (before == after) return Status::Ok();
  HPS_RETURN_IF_ERROR(CommitRecord(RecordKind::kCheckpoint, EncodeCheckpoint(renewed)));
  std::vector<std::string> holders;
  (void)RemoveUnneeded(&holders).ok();
  return Status::Ok();
}

}  // namespace hps
