// Who owns which part of a batch, and room for each share.
#include "batch/key_shares.h"

#include <algorithm>

#include "common/check.h"
#include "common/key_hash.h"
#include "optimizer/binary_counter.h"
#include "table/table_view.h"

namespace hps {
namespace {

constexpr int64_t kKeysPerOwner = 4096;  // below this a second thread costs more than it saves
constexpr int64_t kLeastSampled = 1024;
constexpr int64_t kMostSampled = 16384;
constexpr int64_t kBalance = 16;        // no owner may have more than an average and one in so many
constexpr int64_t kRepeats = 64;        // keys repeat if one in so many does
constexpr int64_t kLeastJudged = 4096;  // keys of a batch that says whether keys repeat
constexpr uint64_t kBitsOfSampled = 64;
constexpr uint64_t kMinIdTable = 1 << 12;

uint64_t PowerOfTwoFrom(uint64_t least) {
  uint64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

}  // namespace

void KeyShares::Begin(int64_t count, int64_t num_parts, int num_threads) {
  HPS_CHECK(count >= 0 && count < (int64_t{1} << 31));
  // Empty until there is memory for it.
  Empty();
  keys_.Reserve(count);
  num_occurrences_ = count;
  num_parts_ = num_parts;
  const int64_t useful = std::min<int64_t>(1 + count / kKeysPerOwner, num_parts);
  num_owners_ = static_cast<int>(std::min<int64_t>(num_threads, useful));
  while (static_cast<int>(memories_.size()) < num_owners_) memories_.emplace_back();
}

// Writes hashes of some of the keys to sample_: one key from each stretch of equal length and not
// always from the same place in it, for a batch may be a table whose columns differ. They are
// written down before anyone counts them, so that keys that no cache holds are waited for together.
// Returns how many.
int64_t KeyShares::Sample(const uint64_t* keys, int64_t count) {
  const int64_t wanted = std::clamp<int64_t>(count / 64, kLeastSampled, kMostSampled);
  const int64_t stretch = std::max<int64_t>(1, count / wanted);
  const int64_t num_sampled = count / stretch;
  uint64_t* hashes = sample_.Reserve(num_sampled);
  for (int64_t i = 0; i < num_sampled; ++i) {
    const uint64_t bits = MixKey(static_cast<uint64_t>(i)) >> 32;
    const uint64_t place = Choose(bits, static_cast<uint64_t>(stretch));
    hashes[i] = MixKey(keys[i * stretch + static_cast<int64_t>(place)]);
  }
  return num_sampled;
}

bool KeyShares::SeemDistinct(const uint64_t* keys, int64_t count) {
  if (count < kLeastJudged || has_repeats_) return false;
  const int64_t num_sampled = Sample(keys, count);
  const uint64_t num_bits = PowerOfTwoFrom(kBitsOfSampled * static_cast<uint64_t>(num_sampled));
  uint64_t* seen = seen_.Reserve(static_cast<int64_t>(num_bits / 64));
  std::memset(seen, 0, num_bits / 8);
  int64_t num_repeated = 0;
  for (int64_t i = 0; i < num_sampled; ++i) {
    const uint64_t place = sample_[i] & (num_bits - 1);
    const uint64_t bit = uint64_t{1} << (place % 64);
    num_repeated += (seen[place / 64] & bit) != 0;
    seen[place / 64] |= bit;
  }
  // Of so many distinct keys one in 128 meets another's bit.
  return num_repeated * kRepeats < num_sampled;
}

void KeyShares::NoteNumbered(int64_t num_unique, int64_t most) {
  is_balanced_ = most * num_owners_ * kBalance <= num_occurrences_ * (kBalance + 1);
  if (num_occurrences_ >= kLeastJudged) {
    has_repeats_ = num_unique * kRepeats < num_occurrences_ * (kRepeats - 1);
  }
}

// Spreads the parts so that each owner gets about as many occurrences, by a sample of the batch:
// with skewed keys equal numbers of parts would not do. The assignment is kept while it does, for a
// row is soonest found in the near cache of the core that wrote it last.
void KeyShares::ChooseOwners(const uint64_t* keys) {
  if (num_owners_ == 1) return;
  if (num_owners_ == num_spread_owners_ && num_parts_ == num_parts_spread_ && is_balanced_) return;
  SpreadParts(keys);
  num_spread_owners_ = num_owners_;
  num_parts_spread_ = num_parts_;
}

void KeyShares::SpreadParts(const uint64_t* keys) {
  int64_t weights[kNumSubparts] = {};
  const int64_t group = kNumSubparts / num_parts_;
  const int64_t num_sampled = Sample(keys, num_occurrences_);
  for (int64_t i = 0; i < num_sampled; ++i) {
    weights[static_cast<int64_t>(sample_[i] >> 58) / group] += 1;
  }
  int64_t loads[kMaxParts] = {};
  int order[kNumSubparts];
  for (int part = 0; part < num_parts_; ++part) order[part] = part;
  std::stable_sort(order, order + num_parts_,
                   [&](int left, int right) { return weights[left] > weights[right]; });
  for (int i = 0; i < num_owners_; ++i) memories_[i].parts = 0;
  const uint64_t part_bits = group == 64 ? ~uint64_t{0} : (uint64_t{1} << group) - 1;
  for (int64_t i = 0; i < num_parts_; ++i) {
    const auto lightest = std::min_element(loads, loads + num_owners_) - loads;
    loads[lightest] += weights[order[i]] + 1;
    memories_[lightest].parts |= part_bits << (order[i] * group);
  }
}

// One owner has all parts, whatever is kept of how they were spread.
void KeyShares::TakeOwners(const KeyShares& other) {
  if (num_owners_ == 1) return;
  for (int i = 0; i < num_owners_; ++i) memories_[i].parts = other.memories_[i].parts;
  num_spread_owners_ = other.num_spread_owners_;
  num_parts_spread_ = other.num_parts_spread_;
}

void KeyShares::CopyNumbers(int owner, const KeyShare& from, KeyShare* share) {
  const auto num_unique = static_cast<size_t>(from.num_unique + kKeyPadding);
  const auto count = static_cast<size_t>(from.num_occurrences + kOccurrencePadding);
  std::memcpy(share->keys, from.keys, num_unique * sizeof(uint64_t));
  std::memcpy(share->ids, from.ids, count * sizeof(uint32_t));
  std::memcpy(share->scan_positions, from.scan_positions, count * sizeof(uint32_t));
  share->num_unique = share->num_ids = from.num_unique;
  share->num_occurrences = from.num_occurrences;
  memories_[owner].last_unique = from.num_unique;
}

// The copy, by which a later push knows this batch, is made by all owners together.
void KeyShares::CopyKeys(int owner, const uint64_t* keys) {
  const int64_t first = num_occurrences_ * owner / num_owners_;
  const int64_t last = num_occurrences_ * (owner + 1) / num_owners_;
  std::memcpy(keys_.data() + first, keys + first,
              static_cast<size_t>(last - first) * sizeof(uint64_t));
}

void KeyShares::Prepare(int owner, KeyShare* share) {
  Memory& memory = memories_[owner];
  share->owned_parts = num_owners_ == 1 ? ~uint64_t{0} : memory.parts;
  share->keys = memory.keys.Reserve(num_occurrences_ + kKeyPadding);
  share->ids = memory.ids.Reserve(num_occurrences_ + kOccurrencePadding);
  share->scan_positions = memory.scan_positions.Reserve(num_occurrences_ + kOccurrencePadding);
  share->id_mask = 0;
}

// Makes the id table as large as the batch before wanted it, or twice as large as it is; but of few
// keys no larger than they can want, for it is cleared, and takes its place in the near caches.
void KeyShares::GrowIdTable(int owner, KeyShare* share) {
  Memory& memory = memories_[owner];
  const auto most = static_cast<uint64_t>(std::max<int64_t>(4 * num_occurrences_, 64));
  const auto expected = static_cast<uint64_t>(4 * memory.last_unique);
  const uint64_t entries = share->id_mask != 0
                               ? 2 * (share->id_mask + 1)
                               : PowerOfTwoFrom(std::min(most, std::max(kMinIdTable, expected)));
  share->id_table = memory.id_table.Reserve(static_cast<int64_t>(entries));
  share->id_mask = entries - 1;
  share->most_unique = static_cast<int64_t>(entries - entries / 8);
}

void KeyShares::PrepareJoin(int owner, KeyShare* share) {
  share->joint_ids = memories_[owner].joint_ids.Reserve(share->num_unique + 1);
}

void KeyShares::PrepareSums(int owner, int32_t dim, KeyShare* share) {
  Memory& memory = memories_[owner];
  const int64_t most_runs = share->num_occurrences / kRunLength + 1;
  share->counts = memory.counts.Reserve(share->num_ids);
  share->youngest = memory.youngest.Reserve(share->num_ids);
  share->hot_ids = memory.hot_ids.Reserve(most_runs);
  // Every hot key's last run may be set aside before it is full.
  share->older = memory.older.Reserve(2 * most_runs);
  share->aside = memory.aside.Reserve(2 * most_runs * dim);
}

void KeyShares::CountClicks(int owner, const uint8_t* labels, KeyShare* share) {
  share->clicks = nullptr;
  if (labels == nullptr) return;
  share->clicks = memories_[owner].clicks.Reserve(share->num_ids);
  std::memset(share->clicks, 0, static_cast<size_t>(share->num_ids) * sizeof(uint32_t));
  for (int64_t i = 0; i < share->num_occurrences; ++i) {
    share->clicks[share->ids[i] & ~kFirstOfKey] += labels[share->scan_positions[i]];
  }
}

void SetOccurrences(const uint32_t* shows, const uint32_t* clicks, KeyShare* share) {
  const auto add = [share](const uint32_t* each, uint32_t* sums) {
    if (each == nullptr || sums == nullptr) return;
    std::memset(sums, 0, static_cast<size_t>(share->num_ids) * sizeof(uint32_t));
    for (int64_t i = 0; i < share->num_occurrences; ++i) {
      sums[share->ids[i] & ~kFirstOfKey] += each[share->scan_positions[i]];
    }
  };
  add(shows, share->counts);
  add(clicks, share->clicks);
}

bool KeyShares::Matches(const uint64_t* keys, int64_t count) const {
  if (count != num_occurrences_) return false;
  return count == 0 ||
         std::memcmp(keys, keys_.data(), static_cast<size_t>(count) * sizeof(uint64_t)) == 0;
}

}  // namespace hps
