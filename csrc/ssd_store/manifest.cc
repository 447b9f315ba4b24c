// Reading, appending and replacing the manifest and CURRENT. Commit makes a checkpoint durable:
// its record is synced, then CURRENT is renamed.
//
// Above it: manifest.h. Below it: file_system, format.
#include "ssd_store/manifest.h"

#include "common/check.h"

namespace hps {
namespace {

constexpr uint64_t kLogHeaderBytes = 24;  // magic, version, reserved, number
constexpr uint64_t kFrameBytes = 12;      // length, kind, checksum
constexpr uint64_t kCurrentBytes = 40;    // magic, number, length, digest, version, checksum
constexpr uint32_t kMostPayload = uint32_t{1} << 30;

std::string LogHeader(uint64_t number) {
  Encoder out;
  out.PutRaw(kManifestMagic);
  out.Put(kFormatVersion);
  out.Put(uint32_t{0});
  out.Put(number);
  return std::move(out.bytes());
}

uint32_t FrameChecksum(uint32_t chain, std::string_view head, std::string_view payload) {
  return Crc32c(Crc32c(chain, head.data(), head.size()), payload.data(), payload.size());
}

}  // namespace

std::string Manifest::path() const { return folder_ + "/" + FileName(kManifestPrefix, number_); }

Status Manifest::ReadCurrent(uint64_t* length, uint64_t* digest) {
  const std::string path = folder_ + "/" + kCurrentName;
  std::string bytes;
  HPS_RETURN_IF_ERROR(ReadWholeFile(files_, path, &bytes));
  if (bytes.size() != kCurrentBytes) {
    return Corruption(path, 0,
                      "the file has " + std::to_string(bytes.size()) + " bytes, " +
                          std::to_string(kCurrentBytes) + " expected");
  }
  Decoder in(bytes);
  const std::string_view magic = in.GetRaw(kCurrentMagic.size());
  number_ = in.Get<uint64_t>();
  *length = in.Get<uint64_t>();
  *digest = in.Get<uint64_t>();
  const uint32_t version = in.Get<uint32_t>();
  if (Crc32c(0, bytes.data(), kCurrentBytes - 4) != in.Get<uint32_t>()) {
    return Corruption(path, 0, "the checksum of the file does not match its contents");
  }
  if (magic == kCurrentMagic && version > kNarrowVersion) {
    return NewerVersion(path, version, kFormatVersion, kNarrowVersion);
  }
  const bool is_known = version >= kFormatVersion && version <= kNarrowVersion;
  if (magic != kCurrentMagic || !is_known) {
    return Corruption(path, 0,
                      "this is not a store of format versions " + std::to_string(kFormatVersion) +
                          " to " + std::to_string(kNarrowVersion));
  }
  return Status::Ok();
}

bool Manifest::Continue(const Manifest& earlier, uint64_t length, uint64_t digest) {
  if (earlier.number_ != number_ || earlier.log_.empty() || earlier.log_.size() > length) {
    return false;
  }
  std::unique_ptr<File> file;
  if (!files_->Open(path(), OpenMode::kRead, &file).ok()) return false;
  std::string bytes = earlier.log_;
  uint64_t at = bytes.size();
  bytes.resize(length);
  if (length > at && !file->Read(at, length - at, bytes.data() + at).ok()) return false;
  if (Xxh64(bytes.data(), length, 0) != digest) return false;
  chain_ = earlier.chain_;
  state_ = earlier.state_;
  if (!ParseRecords(bytes, length, length, &at).ok()) return false;
  log_ = std::move(bytes);
  return true;
}

Status Manifest::Load(bool is_writer, const Manifest* earlier) {
  uint64_t length = 0;
  uint64_t digest = 0;
  HPS_RETURN_IF_ERROR(ReadCurrent(&length, &digest));
  if (earlier != nullptr && Continue(*earlier, length, digest)) return Status::Ok();
  std::string bytes;
  HPS_RETURN_IF_ERROR(ReadWholeFile(files_, path(), &bytes));
  if (bytes.size() < length) {
    return Corruption(path(), bytes.size(),
                      "the file ends here; CURRENT names a length of " + std::to_string(length));
  }
  const Status parsed = ParseLog(bytes, length, is_writer);
  if (!parsed.ok()) return parsed;
  if (Xxh64(bytes.data(), length, 0) != digest) {
    return Corruption(
        path(), 0,
        "the digest of the first " + std::to_string(length) + " bytes is not the one in CURRENT");
  }
  if (!state_.is_open) return Corruption(path(), 0, "the log holds no open record");
  if (!is_writer) return Status::Ok();
  HPS_RETURN_IF_ERROR(files_->Open(path(), OpenMode::kReadWrite, &file_));
  if (bytes.size() > log_.size()) HPS_RETURN_IF_ERROR(file_->Truncate(log_.size()));
  if (log_.size() > length) {
    // What was taken from beyond CURRENT becomes as durable as the rest before anything builds on
    // it.
    HPS_RETURN_IF_ERROR(file_->SyncData());
    std::unique_ptr<File> current;
    HPS_RETURN_IF_ERROR(WriteCurrentBeside(number_, state_, log_, &current));
    HPS_RETURN_IF_ERROR(current->SyncData());
    HPS_RETURN_IF_ERROR(ReplaceCurrent());
  }
  return Status::Ok();
}

Status Manifest::ParseLog(const std::string& bytes, uint64_t length, bool is_writer) {
  const std::string header = LogHeader(number_);
  if (length < header.size() || bytes.compare(0, header.size(), header) != 0) {
    return Corruption(path(), 0,
                      "the header of manifest " + std::to_string(number_) + " is expected here");
  }
  state_ = ManifestState();
  chain_ = Crc32c(0, header.data(), header.size());
  uint64_t at = header.size();
  HPS_RETURN_IF_ERROR(ParseRecords(bytes, length, is_writer ? bytes.size() : length, &at));
  log_ = bytes.substr(0, at);
  // Not log_.size(): a log that many short sessions have lengthened would never count as bloated.
  if (is_writer) {
    started_bytes_ = state_.is_open ? Rewritten(number_, state_.open).log_.size() : log_.size();
  }
  return Status::Ok();
}

Status Manifest::ParseRecords(const std::string& bytes, uint64_t length, uint64_t end,
                              uint64_t* place) {
  uint64_t& at = *place;
  while (at < end) {
    const std::string_view rest = std::string_view(bytes).substr(at, end - at);
    Decoder in(rest);
    const uint32_t size = in.Get<uint32_t>();
    const auto kind = static_cast<RecordKind>(in.Get<uint32_t>());
    const uint32_t stored = in.Get<uint32_t>();
    const bool fits = !in.failed() && size <= kMostPayload && size <= rest.size() - kFrameBytes;
    const std::string_view payload = fits ? rest.substr(kFrameBytes, size) : std::string_view();
    const bool matches = fits && FrameChecksum(chain_, rest.substr(0, 8), payload) == stored;
    if (!matches && at >= length) break;
    if (!matches) return Corruption(path(), at, "a record whose checksum matches is expected here");
    if (!state_.Apply(kind, payload)) {
      return Corruption(path(), at,
                        "the record of kind " + std::to_string(static_cast<uint32_t>(kind)) +
                            " contradicts those before it");
    }
    chain_ = stored;
    at += kFrameBytes + size;
  }
  if (at < length) return Corruption(path(), at, "a whole record is expected here");
  return Status::Ok();
}

std::string Manifest::Frame(RecordKind kind, const std::string& payload) const {
  HPS_CHECK(payload.size() <= kMostPayload);
  Encoder out;
  out.Put(static_cast<uint32_t>(payload.size()));
  out.Put(static_cast<uint32_t>(kind));
  out.Put(FrameChecksum(chain_, out.bytes(), payload));
  out.PutRaw(payload);
  return std::move(out.bytes());
}

// Not synced yet.
Status Manifest::WriteCurrentBeside(uint64_t number, const ManifestState& state,
                                    const std::string& log, std::unique_ptr<File>* file) {
  Encoder out;
  out.PutRaw(kCurrentMagic);
  out.Put(number);
  out.Put(static_cast<uint64_t>(log.size()));
  out.Put(Xxh64(log.data(), log.size(), 0));
  out.Put(state.open.format_version());
  out.Put(Crc32c(0, out.bytes().data(), out.bytes().size()));
  const std::string path = folder_ + "/" + kCurrentName + ".new";
  if (files_->Exists(path)) HPS_RETURN_IF_ERROR(files_->Unlink(path));
  HPS_RETURN_IF_ERROR(files_->Open(path, OpenMode::kCreateNew, file));
  HPS_RETURN_IF_ERROR((*file)->Allocate(0, out.bytes().size()));
  return (*file)->Write(0, out.bytes().data(), out.bytes().size());
}

Status Manifest::ReplaceCurrent() {
  const std::string path = folder_ + "/" + kCurrentName;
  HPS_RETURN_IF_ERROR(files_->Rename(path + ".new", path));
  return files_->SyncFolder(folder_);
}

Manifest Manifest::Rewritten(uint64_t number, const OpenRecord& open) const {
  Manifest fresh(files_, folder_);
  fresh.number_ = number;
  fresh.log_ = LogHeader(number);
  fresh.chain_ = Crc32c(0, fresh.log_.data(), fresh.log_.size());
  const auto append = [&fresh](RecordKind kind, const std::string& payload) {
    const std::string frame = fresh.Frame(kind, payload);
    std::memcpy(&fresh.chain_, frame.data() + 8, 4);
    fresh.log_ += frame;
    HPS_CHECK(fresh.state_.Apply(kind, payload));
  };
  append(RecordKind::kOpen, EncodeOpen(open));
  for (const auto& [id, checkpoint] : state_.checkpoints) {
    Checkpoint kept = checkpoint;
    kept.dropped.clear();
    append(RecordKind::kCheckpoint, EncodeCheckpoint(kept));
  }
  if (state_.Current() != nullptr) {
    append(RecordKind::kRestore, EncodeId(state_.current));
    if (state_.Current()->is_deleted) append(RecordKind::kDelete, EncodeId(state_.current));
  }
  return fresh;
}

Status Manifest::Start(uint64_t number, const OpenRecord& open, bool* is_begun) {
  *is_begun = false;
  HPS_RETURN_IF_ERROR(files_->CheckHeld());
  Manifest fresh = Rewritten(number, open);
  if (files_->Exists(fresh.path())) HPS_RETURN_IF_ERROR(files_->Unlink(fresh.path()));
  HPS_RETURN_IF_ERROR(WriteNewFile(files_, fresh.path(), fresh.log_));
  HPS_RETURN_IF_ERROR(files_->Open(fresh.path(), OpenMode::kReadWrite, &fresh.file_));
  std::unique_ptr<File> current;
  HPS_RETURN_IF_ERROR(WriteCurrentBeside(number, fresh.state_, fresh.log_, &current));
  HPS_RETURN_IF_ERROR(current->SyncData());
  HPS_RETURN_IF_ERROR(files_->CheckHeld());
  *is_begun = true;
  HPS_RETURN_IF_ERROR(files_->SyncFolder(folder_));
  HPS_RETURN_IF_ERROR(ReplaceCurrent());
  HPS_RETURN_IF_ERROR(files_->CheckHeld());
  number_ = fresh.number_;
  log_ = std::move(fresh.log_);
  chain_ = fresh.chain_;
  started_bytes_ = log_.size();
  state_ = std::move(fresh.state_);
  file_ = std::move(fresh.file_);
  return Status::Ok();
}

Status Manifest::StartWith(uint64_t number, const OpenRecord& open, const Checkpoint& checkpoint) {
  state_.checkpoints[checkpoint.id] = checkpoint;
  state_.checkpoints[checkpoint.id].is_deleted = false;
  state_.current = checkpoint.id;
  bool is_begun = false;
  return Start(number, open, &is_begun);
}

Status Manifest::Commit(RecordKind kind, const std::string& payload, const SyncBefore& sync,
                        bool* is_begun) {
  *is_begun = false;
  HPS_RETURN_IF_ERROR(files_->CheckHeld());
  ManifestState next = state_;
  HPS_CHECK(next.Apply(kind, payload));
  const std::string frame = Frame(kind, payload);
  HPS_RETURN_IF_ERROR(file_->Allocate(log_.size(), frame.size()));
  std::unique_ptr<File> current;
  HPS_RETURN_IF_ERROR(WriteCurrentBeside(number_, next, log_ + frame, &current));
  HPS_RETURN_IF_ERROR(sync(current.get()));
  HPS_RETURN_IF_ERROR(files_->CheckHeld());  // again: the sync may have taken long
  *is_begun = true;
  HPS_RETURN_IF_ERROR(file_->Write(log_.size(), frame.data(), frame.size()));
  HPS_RETURN_IF_ERROR(file_->SyncData());
  HPS_RETURN_IF_ERROR(ReplaceCurrent());
  // What is told of as committed is where its caller will look for it.
  HPS_RETURN_IF_ERROR(files_->CheckHeld());
  std::memcpy(&chain_, frame.data() + 8, 4);
  log_ += frame;
  state_ = std::move(next);
  return Status::Ok();
}

}  // namespace hps
