// TableStore's part in compaction: which segments are worth a rewriting, which rows of them are
// live, and the exchange of the old places for the new.
//
// Above it: compactor, compaction. Below it: key_index. Memory only. Every exchange compares
// the place in the index with the one that was copied, so what was appended, erased or restored
// meanwhile wins. A tombstone is needed while an older segment with a smaller number holds dead
// records: an output that got its number after the tombstone's segment was copied when the row was
// gone, and in a segment without dead records no row was ever superseded. This needs no memory of
// what was compacted when, and it is about one checkpoint alone: a restore brings back whole
// checkpoints, never a segment beneath others.
#include <algorithm>
#include <cerrno>
#include <mutex>

#include "common/check.h"
#include "ssd_store/table_store.h"

namespace hps {
namespace {

constexpr size_t kMostInputs = 64;
constexpr uint64_t kAhead = 16;  // keys between a prefetch and its use
// Routine compaction goes after tombstones that take more than this part of the live rows' bytes
// and one segment: it may have to rewrite all of them.
constexpr uint64_t kDetainedShare = 4;

bool HoldsDead(const Segment& segment) { return segment.live < segment.info.num_records; }

}  // namespace

std::vector<uint32_t> TableStore::ByAge() const {
  std::vector<uint32_t> ordinals;
  for (uint32_t ordinal = 0; ordinal < segments_.size(); ++ordinal) {
    if (segments_[ordinal] != nullptr) ordinals.push_back(ordinal);
  }
  std::sort(ordinals.begin(), ordinals.end(), [&](uint32_t left, uint32_t right) {
    return IsOlder(segments_[left]->info, segments_[right]->info);
  });
  return ordinals;
}

void TableStore::RemoveSegment(uint32_t ordinal, std::vector<std::weak_ptr<Segment>>* retired) {
  std::shared_ptr<Segment>& segment = segments_[ordinal];
  free_chunks_.insert(free_chunks_.end(), segment->chunks.begin(), segment->chunks.end());
  retired->push_back(segment);
  segment.reset();
}

bool TableStore::DropDead(std::vector<std::weak_ptr<Segment>>* retired) {
  context_->lock->AssertHeld();
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  bool has_dropped = false;
  uint64_t holder = UINT64_MAX;  // the smallest number of an older segment that holds dead records
  for (const uint32_t ordinal : ByAge()) {
    const Segment& segment = *segments_[ordinal];
    const bool is_needed = segment.live > 0 || !segment.is_sealed || busy_.count(ordinal) > 0 ||
                           (segment.info.num_tombstones > 0 && holder < segment.info.number);
    if (is_needed) {
      if (HoldsDead(segment)) holder = std::min(holder, segment.info.number);
      continue;
    }
    RemoveSegment(ordinal, retired);
    has_dropped = true;
  }
  return has_dropped;
}

// All that may be rewritten, the oldest first.
std::vector<TableStore::Candidate> TableStore::Candidates(uint64_t below) const {
  std::vector<Candidate> candidates;
  uint64_t holder = UINT64_MAX;
  for (const uint32_t ordinal : ByAge()) {
    const Segment& segment = *segments_[ordinal];
    if (!segment.is_sealed) continue;  // the newest: it keeps nothing of the others alive
    const SegmentInfo& info = segment.info;
    Candidate candidate;
    candidate.ordinal = ordinal;
    candidate.gain = (info.num_records - segment.live) * RowSpace();
    const uint64_t tombstones = info.num_tombstones * kTombstoneBytes;
    (holder < info.number ? candidate.detained : candidate.gain) += tombstones;
    if (HoldsDead(segment)) holder = std::min(holder, info.number);
    const bool is_excluded = set_aside_.count(info.number) > 0 || info.number >= below;
    if (!is_excluded) candidates.push_back(candidate);
  }
  return candidates;
}

// Of candidates in order of age, those whose dead records keep later tombstones alive.
void TableStore::KeepBlocking(std::vector<Candidate>* candidates) const {
  uint64_t last_detained = 0;
  for (const Candidate& candidate : *candidates) {
    if (candidate.detained == 0) continue;
    last_detained = std::max(last_detained, segments_[candidate.ordinal]->info.number);
  }
  std::erase_if(*candidates, [&](const Candidate& candidate) {
    const Segment& segment = *segments_[candidate.ordinal];
    return !HoldsDead(segment) || segment.info.number >= last_detained;
  });
}

void TableStore::SelectRoutine(double threshold, std::vector<Candidate>* candidates) const {
  const auto share = [this](const Candidate& candidate) {
    const Segment& segment = *segments_[candidate.ordinal];
    return static_cast<double>(candidate.gain) /
           static_cast<double>(segment.info.FileBytes(segment.row_bytes));
  };
  std::vector<Candidate> worth = *candidates;
  std::erase_if(worth, [&](const Candidate& candidate) { return share(candidate) <= threshold; });
  if (!worth.empty()) {
    std::stable_sort(
        worth.begin(), worth.end(),
        [&](const Candidate& left, const Candidate& right) { return share(left) > share(right); });
    *candidates = std::move(worth);
    return;
  }
  uint64_t detained = 0;
  for (const Candidate& candidate : *candidates) detained += candidate.detained;
  const uint64_t allowed =
      (index_->size() * RowSpace() + FullBytesFor(index_->size())) / kDetainedShare;
  if (detained > allowed) {
    KeepBlocking(candidates);
  } else {
    candidates->clear();
  }
}

void TableStore::SelectForSpace(std::vector<Candidate>* candidates) const {
  uint64_t gain = 0;
  uint64_t detained = 0;
  for (const Candidate& candidate : *candidates) {
    gain += candidate.gain;
    detained += candidate.detained;
  }
  if (detained > gain) {
    std::vector<Candidate> blocking = *candidates;
    KeepBlocking(&blocking);
    if (!blocking.empty()) return candidates->swap(blocking);
  }
  std::erase_if(*candidates, [](const Candidate& candidate) { return candidate.gain == 0; });
  std::stable_sort(candidates->begin(), candidates->end(),
                   [this](const Candidate& left, const Candidate& right) {
                     const Segment& first = *segments_[left.ordinal];
                     const Segment& second = *segments_[right.ordinal];
                     const auto left_bytes = first.info.FileBytes(first.row_bytes);
                     const auto right_bytes = second.info.FileBytes(second.row_bytes);
                     return static_cast<double>(left.gain) / static_cast<double>(left_bytes) >
                            static_cast<double>(right.gain) / static_cast<double>(right_bytes);
                   });
}

void TableStore::SelectAll(std::vector<Candidate>* candidates) const {
  const uint64_t capacity = CapacityFor(index_->size());
  const auto is_small = [&](const Candidate& candidate) {
    return segments_[candidate.ordinal]->live * 2 < capacity;
  };
  const bool can_merge = std::count_if(candidates->begin(), candidates->end(), is_small) > 1;
  std::erase_if(*candidates, [&](const Candidate& candidate) {
    return candidate.gain + candidate.detained == 0 && !(can_merge && is_small(candidate));
  });
}

// Takes candidates as long as their live rows fit into one segment.
void TableStore::FillPlan(const std::vector<Candidate>& candidates, CompactionPlan* plan) const {
  const uint64_t capacity = CapacityFor(index_->size());
  uint64_t num_rows = 0;
  uint64_t num_tombstones = 0;
  std::set<uint32_t> chosen;
  for (const Candidate& candidate : candidates) {
    const std::shared_ptr<Segment>& segment = segments_[candidate.ordinal];
    num_rows += segment->live;
    num_tombstones += segment->info.num_tombstones;
    const bool fits = num_rows <= capacity && num_tombstones <= kMostTombstones;
    if (!plan->inputs.empty() && (!fits || plan->inputs.size() == kMostInputs)) break;
    plan->inputs.push_back({segment, candidate.ordinal, false});
    chosen.insert(candidate.ordinal);
  }
  for (CompactionPlan::Input& input : plan->inputs) {
    const SegmentInfo& info = input.segment->info;
    if (info.sequence > plan->output.sequence) plan->output.sequence = info.sequence;
    for (uint32_t other = 0; other < segments_.size(); ++other) {
      if (segments_[other] == nullptr || chosen.count(other) > 0) continue;
      const Segment& segment = *segments_[other];
      input.keeps_tombstones |= info.num_tombstones > 0 && HoldsDead(segment) &&
                                IsOlder(segment.info, info) && segment.info.number < info.number;
    }
  }
  plan->output.has_deaths = schema_.has_deaths;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr || segment->info.sequence != plan->output.sequence) continue;
    plan->output.generation = std::max(plan->output.generation, segment->info.generation + 1);
  }
}

bool TableStore::Plan(CompactionNeed need, double threshold, uint64_t below,
                      CompactionPlan* plan) const {
  context_->lock->AssertHeld();
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (!busy_.empty()) return false;
  std::vector<Candidate> candidates = Candidates(below);
  if (need == CompactionNeed::kRoutine) SelectRoutine(threshold, &candidates);
  if (need == CompactionNeed::kSpace) SelectForSpace(&candidates);
  if (need == CompactionNeed::kAll) SelectAll(&candidates);
  plan->num_loads = num_loads_;
  FillPlan(candidates, plan);
  return !plan->inputs.empty();
}

std::vector<std::shared_ptr<Segment>> TableStore::AllToRewrite() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<Candidate> candidates = Candidates(UINT64_MAX);
  for (Candidate& candidate : candidates) {  // they are buried first
    candidate.gain += segments_[candidate.ordinal]->expired * RowSpace();
  }
  SelectAll(&candidates);
  std::vector<std::shared_ptr<Segment>> segments;
  for (const Candidate& candidate : candidates) segments.push_back(segments_[candidate.ordinal]);
  return segments;
}

void TableStore::Begin(const CompactionPlan& plan) {
  context_->lock->AssertHeld();
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  for (const CompactionPlan::Input& input : plan.inputs) busy_.insert(input.ordinal);
  newest_output_ = plan.output.number;
}

bool TableStore::IsCompacting() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return !busy_.empty();
}

uint64_t TableStore::Location(const Segment& segment, uint64_t record) {
  return uint64_t{segment.chunks[record >> kChunkBits]} << kChunkBits |
         (record & (kChunkRecords - 1));
}

bool TableStore::FindLive(const CompactionPlan& plan, size_t input, uint64_t first,
                          const uint64_t* keys, std::vector<uint8_t>* live) const {
  const Segment& segment = *plan.inputs[input].segment;
  const uint64_t count = live->size();
  for (uint64_t start = 0; start < count; start += kLockedKeys) {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    if (num_loads_ != plan.num_loads) return false;
    for (uint64_t i = start; i < std::min(count, start + kLockedKeys); ++i) {
      if (i + kAhead < count) index_->Prefetch(MixKey(keys[i + kAhead]));
      (*live)[i] = index_->Find(MixKey(keys[i])) == Location(segment, first + i);
    }
  }
  return true;
}

Status TableStore::AddOutput(const CompactionPlan& plan, std::shared_ptr<Segment> output,
                             uint32_t* ordinal) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (num_loads_ != plan.num_loads) {
    return Status(StatusCode::kStore, "a checkpoint was loaded meanwhile", ECANCELED);
  }
  const uint64_t num_records = output->info.num_records;
  output->deaths.assign(schema_.has_deaths ? num_records : 0, kNeverDies);
  *ordinal = AddSegment(std::move(output));
  if (!AddChunks(*ordinal, num_records)) {
    const Segment& segment = *segments_[*ordinal];
    free_chunks_.insert(free_chunks_.end(), segment.chunks.begin(), segment.chunks.end());
    segments_[*ordinal].reset();
    return OutOfPlaces();
  }
  busy_.insert(*ordinal);
  return Status::Ok();
}

bool TableStore::Install(const CompactionPlan& plan, uint32_t ordinal, uint64_t first,
                         const std::vector<uint64_t>& keys, const std::vector<uint64_t>& sources) {
  for (uint64_t start = 0; start < keys.size(); start += kLockedKeys) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    if (num_loads_ != plan.num_loads) return false;
    Segment& output = *segments_[ordinal];
    for (uint64_t i = start; i < std::min(keys.size(), start + kLockedKeys); ++i) {
      if (i + kAhead < keys.size()) index_->Prefetch(MixKey(keys[i + kAhead]));
      const uint64_t hash = MixKey(keys[i]);
      if (index_->Find(hash) != sources[i]) continue;
      uint64_t previous = KeyIndex::kNone;
      HPS_CHECK(index_->Put(hash, Location(output, first + i), &previous));  // nothing grows
      const uint32_t death = Unname(previous, nullptr);
      ++output.live;
      if (!schema_.has_deaths) continue;
      output.deaths[first + i] = death;
      output.expired += IsDeadBy(death);
    }
  }
  return true;
}

void TableStore::End(const CompactionPlan& plan, bool is_installed,
                     std::vector<std::weak_ptr<Segment>>* retired) {
  context_->lock->AssertHeld();
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (num_loads_ != plan.num_loads) return;
  busy_.clear();
  if (!is_installed) return;
  for (const CompactionPlan::Input& input : plan.inputs) {
    HPS_CHECK(input.segment->live == 0);
    RemoveSegment(input.ordinal, retired);
  }
}

void TableStore::SetAside(uint64_t number) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  set_aside_.insert(number);
}

void TableStore::TakeBack() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  set_aside_.clear();
}

}  // namespace hps
