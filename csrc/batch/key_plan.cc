// Numbering on one thread, which owns all keys.
#include "batch/key_plan.h"

#include "common/float_mode.h"

namespace hps {
namespace {

constexpr int64_t kOnePart = 1;
constexpr int kOneThread = 1;

}  // namespace

void KeyPlan::Build(const uint64_t* keys, int64_t count) {
  share_.num_unique = share_.num_occurrences = share_.num_hot = 0;
  shares_.Begin(count, kOnePart, kOneThread);
  shares_.ChooseOwners(keys);
  const DefaultFloatMode mode;
  shares_.CopyKeys(0, keys);
  shares_.Prepare(0, &share_);
  shares_.Number(0, &share_, [&] { return loops_->deduplicate(&share_, keys, count); });
  shares_.NoteNumbered(share_.num_unique, share_.num_occurrences);
}

void KeyPlan::PrepareValues(int32_t dim) {
  share_.values = values_.Reserve(share_.num_unique * dim);
}

void KeyPlan::PrepareSums(int32_t dim) {
  PrepareValues(dim);
  shares_.PrepareSums(0, dim, &share_);
}

}  // namespace hps
