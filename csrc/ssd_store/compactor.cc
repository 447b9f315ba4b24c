// The thread, one compaction from plan to end, and the bound on space.
//
// Above it: compactor.h. Below it: compaction, table_store.
#include "ssd_store/compactor.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <set>
#include <system_error>
#include <utility>

namespace hps {
namespace {

constexpr uint64_t kSpareForThread = kSpareSegments - 2;
constexpr uint64_t kSpareForAppends = kSpareSegments - 1;  // the last is for the output
constexpr uint64_t kDueShare = 8;  // of a full segment, stored between two looks
constexpr std::chrono::seconds kPauseAfterFailure{1};

}  // namespace

Compactor::Compactor(const StoreOptions& options, StoreState* state, Commits* commits,
                     StoreTables* tables, FileRemover* remover)
    : options_(options),
      state_(state),
      commits_(commits),
      tables_(tables),
      remover_(remover),
      waiting_(std::make_unique<Waiting>(options.compaction_bytes_per_second)) {}

Status Compactor::Start() {
  if (!options_.compacts_in_background) return Status::Ok();
  is_due_ = true;
  // Signals are for the threads of the process that holds the store, not for this one.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    waiting_->thread = std::thread([this] { Run(); });
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

void Compactor::Run() {
  std::unique_lock<OwnedMutex> lock(state_->lock());
  while (!state_->is_closed() && !state_->has_stopped()) {
    if (!is_due_) {
      waiting_->progress.wait(lock);
      continue;
    }
    is_due_ = false;
    const size_t first = waiting_table_;
    lock.unlock();
    bool has_gained = false;
    for (size_t i = 0; i < tables_->size() && !has_gained; ++i) {
      const size_t table = (first + i) % tables_->size();
      if (!CompactOnce(table, Runner::kThread, UINT64_MAX, &has_gained).ok()) break;
    }
    lock.lock();
    is_due_ = is_due_ || has_gained;
    if (!is_failing_) continue;
    is_due_ = true;
    waiting_->progress.wait_for(lock, kPauseAfterFailure, [this] { return state_->is_closed(); });
  }
  waiting_->progress.notify_all();
}

void Compactor::NotifyClosed() {
  state_->AssertLocked();
  waiting_->progress.notify_all();
}

void Compactor::Stop() { waiting_->pace.Stop(); }

void Compactor::Join() {
  if (waiting_->thread.joinable()) waiting_->thread.join();
}

void Compactor::NoteChange(size_t table, uint64_t bytes) {
  state_->AssertLocked();
  due_bytes_ += bytes;
  if (due_bytes_ >= (*tables_)[table].FullSegmentBytes() / kDueShare) Wake();
}

void Compactor::Wake() {
  state_->AssertLocked();
  due_bytes_ = 0;
  is_due_ = true;
  waiting_->progress.notify_all();
}

uint64_t Compactor::SpaceBound(size_t table, uint64_t live_bytes, uint64_t num_spare) const {
  const double share = static_cast<double>(live_bytes) / (1.0 - options_.compaction_threshold);
  return static_cast<uint64_t>(share) + num_spare * (*tables_)[table].FullSegmentBytes();
}

// No other mutation comes between.
void Compactor::WaitForSpace(size_t table, uint64_t bytes, std::unique_lock<OwnedMutex>* lock) {
  state_->mutations().AssertHeld();
  state_->AssertLocked();
  TableStore& target = (*tables_)[table];
  const uint64_t before = target.Figures().segment_bytes;
  const auto lacks_space = [&] {
    const TableFigures figures = target.Figures();
    // The thread buries what is expired in its own time. Without one, appends have to.
    const uint64_t expired = options_.compacts_in_background ? 0 : figures.expired_bytes;
    const uint64_t bound = SpaceBound(table, figures.live_bytes - expired, kSpareForAppends);
    return figures.segment_bytes + bytes > std::max(bound, before) && state_->CheckWritable().ok();
  };
  if (!lacks_space()) return;
  ++num_append_waits_;
  waiting_table_ = table;
  waiting_->pace.Hurry(true);
  while (lacks_space()) {
    if (options_.compacts_in_background) {
      CompactionPlan plan;
      const double threshold = options_.compaction_threshold;
      const bool can_gain = target.IsCompacting() ||
                            target.Plan(CompactionNeed::kSpace, threshold, UINT64_MAX, &plan);
      if (is_failing_ || !can_gain) break;
      Wake();
      waiting_->progress.wait_for(*lock, kPauseAfterFailure);
      continue;
    }
    lock->unlock();
    bool has_gained = false;
    const Status status = CompactOnce(table, Runner::kAppend, UINT64_MAX, &has_gained);
    lock->lock();
    if (!status.ok() || !has_gained) break;
  }
  waiting_->pace.Hurry(false);
}

// One output's worth of work on a table, or none. The thread may throw nothing, and a compaction
// that has begun must end, or appends would wait for it: so memory that is refused is an error like
// a full disk.
Status Compactor::CompactOnce(size_t table, Runner runner, uint64_t below, bool* has_gained) {
  const std::lock_guard<std::mutex> step(running_);
  std::unique_ptr<Compaction> compaction;
  Status status;
  try {
    status = BuryExpired(table, runner, below);
    // On a full disk: what is dead already may still go, and gives space back.
    if (!status.ok() && status.os_error() != ENOSPC) return status;
    status = Begin(table, runner, below, has_gained, &compaction);
    if (compaction == nullptr) return status;
    status = compaction->Run(&waiting_->pace, runner == Runner::kThread);
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kStore,
                    options_.path + ": the system has no memory left for a compaction", ENOMEM);
  }
  return End(table, std::move(compaction), status);
}

Status Compactor::BuryExpired(size_t table, Runner runner, uint64_t below) {
  const double threshold = runner == Runner::kThread ? options_.compaction_threshold : -1.0;
  for (const auto& segment : (*tables_)[table].ToBury(threshold, below)) {
    const Status buried = BuryOf(table, *segment, runner == Runner::kThread);
    if (buried.ok()) continue;
    const std::lock_guard<OwnedMutex> lock(state_->lock());
    if (buried.os_error() == ECANCELED) return state_->CheckWritable();
    ++num_failures_;
    const bool is_damage = buried.code() == StatusCode::kCorruption;
    if (is_damage) (*tables_)[table].SetAside(segment->info.number);
    is_failing_ = is_failing_ || (!is_damage && buried.os_error() != ENOSPC);
    return buried;
  }
  return Status::Ok();
}

// The keys are read without the lock; what has happened to them meanwhile is seen under it.
Status Compactor::BuryOf(size_t table, const Segment& segment, bool is_paced) {
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(tables_->context()->cache->Open(segment.info.number, segment.path, &file));
  Status buried;
  FooterVisitor visitor;
  visitor.keys = [&](uint64_t first, const uint64_t* keys, uint64_t count) {
    if (!buried.ok()) return;
    if (is_paced) waiting_->pace.Spend(count * sizeof(uint64_t));
    const std::lock_guard<OwnedMutex> lock(state_->lock());
    buried = state_->CheckWritable();
    if (buried.ok()) buried = (*tables_)[table].Bury(segment, first, keys, count);
  };
  HPS_RETURN_IF_ERROR(ReadFooter(file.get(), segment, visitor));
  return buried;
}

// *compaction stays empty if there is nothing to do.
Status Compactor::Begin(size_t table, Runner runner, uint64_t below, bool* has_gained,
                        std::unique_ptr<Compaction>* compaction) {
  TableStore& target = (*tables_)[table];
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  HPS_RETURN_IF_ERROR(state_->CheckWritable());
  *has_gained = target.DropDead(tables_->retired());
  const TableFigures figures = target.Figures();
  const uint64_t bound = SpaceBound(table, figures.live_bytes, kSpareForThread);
  CompactionNeed need = CompactionNeed::kRoutine;
  if (figures.segment_bytes > bound) need = CompactionNeed::kSpace;
  if (runner == Runner::kRewriteAll) need = CompactionNeed::kAll;
  CompactionPlan plan;
  if (!target.Plan(need, options_.compaction_threshold, below, &plan)) {
    if (*has_gained) remover_->TryToRemove();
    if (*has_gained) waiting_->progress.notify_all();
    return Status::Ok();
  }
  const Status numbered = commits_->TakeNumber(&plan.output.number);
  is_failing_ = is_failing_ || !numbered.ok();
  HPS_RETURN_IF_ERROR(numbered);
  remover_->KeepOutput(plan.output.number);
  *compaction = std::make_unique<Compaction>(tables_->context(), &target, std::move(plan));
  target.Begin((*compaction)->plan());
  *has_gained = true;
  return Status::Ok();
}

// Without a compaction: memory was refused before there was one.
Status Compactor::End(size_t table, std::unique_ptr<Compaction> compaction, Status status) {
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  const bool has_memory = status.os_error() != ENOMEM;
  const uint64_t damaged = compaction != nullptr && has_memory ? compaction->damaged() : 0;
  if (compaction != nullptr && compaction->has_failed_sync()) status = state_->Settle(status);
  if (compaction != nullptr)
    (*tables_)[table].End(compaction->plan(), status.ok(), tables_->retired());
  if (status.os_error() == ECANCELED) {
    status = Status::Ok();  // nothing was gained, nothing was lost
  } else {
    num_compactions_ += status.ok();
    num_failures_ += !status.ok();
    if (!status.ok() && damaged != 0) (*tables_)[table].SetAside(damaged);
    is_failing_ = !status.ok() && damaged == 0;
  }
  remover_->KeepOutput(0);
  compaction.reset();  // its files are nobody's now, unless a table or a checkpoint names them
  try {
    remover_->TryToRemove();
  } catch (const std::bad_alloc&) {
    // What stays is removed next time.
  }
  waiting_->progress.notify_all();
  return status;
}

Status Compactor::RewriteAll(size_t first, size_t end, uint64_t below, Status* damage) {
  for (size_t table = first; table < end; ++table) {
    for (bool has_gained = true; has_gained;) {
      const Status status = CompactOnce(table, Runner::kRewriteAll, below, &has_gained);
      if (!status.ok() && status.code() != StatusCode::kCorruption) return status;
      if (damage->ok()) *damage = status;
    }
  }
  return Status::Ok();
}

CompactionSpace Compactor::SpaceOf(size_t first, size_t end) const {
  state_->AssertLocked();
  const Checkpoint* current = commits_->manifest().Current();
  std::set<uint64_t> held;
  for (const auto& [id, checkpoint] : commits_->manifest().checkpoints) {
    if (current != nullptr && id == current->id) continue;  // renewed, or the next one's
    for (const TableCheckpoint& table : checkpoint.tables) {
      for (const SegmentInfo& info : table.segments) held.insert(info.number);
    }
  }
  CompactionSpace space;
  for (size_t table = first; table < end; ++table) {
    const uint64_t record = (*tables_)[table].RowSpace();
    for (const std::shared_ptr<Segment>& segment : (*tables_)[table].AllToRewrite()) {
      const uint64_t bytes = segment->info.FileBytes(segment->row_bytes);
      space.written_bytes += (segment->live - segment->expired) * record;
      (held.count(segment->info.number) > 0 ? space.held_bytes : space.freed_bytes) += bytes;
    }
  }
  return space;
}

void Compactor::AddFigures(StoreFigures* figures) const {
  state_->AssertLocked();
  figures->compactions = num_compactions_;
  figures->compaction_failures = num_failures_;
  figures->append_waits = num_append_waits_;
}

}  // namespace hps
