// A batch's keys numbered in shares and then together, under the sanitizers: with every instruction
// set, by one to four owners, in batches of all lengths, on shares that are used again.
//
// Above it: CTest. Below it: csrc/batch.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "batch/key_loops.h"
#include "batch/key_shares.h"
#include "common/check.h"

namespace hps {
namespace {

// The keys of a batch, some of them often, and two that differ in one bit alone.
std::vector<uint64_t> SomeKeys(int64_t count, std::mt19937_64* random) {
  std::vector<uint64_t> keys;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t draw = (*random)();
    const uint64_t among = draw % 3 == 0 ? 4 : static_cast<uint64_t>(count) + 1;
    keys.push_back(((*random)() % among) << (draw & 32));
  }
  return keys;
}

// What NumberKeys of gpu_cache's host build does on threads, owner after owner.
class Lab {
 public:
  explicit Lab(const KeyLoops& loops) : loops_(loops) {}

  void Number(const std::vector<uint64_t>& keys, int num_threads) {
    const auto count = static_cast<int64_t>(keys.size());
    shares_.Begin(count, kNumSubparts, num_threads);
    shares_.ChooseOwners(keys.data());
    owned_.assign(static_cast<size_t>(shares_.num_owners()), KeyShare{});
    const size_t num_words = keys.size() / 64 + 1;
    std::vector<uint64_t> firsts(num_words * (owned_.size() + 1));
    std::vector<uint32_t> ranks(num_words);
    inverse.assign(keys.size(), ~uint32_t{0});
    JointIds joint = {firsts.data(),
                      firsts.data() + num_words * owned_.size(),
                      ranks.data(),
                      static_cast<int64_t>(num_words),
                      shares_.num_owners(),
                      inverse.data(),
                      nullptr};
    for (int i = 0; i < shares_.num_owners(); ++i) {
      KeyShare* share = &owned_[static_cast<size_t>(i)];
      shares_.CopyKeys(i, keys.data());
      shares_.Prepare(i, share);
      shares_.Number(i, share, [&] { return loops_.deduplicate(share, keys.data(), count); });
      shares_.PrepareJoin(i, share);
      loops_.mark_firsts(share, joint, i);
    }
    unique_keys.assign(static_cast<size_t>(loops_.rank_firsts(joint)), 0);
    joint.unique_keys = unique_keys.data();
    for (int i = 0; i < shares_.num_owners(); ++i) {
      loops_.join(&owned_[static_cast<size_t>(i)], joint);
    }
  }

  int num_owners() const { return shares_.num_owners(); }
  bool Matches(const std::vector<uint64_t>& keys) const {
    return shares_.Matches(keys.data(), static_cast<int64_t>(keys.size()));
  }
  const std::vector<KeyShare>& owned() const { return owned_; }

  std::vector<uint32_t> inverse;
  std::vector<uint64_t> unique_keys;

 private:
  const KeyLoops& loops_;
  KeyShares shares_;
  std::vector<KeyShare> owned_;
};

void CheckAgainstOneByOne(const Lab& lab, const std::vector<uint64_t>& keys) {
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<uint64_t> unique;
  std::vector<bool> is_first(keys.size()), is_seen(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [found, is_new] = ids.try_emplace(keys[i], static_cast<uint32_t>(unique.size()));
    if (is_new) unique.push_back(keys[i]);
    is_first[i] = is_new;
    HPS_CHECK(lab.inverse[i] == found->second);
  }
  HPS_CHECK(lab.unique_keys == unique);
  for (const KeyShare& share : lab.owned()) {
    for (int64_t i = 0; i < share.num_occurrences; ++i) {
      const uint32_t position = share.scan_positions[i];
      HPS_CHECK(!is_seen[position] && (i == 0 || position > share.scan_positions[i - 1]));
      is_seen[position] = true;
      HPS_CHECK(share.ids[i] == (lab.inverse[position] | (is_first[position] ? kFirstOfKey : 0)));
    }
    for (int64_t i = 0; i < kOccurrencePadding; ++i) {
      HPS_CHECK(share.ids[share.num_occurrences + i] == 0);
      HPS_CHECK(share.scan_positions[share.num_occurrences + i] == 0);
    }
  }
  for (const bool seen : is_seen) HPS_CHECK(seen);
}

void TestSharesNumberKeysAsOneByOne(const char* instruction_set) {
  const KeyLoops* loops = ChooseKeyLoops(instruction_set);
  if (loops == nullptr) return;
  HPS_CHECK(std::string(loops->name) == instruction_set);
  std::mt19937_64 random(7);
  int most_owners = 0;
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    Lab lab(*loops);
    for (const int64_t count : {0, 1, 63, 64, 65, 600, 20'000, 511, 13'000, 0, 17'001}) {
      const std::vector<uint64_t> keys = SomeKeys(count, &random);
      lab.Number(keys, num_threads);
      most_owners = std::max(most_owners, lab.num_owners());
      HPS_CHECK(lab.num_owners() <= num_threads && lab.Matches(keys));
      CheckAgainstOneByOne(lab, keys);
      if (count == 0) continue;
      std::vector<uint64_t> others = keys;
      others.back() ^= 1;
      HPS_CHECK(!lab.Matches(others));
    }
  }
  HPS_CHECK(most_owners == 4);
}

void TestAValueThatIsNotFiniteIsFound(const char* instruction_set) {
  const KeyLoops* loops = ChooseKeyLoops(instruction_set);
  if (loops == nullptr) return;
  for (const int32_t dim : {1, 3, 16, 40}) {
    std::vector<float> values(static_cast<size_t>(50 * dim), 3e38f);
    HPS_CHECK(loops->find_not_finite(values.data(), 50, dim) == -1);
    HPS_CHECK(loops->find_not_finite(values.data(), 0, dim) == -1);
    const auto largest = [&] { return loops->find_largest(values.data(), 50 * dim); };
    HPS_CHECK(loops->find_largest(values.data(), 0) == 0);
    HPS_CHECK(largest() == __builtin_bit_cast(uint32_t, 3e38f));
    values[0] = -3.25e38f;
    HPS_CHECK(largest() == __builtin_bit_cast(uint32_t, 3.25e38f));
    for (const int64_t id : {49, 20, 0}) {
      values[static_cast<size_t>(id * dim + dim - 1)] = id == 20 ? -INFINITY : NAN;
      HPS_CHECK(loops->find_not_finite(values.data(), 50, dim) == id);
      HPS_CHECK(largest() >= 0x7f800000 && (id == 20 || largest() > 0x7f800000));
    }
  }
}

}  // namespace
}  // namespace hps

int main() {
  for (const char* name : {"plain", "avx2", "avx512"}) {
    hps::TestSharesNumberKeysAsOneByOne(name);
    hps::TestAValueThatIsNotFiniteIsFound(name);
  }
  HPS_CHECK(hps::ChooseKeyLoops("neon") == nullptr && hps::ChooseKeyLoops("auto") != nullptr);
  std::puts("ok");
}
