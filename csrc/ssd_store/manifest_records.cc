// Encoding of the manifest's records, and what each does to the state.
//
// Above it: manifest_records.h. Below it: format.
#include "ssd_store/manifest_records.h"

#include <algorithm>

namespace hps {
namespace {

void PutSchema(Encoder* out, const TableSchema& schema) {
  out->Put(schema.id);
  out->PutString(schema.name);
  out->Put(schema.dim);
  const uint32_t statistics = schema.has_statistics ? kStatisticsBit : 0;
  const uint32_t deaths = schema.has_deaths ? kDeathsBit : 0;
  const uint32_t narrow = schema.is_narrow ? kNarrowBit : 0;
  out->Put(static_cast<uint32_t>(schema.kind) | statistics | deaths | narrow);
  out->PutString(schema.initializer);
  out->Put(schema.initializer_numbers[0]);
  out->Put(schema.initializer_numbers[1]);
  out->Put(schema.row_bytes);
}

TableSchema GetSchema(Decoder* in) {
  TableSchema schema;
  schema.id = in->Get<uint32_t>();
  schema.name = in->GetString();
  schema.dim = in->Get<uint32_t>();
  const uint32_t kind = in->Get<uint32_t>();
  constexpr uint32_t kBits = kStatisticsBit | kDeathsBit | kNarrowBit;
  schema.kind = static_cast<OptimizerKind>(kind & ~kBits);
  schema.has_statistics = (kind & kStatisticsBit) != 0;
  schema.has_deaths = (kind & kDeathsBit) != 0;
  schema.is_narrow = (kind & kNarrowBit) != 0;
  schema.initializer = in->GetString();
  schema.initializer_numbers[0] = in->Get<double>();
  schema.initializer_numbers[1] = in->Get<double>();
  schema.row_bytes = in->Get<uint32_t>();
  return schema;
}

void PutSegment(Encoder* out, const SegmentInfo& segment) {
  out->Put(segment.number);
  out->Put(segment.sequence);
  out->Put(segment.generation);
  out->Put(segment.num_records);
  out->Put(segment.num_tombstones);
  out->Put(segment.footer_checksum);
}

SegmentInfo GetSegment(Decoder* in, const TableSchema& schema) {
  SegmentInfo segment;
  segment.has_deaths = schema.has_deaths;
  segment.number = in->Get<uint64_t>();
  segment.sequence = in->Get<uint64_t>();
  segment.generation = in->Get<uint32_t>();
  segment.num_records = in->Get<uint64_t>();
  segment.num_tombstones = in->Get<uint64_t>();
  segment.footer_checksum = in->Get<uint32_t>();
  return segment;
}

}  // namespace

std::vector<uint64_t> Checkpoint::FileNumbers() const {
  std::vector<uint64_t> numbers;
  for (const TableCheckpoint& table : tables) {
    for (const SegmentInfo& segment : table.segments) numbers.push_back(segment.number);
  }
  for (const Extra& extra : extras) {
    if (extra.file_number != 0) numbers.push_back(extra.file_number);
  }
  return numbers;
}

const TableCheckpoint* Checkpoint::Find(uint32_t table) const {
  for (const TableCheckpoint& part : tables) {
    if (part.schema.id == table) return &part;
  }
  return nullptr;
}

uint32_t OpenRecord::format_version() const {
  uint32_t version = kFormatVersion;
  for (const TableSchema& schema : tables) version = std::max(version, schema.format_version());
  return version;
}

std::string EncodeOpen(const OpenRecord& record) {
  Encoder out;
  out.Put(record.format_version());
  out.Put(record.store_id);
  out.Put(record.seed);
  out.Put(record.reserved_end);
  out.Put(record.next_checkpoint);
  out.Put(static_cast<uint32_t>(record.tables.size()));
  for (const TableSchema& schema : record.tables) PutSchema(&out, schema);
  return std::move(out.bytes());
}

bool DecodeOpen(std::string_view payload, OpenRecord* record) {
  Decoder in(payload);
  const uint32_t version = in.Get<uint32_t>();
  if (version < kFormatVersion || version > kNarrowVersion) return false;
  record->store_id = in.Get<uint64_t>();
  record->seed = in.Get<uint64_t>();
  record->reserved_end = in.Get<uint64_t>();
  record->next_checkpoint = in.Get<uint64_t>();
  const uint32_t num_tables = in.Get<uint32_t>();
  record->tables.clear();
  for (uint32_t i = 0; i < num_tables && !in.failed(); ++i) {
    record->tables.push_back(GetSchema(&in));
  }
  return in.is_finished() && record->format_version() == version;
}

std::string EncodeCheckpoint(const Checkpoint& checkpoint) {
  Encoder out;
  out.Put(checkpoint.id);
  out.PutString(checkpoint.tag);
  out.Put(checkpoint.created);
  out.Put(static_cast<uint32_t>(checkpoint.tables.size()));
  for (const TableCheckpoint& table : checkpoint.tables) {
    PutSchema(&out, table.schema);
    out.Put(table.num_rows);
    if (table.schema.has_deaths) out.Put(table.num_expired);
    out.Put(static_cast<uint64_t>(table.segments.size()));
    for (const SegmentInfo& segment : table.segments) PutSegment(&out, segment);
  }
  out.Put(static_cast<uint32_t>(checkpoint.extras.size()));
  for (const Extra& extra : checkpoint.extras) {
    out.PutString(extra.name);
    out.Put(extra.file_number);
    out.Put(extra.length);
    out.Put(extra.digest);
    out.PutString(extra.bytes);
  }
  out.Put(static_cast<uint32_t>(checkpoint.dropped.size()));
  for (const uint64_t id : checkpoint.dropped) out.Put(id);
  return std::move(out.bytes());
}

bool DecodeCheckpoint(std::string_view payload, Checkpoint* checkpoint) {
  Decoder in(payload);
  checkpoint->id = in.Get<uint64_t>();
  checkpoint->tag = in.GetString();
  checkpoint->created = in.Get<double>();
  const uint32_t num_tables = in.Get<uint32_t>();
  for (uint32_t i = 0; i < num_tables && !in.failed(); ++i) {
    TableCheckpoint table;
    table.schema = GetSchema(&in);
    table.num_rows = in.Get<uint64_t>();
    if (table.schema.has_deaths) table.num_expired = in.Get<uint64_t>();
    const uint64_t num_segments = in.Get<uint64_t>();
    for (uint64_t j = 0; j < num_segments && !in.failed(); ++j) {
      table.segments.push_back(GetSegment(&in, table.schema));
    }
    checkpoint->tables.push_back(std::move(table));
  }
  const uint32_t num_extras = in.Get<uint32_t>();
  for (uint32_t i = 0; i < num_extras && !in.failed(); ++i) {
    Extra extra;
    extra.name = in.GetString();
    extra.file_number = in.Get<uint64_t>();
    extra.length = in.Get<uint64_t>();
    extra.digest = in.Get<uint64_t>();
    extra.bytes = in.GetString();
    checkpoint->extras.push_back(std::move(extra));
  }
  const uint32_t num_dropped = in.Get<uint32_t>();
  for (uint32_t i = 0; i < num_dropped && !in.failed(); ++i) {
    checkpoint->dropped.push_back(in.Get<uint64_t>());
  }
  return in.is_finished();
}

std::string EncodeId(uint64_t id) {
  Encoder out;
  out.Put(id);
  return std::move(out.bytes());
}

bool DecodeId(std::string_view payload, uint64_t* id) {
  Decoder in(payload);
  *id = in.Get<uint64_t>();
  return in.is_finished();
}

bool ManifestState::Apply(RecordKind kind, std::string_view payload) {
  if (kind == RecordKind::kOpen) {
    is_open = DecodeOpen(payload, &open);
    return is_open;
  }
  if (!is_open) return false;
  uint64_t id = 0;
  switch (kind) {
    case RecordKind::kCheckpoint: {
      Checkpoint checkpoint;
      if (!DecodeCheckpoint(payload, &checkpoint)) return false;
      id = checkpoint.id;
      const std::vector<uint64_t> dropped = checkpoint.dropped;
      checkpoints[id] = std::move(checkpoint);
      current = id;
      open.next_checkpoint = std::max(open.next_checkpoint, id + 1);
      std::erase_if(checkpoints, [&](const auto& kept) {
        return kept.second.is_deleted && kept.first != current;
      });
      for (const uint64_t old : dropped) Drop(old);
      return true;
    }
    case RecordKind::kRestore:
      if (!DecodeId(payload, &id) || checkpoints.count(id) == 0) return false;
      current = id;
      std::erase_if(checkpoints, [&](const auto& kept) {
        return kept.second.is_deleted && kept.first != current;
      });
      return true;
    case RecordKind::kDelete:
      if (!DecodeId(payload, &id) || checkpoints.count(id) == 0) return false;
      Drop(id);
      return true;
    default:
      return false;
  }
}

void ManifestState::Drop(uint64_t id) {
  if (id == current) {
    checkpoints.at(id).is_deleted = true;
  } else {
    checkpoints.erase(id);
  }
}

const Checkpoint* ManifestState::Find(const std::string& tag) const {
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    const Checkpoint& checkpoint = it->second;
    if (!tag.empty() && checkpoint.tag == tag && !checkpoint.is_deleted) return &checkpoint;
  }
  return nullptr;
}

const Checkpoint* ManifestState::Current() const {
  const auto found = checkpoints.find(current);
  return found == checkpoints.end() ? nullptr : &found->second;
}

}  // namespace hps
