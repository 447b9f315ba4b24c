// KeyIndex's changes: insertion and removal that keep a shard sorted, and growth in place.
//
// Above it: table_store. Below it: mmap and mremap; shards under a page use malloc, so that a small
// table stays small.
#include "ssd_store/key_index.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "common/check.h"

namespace hps {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kSmallestBytes = 192;
// ThreadSanitizer does not know of mremap: what one thread gave back by it, and the system has
// given to another, would seem to be both threads'.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMoves = false;
#else
constexpr bool kMoves = true;
#endif

bool IsFull(uint64_t count, uint64_t slots) {
  return count * 100 > slots * KeyIndex::kFullestPercent;
}

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Memory of `bytes`, keeping the first min(old, new) bytes of the old block; nullptr if refused.
unsigned char* Reallocate(unsigned char* old, uint64_t old_bytes, uint64_t bytes) {
  const bool was_mapped = old_bytes >= kPage;
  const bool is_mapped = bytes >= kPage;
  if (was_mapped && is_mapped && kMoves) {
    void* moved = mremap(old, old_bytes, bytes, MREMAP_MAYMOVE);
    return moved == MAP_FAILED ? nullptr : static_cast<unsigned char*>(moved);
  }
  if (!was_mapped && !is_mapped) return static_cast<unsigned char*>(std::realloc(old, bytes));
  void* fresh =
      is_mapped ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                : std::malloc(bytes);
  if (fresh == MAP_FAILED || fresh == nullptr) return nullptr;
  if (old != nullptr) std::memcpy(fresh, old, std::min(old_bytes, bytes));
  if (was_mapped) {
    munmap(old, old_bytes);
  } else {
    std::free(old);
  }
  return static_cast<unsigned char*>(fresh);
}

}  // namespace

// Entries are pushed together at the front, moved to the end of the new slots, and dealt out from
// there to their new homes; an entry never moves behind where it was read from, so one block is
// enough.
bool KeyIndex::Spread(Shard* shard, uint64_t slots) {
  uint64_t packed = 0;
  for (uint64_t slot = 0; slot < shard->slots; ++slot) {
    const Entry entry = Load(*shard, slot);
    if (!entry.is_empty()) Store(*shard, packed++, entry);
  }
  HPS_CHECK(packed == shard->count && packed < slots);
  const uint64_t start = slots - packed;
  std::memmove(shard->entries + start * kEntryBytes, shard->entries, packed * kEntryBytes);
  std::memset(shard->entries, 0xff, start * kEntryBytes);
  shard->slots = slots;
  shard->homes = slots - std::min(shard->overflow, slots / 4);
  uint64_t next = 0;
  for (uint64_t source = start; source < slots; ++source) {
    next = std::max(next, Home(*shard, Load(*shard, source).remainder())) + 1;
  }
  if (next >= slots) return false;
  const Entry empty{~uint64_t{0}, ~uint32_t{0}};
  next = 0;
  for (uint64_t source = start; source < slots; ++source) {
    const Entry entry = Load(*shard, source);
    const uint64_t target = std::max(next, Home(*shard, entry.remainder()));
    next = target + 1;
    Store(*shard, source, empty);
    Store(*shard, target, entry);
  }
  return true;
}

bool KeyIndex::Resize(Shard* shard, uint64_t bytes) {
  const uint64_t old_bytes = shard->bytes;
  const uint64_t slots = bytes / kEntryBytes;
  if (bytes < old_bytes && !Spread(shard, slots)) {
    HPS_CHECK(Spread(shard, old_bytes / kEntryBytes));
    return true;
  }
  unsigned char* entries = Reallocate(shard->entries, old_bytes, bytes);
  if (entries == nullptr) {
    if (bytes < old_bytes) HPS_CHECK(Spread(shard, old_bytes / kEntryBytes));
    return false;
  }
  shard->entries = entries;
  shard->bytes = bytes;
  return bytes < old_bytes || Spread(shard, slots) || Grow(shard);
}

bool KeyIndex::Grow(Shard* shard) {
  if (shard->bytes == 0) return Resize(shard, kSmallestBytes);
  if (shard->bytes < kPage) return Resize(shard, std::min(shard->bytes * 2, kPage));
  const uint64_t pages = shard->bytes / kPage;
  if (shard->count * 2 < shard->slots) {
    // Not full: a run passed the end. Keys whose hashes are all near the top, which someone may
    // choose, keep doing so however many homes there are; only room behind the homes helps.
    shard->overflow *= 2;
    return Resize(shard, kPage * (pages + 1 + shard->overflow * kEntryBytes / kPage));
  }
  return Resize(shard, kPage * std::max(pages + 1, pages * kGrowthPercent / 100));
}

uint64_t KeyIndex::size() const {
  uint64_t count = 0;
  for (const Shard& shard : shards_) count += shard.count;
  return count;
}

uint64_t KeyIndex::memory_bytes() const {
  uint64_t bytes = sizeof(*this);
  for (const Shard& shard : shards_) bytes += shard.bytes;
  return bytes;
}

bool KeyIndex::Reserve(int shard, uint64_t count) {
  Shard& reserved = shards_[shard];
  HPS_CHECK(reserved.count == 0);
  const uint64_t bytes = count / kNumShards * kEntryBytes * 100 / 82;
  if (bytes == 0) return true;
  const uint64_t wanted = bytes < kPage ? RoundUp(bytes, kSmallestBytes) : RoundUp(bytes, kPage);
  return reserved.bytes >= wanted || Resize(&reserved, wanted);
}

ShardImage KeyIndex::Image(int shard) const {
  const Shard& source = shards_[shard];
  return {source.slots, source.count, source.overflow, source.entries};
}

unsigned char* KeyIndex::Adopt(int shard, const ShardImage& image) {
  Shard& adopted = shards_[shard];
  HPS_CHECK(adopted.bytes == 0);
  const bool is_possible = image.slots > 0 && image.slots <= kNone && image.count < image.slots &&
                           image.overflow >= kSomeOverflow;
  if (!is_possible) return nullptr;
  const uint64_t bytes = image.slots * kEntryBytes;
  const uint64_t wanted = bytes > kPage - kEntryBytes ? RoundUp(bytes, kPage) : bytes;
  adopted.entries = Reallocate(nullptr, 0, wanted);
  if (adopted.entries == nullptr) return nullptr;
  adopted.bytes = wanted;
  adopted.slots = image.slots;
  adopted.homes = image.slots - std::min(image.overflow, image.slots / 4);
  adopted.count = image.count;
  adopted.overflow = image.overflow;
  return adopted.entries;
}

bool KeyIndex::EndsEmpty(int shard) const {
  const Shard& adopted = shards_[shard];
  return adopted.slots == 0 || Load(adopted, adopted.slots - 1).is_empty();
}

bool KeyIndex::Put(uint64_t hash, uint64_t location, uint64_t* previous) {
  HPS_CHECK(location < kNone);
  Shard& shard = shards_[ShardOf(hash)];
  const uint64_t remainder = Remainder(hash);
  const Entry fresh{remainder << 8 | location >> 32, static_cast<uint32_t>(location)};
  *previous = kNone;
  for (;;) {
    if (shard.slots > 0) {
      const uint64_t slot = Seek(shard, remainder);
      const Entry entry = Load(shard, slot);
      if (entry.remainder() == remainder && !entry.is_empty()) {
        *previous = entry.location();
        Store(shard, slot, fresh);
        return true;
      }
      uint64_t end = slot;
      while (!Load(shard, end).is_empty()) ++end;
      if (end + 1 < shard.slots && !IsFull(shard.count + 1, shard.slots)) {
        unsigned char* place = shard.entries + slot * kEntryBytes;
        std::memmove(place + kEntryBytes, place, (end - slot) * kEntryBytes);
        Store(shard, slot, fresh);
        ++shard.count;
        return true;
      }
    }
    if (!Grow(&shard)) return false;
  }
}

uint64_t KeyIndex::Erase(uint64_t hash) {
  Shard& shard = shards_[ShardOf(hash)];
  if (shard.count == 0) return kNone;
  const uint64_t remainder = Remainder(hash);
  const uint64_t slot = Seek(shard, remainder);
  const Entry entry = Load(shard, slot);
  if (entry.remainder() != remainder || entry.is_empty()) return kNone;
  // Entries behind it that are not at home move up by one.
  uint64_t end = slot + 1;
  while (!Load(shard, end).is_empty() && Home(shard, Load(shard, end).remainder()) < end) ++end;
  unsigned char* place = shard.entries + slot * kEntryBytes;
  std::memmove(place, place + kEntryBytes, (end - slot - 1) * kEntryBytes);
  Store(shard, end - 1, Entry{~uint64_t{0}, ~uint32_t{0}});
  --shard.count;
  if (shard.bytes > kPage && shard.count * 2 < shard.slots) {
    const uint64_t wanted = (shard.count * kEntryBytes * 4 / 3 + kPage) / kPage * kPage;
    if (wanted < shard.bytes) Resize(&shard, wanted);  // where that fails the shard stays large
  }
  return entry.location();
}

void KeyIndex::Clear() {
  for (Shard& shard : shards_) {
    if (shard.bytes >= kPage) {
      munmap(shard.entries, shard.bytes);
    } else {
      std::free(shard.entries);
    }
    shard = Shard();
  }
}

}  // namespace hps
