// IndexSnapshot: see index_snapshot.h; its bytes are described in docs/ssd_store_format.md.
//
// Above it: index_snapshot.h. Below it: format, key_index, file_system.
#include "ssd_store/index_snapshot.h"

#include <algorithm>
#include <mutex>

namespace hps {
namespace {

constexpr uint32_t kSnapshotVersion = 1;  // of the shards' layout too
constexpr uint64_t kFrontBytes = 16;      // magic, length of the directory
constexpr uint64_t kMostDirectoryBytes = uint64_t{1} << 32;

// The status of many tasks: the first error that is noted stays.
class FirstError {
 public:
  void Note(Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  Status Take() { return std::move(status_); }

 private:
  std::mutex mutex_;
  Status status_;
};

void PutTable(Encoder* out, const TableImage& table) {
  out->Put(table.table);
  out->Put(table.num_rows);
  out->Put(static_cast<uint64_t>(table.parts.size()));
  for (const TableImage::Part& part : table.parts) {
    out->Put(part.number);
    out->Put(part.live);
  }
  out->Put(static_cast<uint64_t>(table.chunks.size()));
  for (const ChunkPlace& chunk : table.chunks) {
    out->Put(chunk.segment);
    out->Put(chunk.idx);
  }
}

TableImage GetTable(Decoder* in) {
  TableImage table;
  table.table = in->Get<uint32_t>();
  table.num_rows = in->Get<uint64_t>();
  const uint64_t num_parts = in->Get<uint64_t>();
  for (uint64_t i = 0; i < num_parts && !in->failed(); ++i) {
    TableImage::Part part;
    part.number = in->Get<uint64_t>();
    part.live = in->Get<uint64_t>();
    table.parts.push_back(part);
  }
  const uint64_t num_chunks = in->Get<uint64_t>();
  for (uint64_t i = 0; i < num_chunks && !in->failed(); ++i) {
    ChunkPlace chunk;
    chunk.segment = in->Get<uint32_t>();
    chunk.idx = in->Get<uint32_t>();
    table.chunks.push_back(chunk);
  }
  return table;
}

}  // namespace

CheckpointIdentity CheckpointIdentity::Of(uint64_t store_id, const Checkpoint& checkpoint) {
  Checkpoint named = checkpoint;
  named.dropped.clear();  // which a manifest written anew leaves out
  const std::string record = EncodeCheckpoint(named);
  return {store_id, checkpoint.id, Xxh64(record.data(), record.size(), 0)};
}

// The shards are laid out before their checksums are known: all numbers have a fixed width, so the
// directory's length is too.
Status WriteIndexSnapshot(FileSystem* files, const std::string& path,
                          const CheckpointIdentity& belongs_to,
                          const std::vector<TableImage>& tables, ThreadPool* pool,
                          uint64_t* num_bytes) {
  constexpr size_t kShards = KeyIndex::kNumShards;
  std::vector<IndexSnapshot::ShardEntry> shards(tables.size() * kShards);
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].image = tables[i / kShards].index->Image(static_cast<int>(i % kShards));
  }
  const auto directory = [&] {
    Encoder out;
    out.Put(kSnapshotVersion);
    out.Put(static_cast<uint32_t>(tables.size()));
    out.Put(belongs_to.store_id);
    out.Put(belongs_to.checkpoint);
    out.Put(belongs_to.digest);
    for (const TableImage& table : tables) PutTable(&out, table);
    for (const auto& shard : shards) {
      out.Put(shard.image.slots);
      out.Put(shard.image.count);
      out.Put(shard.image.overflow);
      out.Put(shard.checksum);
    }
    Encoder front;
    front.PutRaw(kIndexMagic);
    front.Put(static_cast<uint64_t>(out.bytes().size() + 4));
    out.Put(Crc32c(Crc32c(0, front.bytes().data(), kFrontBytes), out.bytes().data(),
                   out.bytes().size()));
    return std::move(front.bytes()) + out.bytes();
  };
  uint64_t offset = directory().size();
  for (auto& shard : shards) {
    shard.offset = offset;
    offset += shard.num_bytes();
  }
  std::unique_ptr<File> file;
  HPS_RETURN_IF_ERROR(files->Open(path, OpenMode::kCreateNew, &file));
  FirstError error;
  error.Note(file->Allocate(0, offset));
  if (Status reserved = error.Take(); !reserved.ok()) {
    (void)files->Unlink(path).ok();  // else the next opening does it
    return reserved;
  }
  DealOut(pool, shards.size(), [&](size_t number, int) {
    auto& shard = shards[number];
    if (shard.num_bytes() == 0) return;
    shard.checksum = Crc32c(0, shard.image.entries, shard.num_bytes());
    error.Note(file->Write(shard.offset, shard.image.entries, shard.num_bytes()));
  });
  Status status = error.Take();
  const std::string head = directory();
  const size_t magic = kIndexMagic.size();
  if (status.ok()) status = file->Write(magic, head.data() + magic, head.size() - magic);
  if (status.ok()) status = file->Write(0, head.data(), magic);
  if (!status.ok()) (void)files->Unlink(path).ok();
  *num_bytes = offset;
  return status;
}

Status IndexSnapshot::Open(FileSystem* files, const std::string& path,
                           std::unique_ptr<IndexSnapshot>* snapshot) {
  std::unique_ptr<IndexSnapshot> opened(new IndexSnapshot());
  HPS_RETURN_IF_ERROR(files->Open(path, OpenMode::kRead, &opened->file_));
  File* file = opened->file_.get();
  HPS_RETURN_IF_ERROR(file->Size(&opened->num_bytes_));
  char front[kFrontBytes] = {};
  HPS_RETURN_IF_ERROR(file->Read(0, std::min(opened->num_bytes_, kFrontBytes), front));
  const bool is_finished =
      std::any_of(front, front + kIndexMagic.size(), [](char byte) { return byte != 0; });
  if (is_finished) {
    uint64_t length = 0;
    std::memcpy(&length, front + kIndexMagic.size(), sizeof(length));
    if (std::string_view(front, kIndexMagic.size()) != kIndexMagic || length < 4 ||
        length > std::min(opened->num_bytes_, kMostDirectoryBytes)) {
      return Corruption(path, 0, "the head of a snapshot of the index is expected here");
    }
    std::string bytes(length, '\0');
    HPS_RETURN_IF_ERROR(file->Read(kFrontBytes, length, bytes.data()));
    uint32_t stored = 0;
    std::memcpy(&stored, bytes.data() + length - 4, 4);
    if (Crc32c(Crc32c(0, front, kFrontBytes), bytes.data(), length - 4) != stored) {
      return Corruption(path, 0, "the checksum of the directory does not match its contents");
    }
    HPS_RETURN_IF_ERROR(opened->ParseDirectory(std::string_view(bytes).substr(0, length - 4)));
  }
  *snapshot = std::move(opened);
  return Status::Ok();
}

Status IndexSnapshot::ParseDirectory(std::string_view bytes) {
  Decoder in(bytes);
  const uint32_t version = in.Get<uint32_t>();
  const uint32_t num_tables = in.Get<uint32_t>();
  belongs_to_.store_id = in.Get<uint64_t>();
  belongs_to_.checkpoint = in.Get<uint64_t>();
  belongs_to_.digest = in.Get<uint64_t>();
  if (version != kSnapshotVersion) {
    belongs_to_ = CheckpointIdentity();  // of no checkpoint that this version can use
    return Status::Ok();
  }
  for (uint32_t i = 0; i < num_tables && !in.failed(); ++i) tables_.push_back(GetTable(&in));
  uint64_t offset = kFrontBytes + bytes.size() + 4;
  for (uint32_t i = 0; i < num_tables && !in.failed(); ++i) {
    for (ShardEntry& shard : shards_.emplace_back()) {
      shard.image.slots = in.Get<uint64_t>();
      shard.image.count = in.Get<uint64_t>();
      shard.image.overflow = in.Get<uint64_t>();
      shard.checksum = in.Get<uint32_t>();
      shard.offset = offset;
      offset += shard.num_bytes();
    }
  }
  if (in.is_finished() && offset == num_bytes_) return Status::Ok();
  return Corruption(file_->path(), num_bytes_,
                    "the file ends here; its directory needs " + std::to_string(offset) + " bytes");
}

const TableImage* IndexSnapshot::Find(uint32_t table) const {
  for (const TableImage& image : tables_) {
    if (image.table == table) return &image;
  }
  return nullptr;
}

Status IndexSnapshot::CheckShard(const ShardEntry& shard, const void* bytes) const {
  if (Crc32c(0, bytes, shard.num_bytes()) == shard.checksum) return Status::Ok();
  return Corruption(file_->path(), shard.offset,
                    "the checksum of " + std::to_string(shard.num_bytes()) +
                        " bytes of the index does not match");
}

Status IndexSnapshot::LoadIndex(const TableImage& table, ThreadPool* pool, KeyIndex* index) const {
  const Shards& shards = shards_[&table - tables_.data()];
  FirstError error;
  DealOut(pool, shards.size(), [&](size_t number, int) {
    const ShardEntry& shard = shards[number];
    if (shard.num_bytes() == 0) return;
    const int idx = static_cast<int>(number);
    unsigned char* entries = index->Adopt(idx, shard.image);
    if (entries == nullptr) {
      error.Note(Corruption(file_->path(), shard.offset, "no shard of an index can be like this"));
      return;
    }
    const Status read = file_->Read(shard.offset, shard.num_bytes(), entries);
    error.Note(read.ok() ? CheckShard(shard, entries) : read);
    if (index->EndsEmpty(idx)) return;
    error.Note(Corruption(file_->path(), shard.offset, "a shard's last entry must be empty"));
  });
  HPS_RETURN_IF_ERROR(error.Take());
  if (index->size() == table.num_rows) return Status::Ok();
  return Corruption(file_->path(), 0, "the counts of the shards contradict the table's");
}

}  // namespace hps
