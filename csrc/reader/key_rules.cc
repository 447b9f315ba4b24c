// Bags folded, cut and crossed. Above it: BatchTransform. Below it: common/hash.h, decimal_hash.h.
#include "reader/key_rules.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "common/check.h"
#include "common/hash.h"
#include "reader/decimal_hash.h"

namespace hps {
namespace {

static_assert(std::endian::native == std::endian::little, "keys are hashed as they lie in memory");

constexpr uint64_t kMostTabled = uint64_t{1} << 18;  // 2 MiB of hashes, which take 4 ms

}  // namespace

Fold::Fold(uint64_t buckets, uint64_t seed)
    : buckets_(buckets), seed_(seed), inverse_(~uint64_t{0} / buckets) {
  HPS_CHECK(buckets >= 1 && buckets <= uint64_t{1} << 63);
  if (buckets > kMostTabled) return;
  for (uint64_t number = 0; number < buckets; ++number) {
    table_.push_back(HashDecimal(number, seed));
  }
}

uint64_t Fold::operator()(uint64_t key) const {
  if (buckets_ == 0) return key;
  // The quotient, or one less: a division would take longer than the hash.
  const auto quotient =
      static_cast<uint64_t>((static_cast<unsigned __int128>(key) * inverse_) >> 64);
  uint64_t rest = key - quotient * buckets_;
  rest -= rest >= buckets_ ? buckets_ : 0;
  return table_.empty() ? HashDecimal(rest, seed_) : table_[rest];
}

void Fold::Each(const uint64_t* keys, size_t count, uint64_t* out) const {
  for (size_t i = 0; i < count; ++i) out[i] = (*this)(keys[i]);
}

size_t FeatureRule::Count(const uint64_t* keys, size_t count) const {
  if (drops) count -= static_cast<size_t>(std::count(keys, keys + count, missing));
  if (most != 0) count = std::min(count, most);
  return count == 0 && fills ? 1 : count;
}

size_t FeatureRule::Make(const uint64_t* keys, const float* weights, size_t count, uint64_t* out,
                         float* out_weights) const {
  size_t left_out = 0;  // of those that are not dropped, at the beginning
  if (most != 0 && is_last) {
    size_t there = count;
    if (drops) there -= static_cast<size_t>(std::count(keys, keys + count, missing));
    left_out = there > most ? there - most : 0;
  }
  const size_t limit = most == 0 ? count : std::min(count, most);
  size_t made = 0;
  for (size_t i = 0; i < count && made < limit; ++i) {
    if (drops && keys[i] == missing) continue;
    if (left_out > 0) {
      --left_out;
      continue;
    }
    out[made] = KeyOf(keys[i]);
    if (out_weights != nullptr) out_weights[made] = weights[i];
    ++made;
  }
  if (made > 0 || !fills) return made;
  out[0] = missing;
  if (out_weights != nullptr) out_weights[0] = 1.0F;
  return 1;
}

size_t CrossRule::Count(const size_t* counts) const {
  size_t product = 1;  // beyond the most it is as good as the most
  for (size_t i = parts.size(); i > 0; --i) {
    product = counts[i - 1] == 0 ? 0 : std::min(product * std::min(counts[i - 1], most), most);
  }
  return product;
}

void CrossRule::Make(const uint64_t* const* bags, const float* const* weights, const size_t* counts,
                     size_t count, uint64_t* out, float* out_weights) const {
  std::array<uint64_t, kMaxParts> tuple;
  std::array<size_t, kMaxParts> places{};
  for (size_t made = 0; made < count; ++made) {
    for (size_t i = 0; i < parts.size(); ++i) tuple[i] = bags[i][places[i]];
    out[made] = fold(Xxh64(tuple.data(), parts.size() * sizeof(uint64_t), seed));
    if (out_weights != nullptr) {
      float product = weights[0][places[0]];
      for (size_t i = 1; i < parts.size(); ++i) product *= weights[i][places[i]];
      out_weights[made] = product;
    }
    for (size_t i = parts.size(); i > 0 && ++places[i - 1] == counts[i - 1]; --i) {
      places[i - 1] = 0;
    }
  }
}

void CrossRule::MakeSingle(const uint64_t* const* bags, size_t count, uint64_t* out) const {
  if (parts.size() == 2) {  // most crosses; a size that is known takes half the time
    for (size_t row = 0; row < count; ++row) {
      const uint64_t pair[2] = {bags[0][row], bags[1][row]};
      out[row] = Xxh64(pair, sizeof(pair), seed);
    }
  } else {
    std::array<uint64_t, kMaxParts> tuple;
    for (size_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < parts.size(); ++i) tuple[i] = bags[i][row];
      out[row] = Xxh64(tuple.data(), parts.size() * sizeof(uint64_t), seed);
    }
  }
  if (fold.folds()) fold.Each(out, count, out);
}

}  // namespace hps
