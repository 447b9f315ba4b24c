// Making, loading and sealing the tables.
//
// Above it: store_tables.h. Below it: table_store, snapshot_keeper, table_schemas.
#include "ssd_store/store_tables.h"

#include <algorithm>
#include <utility>

#include "ssd_store/table_schemas.h"

namespace hps {
namespace {

constexpr size_t kMostOpenFiles = 256;

void TakeWritten(const Checkpoint& checkpoint, StoreContext* context) {
  for (const Extra& extra : checkpoint.extras) {
    if (extra.name != kWrittenName) continue;
    Decoder in(extra.bytes);
    context->bytes_appended += in.Get<uint64_t>();
    context->bytes_compacted += in.Get<uint64_t>();
    context->bytes_overhead += in.Get<uint64_t>();
  }
}

// What has been written since the store was made; a checkpoint carries it from run to run.
Extra WrittenExtra(const StoreContext& context) {
  Encoder out;
  out.Put(context.bytes_appended.load());
  out.Put(context.bytes_compacted.load());
  out.Put(context.bytes_overhead.load());
  Extra extra;
  extra.name = kWrittenName;
  extra.bytes = out.bytes();
  extra.length = extra.bytes.size();
  extra.digest = Xxh64(extra.bytes.data(), extra.bytes.size(), 0);
  return extra;
}

}  // namespace

StoreTables::StoreTables(FileSystem* files, const StoreOptions& options, StoreState* state)
    : options_(options),
      state_(state),
      cache_(files, kMostOpenFiles,
             options.direct_io ? OpenMode::kReadDirect : OpenMode::kReadScattered),
      snapshots_(options, &context_, state) {
  context_.files = files;
  context_.folder = options.path;
  context_.segment_bytes = options.segment_bytes;
  context_.num_threads = options.NumThreads();
  context_.most_places = options.most_places;
  context_.cache = &cache_;
  context_.lock = &state->lock();
}

void StoreTables::Make(const OpenRecord& open, const Checkpoint* checkpoint) {
  state_->AssertLocked();
  context_.store_id = open.store_id;
  const auto add = [this](const TableSchema& schema) {
    tables_.push_back(std::make_unique<TableStore>(&context_, schema));
  };
  for (const TableSchema& asked : options_.tables) add(*FindSchema(open.tables, asked.name));
  for (const TableSchema& stored : open.tables) {
    if (FindSchema(options_.tables, stored.name) == nullptr) add(stored);
  }
  if (checkpoint != nullptr) TakeWritten(*checkpoint, &context_);
}

// Look-ups wait from before the first table changes until all have, so none ever sees a table that
// is empty because it is still to be filled. If one cannot be, that is known before they go on.
Status StoreTables::Load(const Checkpoint* checkpoint, StoreTables* beside, bool shares_index) {
  state_->AssertLocked();
  ++num_loads_;
  ThreadPool pool(options_.NumLoadThreads(checkpoint));
  std::vector<std::unique_lock<std::shared_mutex>> held;
  for (const std::unique_ptr<TableStore>& table : tables_) held.push_back(table->HoldContents());
  struct Outcome {
    ~Outcome() { state->SetHalfLoaded(!is_whole); }
    StoreState* state;
    bool is_whole = false;
  } outcome{state_};
  if (checkpoint != nullptr && beside != nullptr && LoadBeside(*checkpoint, beside, shares_index)) {
    outcome.is_whole = true;
    return Status::Ok();
  }
  if (checkpoint == nullptr || !snapshots_.Load(*checkpoint, tables_, &pool, &retired_)) {
    for (const std::unique_ptr<TableStore>& table : tables_) {
      const TableCheckpoint* found =
          checkpoint == nullptr ? nullptr : checkpoint->Find(table->schema().id);
      HPS_RETURN_IF_ERROR(table->Load(found, &pool, &retired_));
    }
  }
  outcome.is_whole = true;
  return Status::Ok();
}

// False, also after an error: all are to be loaded anew, which tells of it.
bool StoreTables::LoadBeside(const Checkpoint& checkpoint, StoreTables* beside, bool shares_index) {
  if (beside->context_.store_id != context_.store_id) return false;
  for (const std::unique_ptr<TableStore>& table : tables_) {
    const TableCheckpoint* found = checkpoint.Find(table->schema().id);
    const auto other =
        std::find_if(beside->tables_.begin(), beside->tables_.end(),
                     [&](const auto& one) { return one->schema().id == table->schema().id; });
    bool is_loaded = false;
    if (found == nullptr || other == beside->tables_.end()) return false;
    if (!table->LoadBeside(other->get(), shares_index, *found, &retired_, &is_loaded).ok() ||
        !is_loaded)
      return false;
  }
  return true;
}

// Everything that Load will look at, so that a damaged checkpoint leaves the store where it is.
Status StoreTables::Check(const Checkpoint& checkpoint) {
  state_->AssertLocked();
  for (const TableCheckpoint& table : checkpoint.tables) {
    for (const SegmentInfo& info : table.segments) {
      Segment segment;
      segment.path = options_.path + "/" + FileName(kSegmentPrefix, info.number);
      segment.row_bytes = table.schema.row_bytes;
      segment.info = info;
      std::shared_ptr<File> file;
      HPS_RETURN_IF_ERROR(cache_.Open(info.number, segment.path, &file));
      HPS_RETURN_IF_ERROR(CheckSegmentHeader(file.get(), segment, table.schema, context_.store_id));
      HPS_RETURN_IF_ERROR(ReadFooter(file.get(), segment, FooterVisitor()));
      std::vector<uint32_t> deaths;
      HPS_RETURN_IF_ERROR(ReadDeaths(file.get(), segment, &deaths));
    }
  }
  return Status::Ok();
}

Status StoreTables::Seal(Checkpoint* checkpoint) {
  state_->AssertLocked();
  for (const std::unique_ptr<TableStore>& table : tables_) {
    HPS_RETURN_IF_ERROR(table->BuryEarly());
    HPS_RETURN_IF_ERROR(table->Seal());
    table->DropDead(&retired_);
    checkpoint->tables.push_back(table->ToCheckpoint());
  }
  checkpoint->extras.push_back(WrittenExtra(context_));
  return Status::Ok();
}

uint64_t StoreTables::SaveSnapshot(const Checkpoint* current) {
  return snapshots_.Save(current, tables_);
}

void StoreTables::AddNeeded(uint64_t current, std::set<uint64_t>* numbers) {
  snapshots_.AddNeeded(current, numbers);
  for (const std::unique_ptr<TableStore>& table : tables_) {
    for (const auto& segment : table->Segments()) numbers->insert(segment->info.number);
  }
  std::erase_if(retired_, [](const std::weak_ptr<Segment>& segment) { return segment.expired(); });
  for (const std::weak_ptr<Segment>& retired : retired_) {
    if (const auto segment = retired.lock()) numbers->insert(segment->info.number);
  }
}

void StoreTables::AddFigures(StoreFigures* figures) const {
  figures->bytes_read = context_.bytes_read;
  figures->bytes_written = context_.bytes_written;
  figures->snapshot_bytes = snapshots_.num_bytes();
  figures->bytes_appended = context_.bytes_appended;
  figures->bytes_compacted = context_.bytes_compacted;
  figures->bytes_overhead = context_.bytes_overhead;
}

std::vector<std::weak_ptr<Segment>>* StoreTables::retired() {
  state_->AssertLocked();
  return &retired_;
}

}  // namespace hps
