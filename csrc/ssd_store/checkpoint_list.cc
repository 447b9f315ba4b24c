// The look-up of checkpoints, and their blobs.
//
// Above it: checkpoint_list.h. Below it: commits.
#include "ssd_store/checkpoint_list.h"

#include <mutex>

namespace hps {
namespace {

constexpr size_t kMostListed = 20;  // checkpoints that an error names

}  // namespace

Status CheckpointList::Resolve(const CheckpointName& name, const Checkpoint** checkpoint) const {
  const ManifestState& state = commits_->manifest();
  if (name.tag.empty() && name.id == 0) {
    const auto found = state.checkpoints.find(options_.read_only ? opened_ : state.current);
    *checkpoint = found == state.checkpoints.end() ? nullptr : &found->second;
    return Status::Ok();
  }
  if (!name.tag.empty()) {
    *checkpoint = state.Find(name.tag);
  } else {
    const auto found = state.checkpoints.find(name.id);
    *checkpoint =
        found == state.checkpoints.end() || found->second.is_deleted ? nullptr : &found->second;
  }
  if (*checkpoint != nullptr) return Status::Ok();
  return NoSuchCheckpoint(name);
}

// In the words of hps/checkpoint/names.py.
Status CheckpointList::NoSuchCheckpoint(const CheckpointName& name) const {
  std::vector<std::string> words;
  for (const auto& [id, kept] : commits_->manifest().checkpoints) {
    if (kept.is_deleted) continue;
    words.push_back("id:" + std::to_string(id) + (kept.tag.empty() ? "" : " ('" + kept.tag + "')"));
  }
  std::string known;
  size_t first = 0;
  if (words.size() > kMostListed) {
    first = words.size() - kMostListed;
    known = std::to_string(first) + " older ones";
  }
  for (size_t idx = first; idx < words.size(); ++idx) {
    known += (known.empty() ? "" : ", ") + words[idx];
  }
  const bool is_number = name.tag.find_first_not_of("0123456789") == std::string::npos;
  const bool is_mistaken = !name.tag.empty() && (is_number || name.tag.rfind("id:", 0) == 0);
  const std::string asked = name.tag.empty() ? std::to_string(name.id) : "'" + name.tag + "'";
  const std::string hint =
      "; a string is a tag: give an id as an int, and where all is text as id:3";
  return Status(StatusCode::kConfig, options_.path + ": there is no checkpoint " + asked +
                                         "; kept are: " + (known.empty() ? "none" : known) +
                                         (is_mistaken ? hint : ""));
}

CheckpointSummary CheckpointList::Summarize(const Checkpoint& checkpoint) const {
  CheckpointSummary summary;
  summary.id = checkpoint.id;
  summary.tag = checkpoint.tag;
  summary.created = checkpoint.created;
  summary.is_current = checkpoint.id == commits_->manifest().current;
  for (const TableCheckpoint& table : checkpoint.tables) {
    summary.num_rows += table.num_rows - table.num_expired;
    summary.num_segments += table.segments.size();
    for (const SegmentInfo& segment : table.segments) {
      summary.bytes += segment.FileBytes(table.schema.row_bytes);
    }
  }
  for (const Extra& extra : checkpoint.extras) summary.bytes += extra.length;
  return summary;
}

std::vector<CheckpointSummary> CheckpointList::All() const {
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  std::vector<CheckpointSummary> summaries;
  for (const auto& [id, checkpoint] : commits_->manifest().checkpoints) {
    if (!checkpoint.is_deleted) summaries.push_back(Summarize(checkpoint));
  }
  return summaries;
}

Status CheckpointList::ExtraBytes(const CheckpointName& name,
                                  std::vector<std::pair<std::string, uint64_t>>* bytes) const {
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  const Checkpoint* checkpoint = nullptr;
  HPS_RETURN_IF_ERROR(Resolve(name, &checkpoint));
  if (checkpoint == nullptr) return Status::Ok();
  for (const Extra& extra : checkpoint->extras) {
    if (extra.name != kWrittenName) bytes->emplace_back(extra.name, extra.length);
  }
  return Status::Ok();
}

Status CheckpointList::Extras(const CheckpointName& name, std::vector<NamedBlob>* extras,
                              const std::set<std::string>* wanted) const {
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  const Checkpoint* checkpoint = nullptr;
  HPS_RETURN_IF_ERROR(Resolve(name, &checkpoint));
  if (checkpoint == nullptr) return Status::Ok();
  for (const Extra& extra : checkpoint->extras) {
    const bool is_wanted = wanted == nullptr || wanted->count(extra.name) > 0;
    if (extra.name == kWrittenName || !is_wanted) continue;
    NamedBlob blob{extra.name, extra.bytes};
    std::string path = commits_->manifest_path();
    if (extra.file_number != 0) {
      path = options_.path + "/" + FileName(kExtraPrefix, extra.file_number);
      HPS_RETURN_IF_ERROR(ReadWholeFile(files_, path, &blob.bytes));
    }
    if (blob.bytes.size() != extra.length ||
        Xxh64(blob.bytes.data(), blob.bytes.size(), 0) != extra.digest) {
      return Corruption(path, 0,
                        "the digest of '" + extra.name + "' of checkpoint " +
                            std::to_string(checkpoint->id) + " (" + std::to_string(extra.length) +
                            " bytes) does not match");
    }
    extras->push_back(std::move(blob));
  }
  return Status::Ok();
}

void CheckpointList::SetOpened(uint64_t id) {
  state_->AssertLocked();
  opened_ = id;
}

}  // namespace hps
