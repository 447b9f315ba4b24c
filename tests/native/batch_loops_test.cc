// The batch loops of dram_cache at every width, under the sanitizers: pulls and pushes that
// deduplicate and that do not, sums, updates, assignments, batches that grow and shrink on one
// plan.
//
// Above it: CTest. Below it: csrc/dram_cache. That the results are right in detail is the Python
// tests' business; here each pull must read what was assigned, and each update what was summed.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "dram_cache/dram_cache.h"

namespace hps {
namespace {

constexpr int64_t kNumKeys = 9000;
constexpr int64_t kCapacityRows = 12000;

uint64_t KeyOf(int64_t number) { return MixKey(static_cast<uint64_t>(number) + 1); }

float WeightOf(int64_t number, int64_t column) {
  return static_cast<float>(number % 1000) + static_cast<float>(column) / 8;
}

class Lab {
 public:
  Lab(int64_t dim, int threads, const char* instruction_set) : dim_(dim), pool_(threads) {
    DramCacheOptions options;
    options.layout = {OptimizerKind::kSgd, dim};
    options.initializer = {InitializerKind::kConstant, 0.0f, 0.0f, 0};
    options.capacity_bytes = kCapacityRows * (options.layout.row_bytes() + 5) + 8192;
    options.instruction_set = instruction_set;
    HPS_CHECK(DramCache::Open(options, &pool_, &cache_).ok());
    std::vector<uint64_t> keys;
    std::vector<float> rows;
    for (int64_t number = 0; number < kNumKeys; ++number) {
      keys.push_back(KeyOf(number));
      for (int64_t d = 0; d < dim; ++d) rows.push_back(WeightOf(number, d));
    }
    cache_->MakePlan(keys.data(), kNumKeys, &plan_);
    const int64_t missing = cache_->Find(&plan_, 0, plan_.num_unique());
    HPS_CHECK(cache_->Reserve(&plan_));
    const std::vector<uint8_t> found(static_cast<size_t>(missing));
    const std::vector<uint8_t> images(static_cast<size_t>(missing * options.layout.row_bytes()));
    cache_->Fill(&plan_, images.data(), found.data(), 0.1f, true);
    cache_->Assign(&plan_, rows.data(), nullptr, nullptr, 0.1f);
    cache_->Release(&plan_);
  }

  // Pulls keys by their numbers into an output that begins `shift` floats off a cache line, with
  // nothing of it out of the sanitizer's sight.
  void Pull(const std::vector<int64_t>& numbers, int64_t shift) {
    const auto count = static_cast<int64_t>(numbers.size());
    std::vector<uint64_t> keys(numbers.size());
    std::transform(numbers.begin(), numbers.end(), keys.begin(), KeyOf);
    const auto size = static_cast<size_t>(count * dim_ + shift);
    const std::unique_ptr<float, decltype(&std::free)> memory(
        static_cast<float*>(std::aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64)),
        &std::free);
    float* out = memory.get() + shift;
    HPS_CHECK(cache_->Pull(keys.data(), count, &plan_, {out, dim_}) == 0);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 0; d < dim_; ++d) HPS_CHECK(out[i * dim_ + d] == WeightOf(numbers[i], d));
    }
  }

  // Pushes gradients that leave every row as it was, after checking that they are summed.
  void PushAndUndo(const std::vector<int64_t>& numbers) {
    const auto count = static_cast<int64_t>(numbers.size());
    std::vector<uint64_t> keys(numbers.size());
    std::transform(numbers.begin(), numbers.end(), keys.begin(), KeyOf);
    std::vector<int64_t> counts(kNumKeys);
    for (const int64_t number : numbers) ++counts[number];
    std::vector<float> grads(static_cast<size_t>(count * dim_), 1.0f);
    for (const float sign : {1.0f, -1.0f}) {
      std::fill(grads.begin(), grads.end(), sign);
      cache_->MakePlan(keys.data(), count, &plan_);
      HPS_CHECK(cache_->Find(&plan_, 0, plan_.num_unique()) == 0);
      HPS_CHECK(cache_->SumGradients(&plan_, grads.data()) == -1);
      cache_->Apply(&plan_, 1.0f);
      std::vector<float> rows(grads.size());
      cache_->Gather(&plan_, {rows.data(), dim_});
      for (int64_t i = 0; i < count; ++i) {
        const float change = sign > 0 ? static_cast<float>(counts[numbers[i]]) : 0.0f;
        HPS_CHECK(rows[i * dim_] == WeightOf(numbers[i], 0) - change);
      }
    }
  }

  // The same by SumHere, whose plan is empty behind a push that was not numbered. Says which it
  // was.
  bool PushHereAndUndo(const std::vector<int64_t>& numbers) {
    const auto count = static_cast<int64_t>(numbers.size());
    std::vector<uint64_t> keys(numbers.size());
    std::transform(numbers.begin(), numbers.end(), keys.begin(), KeyOf);
    bool is_numbered = true;
    for (const float sign : {1.0f, -1.0f}) {
      // As large as it is needed, so that a sanitizer sees what is read behind it.
      const std::vector<float> grads(static_cast<size_t>(count * dim_), sign);
      int64_t worst = 0;
      HPS_CHECK(cache_->SumHere(keys.data(), count, grads.data(), 1.0f, &plan_, &worst) == 0);
      HPS_CHECK(worst == -1);
      cache_->Apply(&plan_, 1.0f);
      is_numbered = plan_.num_unique() > 0;
    }
    Pull(numbers, 0);
    return !is_numbered;
  }

 private:
  const int64_t dim_;
  ThreadPool pool_;
  std::unique_ptr<DramCache> cache_;
  BatchPlan plan_;
};

std::vector<int64_t> Repeated(int64_t count, int64_t num_distinct, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  // Squared, so that low numbers are hot.
  for (int64_t& number : numbers) {
    const auto draw = static_cast<int64_t>(random() % static_cast<uint64_t>(num_distinct));
    number = draw * draw / num_distinct;
  }
  return numbers;
}

std::vector<int64_t> Distinct(int64_t count, uint64_t seed) {
  std::vector<int64_t> numbers(kNumKeys);
  for (int64_t i = 0; i < kNumKeys; ++i) numbers[i] = i;
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(seed));
  numbers.resize(static_cast<size_t>(count));
  return numbers;
}

void TestWidth(int64_t dim, int threads, const char* instruction_set) {
  Lab lab(dim, threads, instruction_set);
  uint64_t seed = 0;
  for (const int64_t count : {0, 1, 31, 4095, 8999, 33, 5000, 1}) {
    const int64_t shift = count % 2;
    lab.Pull(Distinct(count, ++seed), shift);
    lab.Pull(Repeated(count, 700, ++seed), shift);
    lab.PushAndUndo(Repeated(count, 700, ++seed));
    lab.PushAndUndo(std::vector<int64_t>(static_cast<size_t>(count), 7));
  }
  // More distinct keys than the id table of the batch before had room for, each several times.
  std::vector<int64_t> numbers = Repeated(20000, kNumKeys, ++seed);
  lab.Pull(numbers, 0);
  lab.PushAndUndo(numbers);
  lab.PushHereAndUndo(numbers);
  HPS_CHECK(!lab.PushHereAndUndo(Distinct(4095, ++seed)));  // too few to be worth it
  for (const int64_t count : {8999, 4096, 5001}) {
    HPS_CHECK(lab.PushHereAndUndo(Distinct(count, ++seed)));
  }
  numbers = Distinct(6000, ++seed);
  numbers.back() = numbers.front();
  HPS_CHECK(!lab.PushHereAndUndo(numbers));
}

}  // namespace
}  // namespace hps

int main() {
  for (const char* instruction_set : {"auto", "plain"}) {
    for (int64_t dim = 1; dim <= 17; ++dim) hps::TestWidth(dim, 1 + dim % 3, instruction_set);
    hps::TestWidth(64, 3, instruction_set);
    hps::TestWidth(130, 2, instruction_set);
  }
  std::puts("batch loops: ok");
  return 0;
}
