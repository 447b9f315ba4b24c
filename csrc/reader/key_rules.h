// Rules of keys: which keys of the log a feature of the model has, and how crosses are made.
//
// Above it: batch_transform.h. Below it: the hashes. Which key becomes which is a promise of
// docs/features.md: models and clients rely on it. Read-only once made, so that threads share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hps {

inline constexpr size_t kMaxParts = 8;  // of a cross

// Makes of any keys as many as are asked for: key k becomes the hash of the number k % buckets.
class Fold {
 public:
  Fold() = default;  // every key stays what it is
  // buckets from 1 to 2^63; seed: of the hash.
  Fold(uint64_t buckets, uint64_t seed);

  bool folds() const { return buckets_ != 0; }
  // Nanoseconds that a key takes, as measured.
  double work() const { return !folds() ? 0 : table_.empty() ? 16 : 2; }
  uint64_t operator()(uint64_t key) const;
  // Those of `keys` [count]; `out` may be the same.
  void Each(const uint64_t* keys, size_t count, uint64_t* out) const;

 private:
  uint64_t buckets_ = 0;
  uint64_t seed_ = 0;
  uint64_t inverse_ = 0;         // 2^64 / buckets, or one less
  std::vector<uint64_t> table_;  // the hash of each number, where they are few
};

// What is made of the bags of a feature of the log: drop, cut, fold, fill, in this order.
struct FeatureRule {
  size_t column = 0;     // of the log, from 0
  bool drops = false;    // the keys that are `missing`
  bool fills = false;    // a bag without keys has `missing`, which is not folded
  uint64_t missing = 0;  // the key of the empty text
  size_t most = 0;       // keys of a bag; 0: any number
  bool is_last = false;  // the last ones stay, not the first
  Fold fold;

  bool is_plain() const { return !drops && !fills && most == 0 && !fold.folds(); }
  // The key that stands for one of the log.
  uint64_t KeyOf(uint64_t key) const { return fills && key == missing ? key : fold(key); }
  // Keys of the bag that is made of keys [0, count).
  size_t Count(const uint64_t* keys, size_t count) const;
  // Writes that bag, and its weights if `weights` is not null. Returns its size.
  size_t Make(const uint64_t* keys, const float* weights, size_t count, uint64_t* out,
              float* out_weights) const;
};

// A key of each combination of the keys of several features.
struct CrossRule {
  std::vector<size_t> parts;  // which features of the model, 2 to kMaxParts
  uint64_t seed = 0;          // of the hash
  size_t most = 0;            // combinations of an example, at least 1
  Fold fold;

  // Combinations of bags of so many keys each, [parts.size()].
  size_t Count(const size_t* counts) const;
  // Writes the first `count` combinations of bags, the last one's keys changing fastest; of
  // weights, unless `weights` is null, the products.
  void Make(const uint64_t* const* bags, const float* const* weights, const size_t* counts,
            size_t count, uint64_t* out, float* out_weights) const;
  // Of bags of one key each: the combination of key i of every part, for each i.
  void MakeSingle(const uint64_t* const* parts, size_t count, uint64_t* out) const;
};

}  // namespace hps
